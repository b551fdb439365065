"""Errors as HTTP says them: a status, OpenAI's envelope, and headers that say when to retry."""

import math
from typing import Final

import msgspec
from aiohttp import web

from tieline.errors import ApiError

JSON: Final = "application/json"

SERVER: Final = "tieline"
"""Who answers; not which version of what, which would help only an attacker."""

HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"WWW-Authenticate": "Bearer"},
    # RFC 9110 15.5.22: the answer says what would be accepted.
    426: {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"},
}
"""Status -> the headers that it demands."""


def json_response(body: bytes, *, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=body, status=status, content_type=JSON)


def error_response(error: ApiError) -> web.Response:
    """The answer to a request that failed (wire.md 4.1.3)."""
    detail = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    response = json_response(msgspec.json.encode({"error": detail}), status=error.status)
    headers = response.headers
    headers.update(HEADERS.get(error.status, {}))
    headers["x-should-retry"] = "true" if error.retryable else "false"
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after * 1000))
    return response
