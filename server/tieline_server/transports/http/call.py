"""One request as its handler sees it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web
from msgspec import Struct

from tieline_server.core.values import Caller
from tieline_server.transports.http.create_reader import CreateReader
from tieline_server.transports.http.errors import SERVER

API_VERSION: Final = "2020-10-01"
"""The version that OpenAI's API answers with, and SDKs know."""

TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage")
"""The W3C headers of a trace context."""


class Call(Struct, frozen=True, kw_only=True):
    """A request, its id, and what every answer to it says."""

    request: web.Request
    caller: Caller
    started: float
    """Monotonic seconds."""
    clock: Callable[[], float]
    cors: Mapping[str, str]
    """Headers for a browser of a listed origin."""
    recollection: CreateReader
    """What its connection remembers."""
    name: str = ""
    """What the path names: a response's id, a model."""

    @property
    def request_id(self) -> str:
        """Its id, in the answer and in the log."""
        return self.caller.request_id

    @property
    def spent(self) -> float:
        """Seconds since the request came in."""
        return self.clock() - self.started

    @property
    def authorization(self) -> str | None:
        """The header that says who asks."""
        return self.request.headers.get("Authorization")

    @property
    def trace_context(self) -> dict[str, str] | None:
        """The caller's trace context, where there is one."""
        headers = self.request.headers
        if "traceparent" not in headers:
            return None
        return {name: headers[name] for name in TRACE_HEADERS if name in headers}

    def stamp(self, response: web.StreamResponse, phases: Mapping[str, float]) -> None:
        """Writes what every answer says into its headers; ``phases`` are milliseconds."""
        headers = response.headers
        headers["Server"] = SERVER
        headers["x-request-id"] = self.request_id
        headers["openai-version"] = API_VERSION
        headers["openai-processing-ms"] = str(round(self.spent * 1000))
        if phases:
            timings = (f"{name};dur={spent:g}" for name, spent in phases.items())
            headers["Server-Timing"] = ", ".join(timings)
        headers.update(self.cors)


Handler = Callable[[Call], Awaitable[web.StreamResponse]]
