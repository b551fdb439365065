"""What the caller has used, added up from the ledger."""

from typing import Final

import msgspec
from aiohttp import web

from tieline.errors import ApiError
from tieline_server.core.values import Principal
from tieline_server.runtime import Services
from tieline_server.storage import questions
from tieline_server.storage.base import By, Question
from tieline_server.storage.questions import QuestionError
from tieline_server.transports.http.request import Call, json_response

GROUPS: Final[tuple[By, ...]] = ("model", "day")
"""What a caller's own rows can be grouped by: all of them are of one key's owner."""


class UsageCalls:
    """Handlers of routes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def usage(self, call: Call) -> web.Response:
        """Sums of the caller's own rows alone."""
        principal: Principal = self._services.keys.authenticate(call.authorization)
        asked = _read(call, principal.owner, now=self._services.now())
        sums = await self._services.ledger.usage(asked)
        return json_response(msgspec.json.encode({"object": "list", "data": sums}))


def _read(call: Call, owner: str, *, now: float) -> Question:
    query = call.request.query
    try:
        return questions.question(
            by=questions.group(query.get("by", "day"), among=GROUPS),
            owner=owner,
            since=query.get("since"),
            until=query.get("until"),
            now=now,
        )
    except QuestionError as error:
        message = f"Invalid value for '{error.param}': {error}."
        raise ApiError.of("invalid_value", message, param=error.param) from None
