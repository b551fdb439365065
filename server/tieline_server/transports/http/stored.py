"""What exists: stored responses, running turns, and sizes of input."""

import re
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import Raw

from tieline import items, responses
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.items import Item
from tieline.responses import Response
from tieline_server import runtime
from tieline_server.core.values import Principal
from tieline_server.runtime import LAST, Services
from tieline_server.runtime.compact import compact
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.creates import CreateCalls, read_create
from tieline_server.transports.http.request import Call, json_response
from tieline_server.transports.json_events import told
from tieline_server.transports.response_lookup import (
    PAGE,
    cancelled,
    check_include,
    deleted,
    find,
    find_whole,
    input_items,
    page_of,
    place_id,
)

_ENDED: Final = frozenset({"completed", "failed", "incomplete"})
"""How a response stands that ended, and not by a cancel."""

_TEXT_TYPE: Final = {"assistant": "output_text"}
"""Role -> the type of its text parts, where it is not ``input_text``."""


_FLAGS: Final = {"": False, "0": False, "1": True, "false": False, "true": True}

_NUMBER: Final = re.compile(r"0*([0-9]+)", re.ASCII)


class StoredCalls:
    """Handlers of routes."""

    def __init__(self, services: Services, config: HttpConfig, creates: CreateCalls) -> None:
        self._services = services
        self._config = config
        self._creates = creates

    async def get(self, call: Call) -> web.StreamResponse:
        """A response of the caller as it stands, or with ``stream`` its events."""
        principal = self._principal(call)
        _check_include(call)
        after = _starting_after(call)
        if _flag(call, "stream") and call.request.method == "GET":
            return await self._creates.resume(call, after)
        return _response(await find(self._services, principal.owner, call.name))

    async def delete(self, call: Call) -> web.Response:
        """Forgets a response of the caller; one that runs is cancelled first."""
        principal = self._principal(call)
        await deleted(self._services, principal.owner, call.name)
        return _json({"id": call.name, "object": "response", "deleted": True})

    async def cancel(self, call: Call) -> web.Response:
        """Ends a turn of the caller, whichever connection it runs on; one that has ended stays so.

        In the background that is no error, as often as it is asked for. Elsewhere a response
        that ended otherwise cannot be cancelled any more (wire.md 7.8).
        """
        principal = self._principal(call)
        services = self._services
        if not services.profile.cancel_foreground:
            response = await find(services, principal.owner, call.name)
            if not response.background:
                message = "Only a background response can be cancelled."
                raise ApiError.of("invalid_request", message)
        response = await cancelled(services, principal.owner, call.name)
        if not response.background and response.status in _ENDED:
            raise ApiError.of(
                "not_cancellable",
                "The response has already ended. Once it has, only a background response takes a "
                "cancel.",
            )
        return _response(response)

    async def input_items(self, call: Call) -> web.Response:
        """A page of what a response was asked with: its input, then what was appended."""
        principal = self._principal(call)
        _check_include(call)
        query = call.request.query
        saved = await find_whole(self._services, principal.owner, call.name)
        page = page_of(
            [_entry(call.name, *each) for each in enumerate(input_items(saved))],
            limit=_integer(query.get("limit", str(PAGE)), "limit"),
            order=query.get("order", "desc"),
            after=query.get("after"),
        )
        return _json(
            {
                "object": "list",
                "data": [raw for _, raw in page.entries],
                "first_id": page.first_id,
                "last_id": page.last_id,
                "has_more": page.has_more,
            }
        )

    async def input_tokens(self, call: Call) -> web.Response:
        """How many input tokens a create would have."""
        principal = self._principal(call)
        create, _ = await read_create(call, self._services, self._config, owner=principal.owner)
        count = await runtime.count_input_tokens(self._services, principal, create)
        return _json({"object": "response.input_tokens", "input_tokens": count})

    async def compact(self, call: Call) -> web.Response:
        """The input that stands for a longer history."""
        principal = self._principal(call)
        create, _ = await read_create(call, self._services, self._config, owner=principal.owner)
        made = await compact(self._services, principal, create, transport="http")
        return _json(
            {
                "id": made.id,
                "object": "response.compaction",
                "created_at": made.created_at,
                "output": [
                    raw for _, raw in (_entry(made.id, *each) for each in enumerate(made.output))
                ],
                "usage": made.usage,
            }
        )

    def _principal(self, call: Call) -> Principal:
        principal: Principal = self._services.keys.caller(call.authorization, call.caller)()
        return principal


def _response(response: Response) -> web.Response:
    return json_response(responses.encode(told(response)))


def _json(body: dict[str, Any]) -> web.Response:
    return json_response(msgspec.json.encode(body))


def _entry(response_id: str, index: int, item: Item) -> tuple[str, Raw]:
    """An item as lists show it: with an id, and a message's text as a part."""
    item_id = item.id or place_id(response_id, index)
    given = json.members(item.raw) or {}
    shown = {"id": Raw(msgspec.json.encode(item_id)), "type": Raw(msgspec.json.encode(item.type))}
    view = item.view
    if isinstance(view, items.Message):
        shown["status"] = Raw(b'"completed"')
        if isinstance(view.content, str):
            part = {"type": _TEXT_TYPE.get(view.role, "input_text"), "text": view.content}
            given["content"] = Raw(msgspec.json.encode([part]))
    return item_id, Raw(json.join({**shown, **given}))


def _check_include(call: Call) -> None:
    query = call.request.query
    check_include([*query.getall("include", []), *query.getall("include[]", [])])


def _flag(call: Call, name: str) -> bool:
    value = call.request.query.get(name, "").lower()
    if value not in _FLAGS:
        raise ApiError.of(
            "invalid_type", f"Invalid type for '{name}': expected a boolean.", param=name
        )
    return _FLAGS[value]


def _starting_after(call: Call) -> int | None:
    """The number of the last event that the caller has seen; raises :class:`ApiError` 400."""
    text = call.request.query.get("starting_after")
    if text is None:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ApiError.of(
            "invalid_value",
            "Invalid 'starting_after': expected a sequence number, 0 or more.",
            param="starting_after",
        )
    # Behind the last event of any response it does not matter how far.
    return min(int(found[1][:19]), LAST)


def _integer(text: str, param: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ApiError.of(
            "invalid_type", f"Invalid type for '{param}': expected an integer.", param=param
        ) from None
