"""The upgrade: what a client asks for by its headers, and how it is refused.

A refused upgrade is an ordinary HTTP error with the JSON envelope: Codex and the SDKs read it
as they read any other (wire.md 1.3.1).
"""

import base64
import binascii
import math
from typing import Final

import msgspec
from aiohttp import HttpVersion11, web
from msgspec import Struct

from tieline.errors import ApiError
from tieline_server.core.create.profile import Profile
from tieline_server.transports import json_events
from tieline_server.transports.live_calls import REQUEST_ID, trace_context_of

SERVER: Final = "tieline"
"""Who answers, without the versions of what it runs on."""

TURN_STATE: Final = "x-codex-turn-state"
"""A sticky-routing token of Codex: what it brings, it gets back (wire.md 1.2.1)."""

V1: Final = "responses_websockets=2026-02-04"
"""The value of OpenAI-Beta by which a client of the append prototype says so (wire.md 2.2.4)."""

SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"

SUBPROTOCOLS: Final = ("responses", "openai-beta.responses.v1")
"""None is needed; a client that offers a known one is told so, as browsers insist on it."""

KEY_IN_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""What stands before the key that a browser offers, which can send no ``Authorization``."""


class Handshake(Struct, frozen=True, kw_only=True):
    """What the headers of an upgrade say."""

    authorization: str | None
    subprotocol: str | None
    """The one that is agreed to, of those offered."""
    extensions: frozenset[str]
    v1: bool
    """Whether this is a client of the append prototype."""
    turn_state: str | None
    trace_context: dict[str, str] | None

    def profile(self, profile: Profile) -> Profile:
        """The server's profile as it is for this client."""
        return profile.v1() if self.v1 and profile.append else profile

    def response_headers(self, request_id: str) -> dict[str, str]:
        """What goes with the 101."""
        headers = {REQUEST_ID: request_id, "Server": SERVER}
        if self.turn_state is not None:
            headers[TURN_STATE] = self.turn_state
        return headers


def read_handshake(request: web.Request) -> Handshake:
    """Checks the upgrade; raises :class:`ApiError` 426 or 400."""
    headers = request.headers
    if not _is_upgrade(request):
        raise upgrade_required("This endpoint speaks WebSocket; to use plain HTTP, send a POST.")
    if headers.get("Sec-WebSocket-Version", "").strip() != "13":
        raise upgrade_required("This endpoint speaks version 13 of WebSocket (RFC 6455).")
    if request.can_read_body:
        # Which of two readers would take for frames what the other takes for a body?
        raise ApiError.of("invalid_request", "An upgrade to WebSocket has no body.")
    if not _is_key(headers.get("Sec-WebSocket-Key", "")):
        raise ApiError.of("invalid_request", "Invalid header: 'Sec-WebSocket-Key'.")
    offered = _offered(request)
    beta = {token.strip() for token in ",".join(headers.getall("OpenAI-Beta", [])).split(",")}
    return Handshake(
        authorization=headers.get("Authorization") or _key_in(offered),
        subprotocol=next((each for each in offered if each in SUBPROTOCOLS), None),
        extensions=json_events.asked_for(
            [*headers.getall(json_events.HEADER, []), request.query.get(json_events.HEADER)],
            timing=headers.get(json_events.TIMING_HEADER),
        ),
        v1=V1 in beta,
        turn_state=headers.get(TURN_STATE),
        trace_context=trace_context_of(headers),
    )


def without_secrets(request: web.Request, handshake: Handshake) -> web.BaseRequest:
    """The request without the subprotocols that are not agreed to: aiohttp would log them."""
    headers = request.headers.copy()
    if headers.popall(SUBPROTOCOL, None) is None:
        return request
    if handshake.subprotocol is not None:
        headers[SUBPROTOCOL] = handshake.subprotocol
    return request.clone(headers=headers)


def upgrade_required(message: str) -> ApiError:
    """426: the answer by which clients turn to plain HTTP at once (wire.md 1.3.2)."""
    return ApiError.of("upgrade_required", message, status=426)


def refusal(error: ApiError, request_id: str) -> web.Response:
    """The HTTP answer to an upgrade that is refused."""
    headers = {REQUEST_ID: request_id, "Server": SERVER}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 426:
        # RFC 9110 15.5.22 and RFC 6455 4.4: say what would be accepted.
        headers |= {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
        }
    detail = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    return web.Response(
        status=error.status,
        headers=headers,
        body=msgspec.json.encode({"error": detail}),
        content_type="application/json",
    )


def _offered(request: web.Request) -> list[str]:
    """The subprotocols that a client offers, in its order (RFC 6455 11.3.4)."""
    if SUBPROTOCOL not in request.headers:
        return []
    return [each.strip() for each in ",".join(request.headers.getall(SUBPROTOCOL)).split(",")]


def _key_in(offered: list[str]) -> str | None:
    """The key among them, as ``Authorization`` would say it."""
    for each in offered:
        if each.startswith(KEY_IN_SUBPROTOCOL):
            return f"Bearer {each.removeprefix(KEY_IN_SUBPROTOCOL)}"
    return None


def _is_upgrade(request: web.Request) -> bool:
    """Whether it asks for WebSocket (RFC 6455 4.1: GET, HTTP/1.1 or later; RFC 9110 7.8)."""
    headers = request.headers
    connection = {token.strip().lower() for token in headers.get("Connection", "").split(",")}
    return (
        headers.get("Upgrade", "").strip().lower() == "websocket"
        and "upgrade" in connection
        and request.method == "GET"
        and request.version >= HttpVersion11
    )


def _is_key(key: str) -> bool:
    """Whether it is 16 bytes in base64 (RFC 6455 4.2.1)."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
