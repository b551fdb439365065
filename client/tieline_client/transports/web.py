"""What WebSocket and HTTP share: the session, TLS, where the API is, and what a refusal says."""

import asyncio
import html
import math
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tieline.codecs import json
from tieline.errors import BY_STATUS, ApiError, TielineError
from tieline.events import Event, Opaque, Timing
from tieline_client.errors import (
    ConnectionLost,
    ConnectTimeout,
    NotSent,
    ProtocolViolation,
)
from tieline_client.transports import causes, tls
from tieline_client.transports._aiohttp import Connector, Traffic
from tieline_client.transports.base import CHECKED, Endpoint, Proxy, checked

EXTENSIONS: Final = "x-tieline-extensions"
"""The header that asks for events of ours, and by which a server says that it has them."""

_ASKED: Final = {EXTENSIONS: "heartbeat,session,timing,warnings"}
"""What we can read (docs/protocol.md#extensions)."""
_TIMING: Final = "responsesapi.websocket_timing"
"""What :class:`tieline.events.Timing` is called on this wire; phases end in ``_us``."""
_MICROSECONDS: Final = "_us"

_USER_AGENT: Final = "tieline-python"
_BODY: Final = 64 * 1024
"""Bytes of a refusal's body that are read."""
_BODY_SECONDS: Final = 5.0
_SHOWN: Final = 200
"""Characters that are shown of a body which is no error of this API."""
_SUMMARY: Final = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_UNSEEN: Final = re.compile(rb"<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG: Final = re.compile(rb"<[^>]*>")


def responses_url(endpoint: Endpoint) -> str:
    """Where responses are created, below the URL's base path.

    Base paths are written with and without the API's version, and sometimes in full.

    >>> responses_url(Endpoint(scheme="ws", host="h", port=1, path="/api"))
    'ws://h:1/api/v1/responses'
    >>> responses_url(Endpoint(scheme="https", host="h", port=443, path="/v1"))
    'https://h:443/v1/responses'
    """
    path = endpoint.path
    if not path.endswith("/responses"):
        path += "/responses" if path.endswith("/v1") else "/v1/responses"
    return f"{endpoint.scheme}://{endpoint.address}{path}"


def headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of every request."""
    key = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    return {"user-agent": _USER_AGENT, **_ASKED, **key}


def secure(endpoint: Endpoint) -> ssl.SSLContext | bool:
    """The TLS settings of an endpoint; raises OSError for a file that cannot be used."""
    given = endpoint.tls
    return True if given is None or not _tunnels(endpoint) else tls.context(given)


def session(
    endpoint: Endpoint,
    traffic: Traffic,
    *,
    proxy: Proxy | None,
    traces: Sequence[aiohttp.TraceConfig] = (),
) -> aiohttp.ClientSession:
    """A session of our own: no cookies, no limit on connections, TLS as the endpoint says.

    Raises OSError for a TLS file that cannot be read.
    """
    options = endpoint.options
    read = {} if proxy is None or _tunnels(endpoint) else _authorization(proxy)
    return aiohttp.ClientSession(
        connector=Connector(traffic, ssl=secure(endpoint)),
        headers=headers(endpoint) | read,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None,
            # With all that a proxy does before there is a connection.
            connect=options.connect_timeout,
            sock_connect=options.connect_timeout,
            sock_read=options.idle_timeout,
        ),
        trace_configs=list(traces),
        proxy=None if proxy is None else f"{proxy.scheme}://{proxy.address}",
    )


def request_options(endpoint: Endpoint, proxy: Proxy | None) -> dict[str, Any]:
    """What each request says of the connection that it needs."""
    # The name that the server's certificate must hold, where it is not the host's.
    name = endpoint.tls.server_name if endpoint.tls is not None else None
    tunnel = proxy is not None and _tunnels(endpoint)
    asked = {"proxy_headers": _authorization(proxy)} if proxy and tunnel else {}
    return {"server_hostname": name, **asked}


def _tunnels(endpoint: Endpoint) -> bool:
    """Whether a proxy only joins two connections (CONNECT); else it reads our requests."""
    return endpoint.scheme in ("wss", "https")


def _authorization(proxy: Proxy) -> dict[str, str]:
    """The header by which a proxy knows us; in its URL the library's errors would show it."""
    if proxy.user is None:
        return {}
    return {"proxy-authorization": aiohttp.encode_basic_auth(proxy.user, proxy.password)}


def decode(raw: bytes) -> Event:
    """One event; raises :class:`ProtocolViolation` for what is none (:func:`checked`)."""
    try:
        event = json.decode_event(raw)
        if type(event) in CHECKED:
            return checked(_placed(event) if isinstance(event, Opaque) else event)
        return event
    except ApiError as error:
        raise ProtocolViolation(f"a message of the server cannot be read: {error}") from error


def _placed(event: Opaque) -> Event:
    """An event without a class, on its lane; timing as the event that it is."""
    given = json.members(event.raw) or {}
    lane = json.text_of(given.get("stream_id")) or UNSET
    if event.name != _TIMING:
        return replace(event, stream_id=lane)
    try:
        metrics = msgspec.json.decode(given.get("timing_metrics", b"{}"), type=dict[str, float])
    except msgspec.MsgspecError:
        metrics = {}
    phases = {
        name.removesuffix(_MICROSECONDS): round(value)
        for name, value in metrics.items()
        if name.endswith(_MICROSECONDS)
    }
    response_id = json.text_of(given.get("response_id"))
    return Timing(response_id=response_id, phases=phases, stream_id=lane) if phases else event


def never_sent(error: BaseException) -> bool:
    """Whether a request has failed before there was a connection to send it on."""
    return isinstance(
        error,
        aiohttp.ClientConnectorError
        | aiohttp.ClientHttpProxyError
        | aiohttp.ConnectionTimeoutError,
    )


def loss(error: BaseException, endpoint: Endpoint, *, heard: bool = True) -> TielineError:
    """What a failure of the connection means to a caller, with its cause.

    ``heard``: whether the server has ever said anything.
    """
    found = _opening(error, endpoint, heard=heard) or _ending(error, endpoint.address)
    # The library's error of a proxy that refused holds what we had said to it.
    found.__cause__ = None if isinstance(error, aiohttp.ClientHttpProxyError) else error
    found.__suppress_context__ = True
    return found


def _opening(error: BaseException, endpoint: Endpoint, *, heard: bool) -> TielineError | None:
    """Why there is no connection to the API; None where there was one."""
    address = endpoint.address
    match error:
        case aiohttp.ConnectionTimeoutError():
            return ConnectTimeout(f"no answer from {address}")
        case aiohttp.ClientHttpProxyError():
            return _proxy_refused(error.status, address)
        case aiohttp.ClientConnectorCertificateError():
            why = causes.likely(str(error.certificate_error), endpoint)
        case aiohttp.ClientConnectorError():
            why = causes.likely(_reason(error.os_error), endpoint)
            # The name of a proxy that cannot be found is an error like that of a server's.
            if (error.host, error.port) != (endpoint.host, endpoint.port):
                return NotSent(f"cannot connect to the proxy {error.host}:{error.port}: {why}")
        case aiohttp.ServerDisconnectedError() if not heard:
            why = causes.unanswered(endpoint)
        case aiohttp.ClientResponseError():
            # What came is no HTTP.
            why = causes.likely(error.message, endpoint)
        case _:
            return None
    return ConnectionLost(f"cannot connect to {address}: {why}")


def _ending(error: BaseException, address: str) -> ConnectionLost:
    if isinstance(error, aiohttp.ServerTimeoutError):
        return ConnectionLost(f"lost the connection to {address}: the server is silent")
    return ConnectionLost(f"lost the connection to {address}: {error or type(error).__name__}")


def _proxy_refused(status: int, address: str) -> NotSent:
    """A proxy will not connect us; its own words could repeat what we said to it."""
    return NotSent(f"the proxy answered {_named(status)}; NO_PROXY={address} would pass it by")


def _named(status: int) -> str:
    """A status with its own phrase: the one that was sent may repeat what we said."""
    return f"{status} {next((each.phrase for each in HTTPStatus if each == status), '')}".rstrip()


def _reason(error: OSError) -> str:
    # Errors of name resolution have numbers of their own, below zero, and so do those of TLS.
    if isinstance(error, ssl.SSLError) or error.errno is None or error.errno <= 0:
        return error.strerror or str(error)
    return os.strerror(error.errno)


async def refusal(response: aiohttp.ClientResponse, address: str) -> TielineError:
    """What a response says that is not the one asked for; reads its body, or the first of it."""
    if response.status < 400:
        where = response.headers.get("location")
        to = f", to {where[:_SHOWN]}" if where else ""
        return ConnectionLost(f"{address} does not serve the API there: {response.status}{to}")
    if response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return _proxy_refused(response.status, address)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while len(body) < _BODY and (chunk := await response.content.readany()):
                body += chunk
    except (aiohttp.ClientError, OSError, TimeoutError):
        # The status says enough.
        pass
    name = f"{address} answered {_named(response.status)}"
    return _refused(response.status, response.headers, bytes(body[:_BODY]), name=name)


def _refused(status: int, given: Mapping[str, str], body: bytes, *, name: str) -> ApiError:
    said = _error_of(body)
    message = said.get("message")
    if not isinstance(message, str) or not message:
        text = _text(body)
        message = f"{name}: {text}" if text else name
    code, param, kind = (_string(said.get(member)) for member in ("code", "param", "type"))
    default = "server_error" if status >= 500 else "invalid_request"
    return ApiError.of(
        code or BY_STATUS.get(status, default),
        message,
        param=param,
        status=status,
        error_type=kind,
        retry_after=retry_after(given),
        request_id=given.get("x-request-id"),
    )


def _error_of(body: bytes) -> dict[str, Any]:
    """The error object of a body; of others' shapes, what comes nearest."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    error = said.get("error")
    if isinstance(error, dict):
        return error
    return {"message": error or said.get("message") or said.get("detail")}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _text(body: bytes) -> str:
    """The words of a body on one line: the title of a page, else its text without tags."""
    if b"<" in body:
        title = _SUMMARY.search(body)
        body = title[1] if title else _TAG.sub(b" ", _UNSEEN.sub(b" ", body))
        words = html.unescape(body.decode(errors="replace")).split()
    else:
        words = body.decode(errors="replace").split()
    text = " ".join(words)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def retry_after(given: Mapping[str, str]) -> float | None:
    """Seconds after which a retry can help, as a number or a date (RFC 9110 10.2.3).

    >>> retry_after({"retry-after": "3"})
    3.0
    """
    for name, parts in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(given.get(name, "")) / parts
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        return max(0.0, _timestamp(given["retry-after"]) - _now(given))
    except (KeyError, ValueError):
        return None


def _now(given: Mapping[str, str]) -> float:
    """The server's clock where it tells: ours may be wrong."""
    try:
        return _timestamp(given["date"])
    except (KeyError, ValueError):
        return time.time()


def _timestamp(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()
