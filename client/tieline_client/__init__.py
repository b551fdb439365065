"""The Tieline client: an asynchronous core and a blocking face over it.

>>> import asyncio
>>> async def main(url: str) -> None:
...     async with connect(url) as connection:
...         stream = await connection.create(input="hello")
...         async for event in stream:
...             print(event.type)
...         print(stream.text)

``tieline_client.sync.connect`` is the same for callers that block. Errors that a server states
are :class:`ApiError`; :mod:`tieline_client.errors` lists what else can happen.
"""

# As in `typing`, whose import alone takes longer than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tieline.errors import (
        ApiError,
        AuthenticationError,
        BadRequest,
        Cancelled,
        Conflict,
        DeadlineExceeded,
        NotFound,
        PermissionDenied,
        RateLimited,
        RequestTimeout,
        RequestTooLarge,
        ServerError,
        TielineError,
        Unavailable,
    )
    from tieline_client._replay import Backoff, Policy
    from tieline_client.agent import (
        Agent,
        Outcome,
        RepeatedCall,
        Run,
        Tool,
        ToolDefinitionError,
        Turn,
        TurnLimitReached,
    )
    from tieline_client.aio import (
        Call,
        Connection,
        Conversation,
        Input,
        Lane,
        ResponseStream,
        Result,
        Session,
        SessionStream,
        Settings,
        connect,
        connect_session,
        tool_output,
    )
    from tieline_client.errors import (
        ConnectionClosed,
        ConnectionLost,
        ConnectTimeout,
        FailedResponse,
        IncompleteStream,
        NotSent,
        OutcomeUnknown,
        ProtocolViolation,
        TurnState,
        Unsupported,
        UnsupportedUrl,
    )
    from tieline_client.sync import connect as connect_sync
    from tieline_client.sync import connect_session as connect_session_sync
    from tieline_client.transports import Options, Tls

__all__ = [
    # Connections and turns.
    "connect",
    "connect_sync",
    "Connection",
    "Lane",
    "ResponseStream",
    # What outlives a connection.
    "connect_session",
    "connect_session_sync",
    "Session",
    "Conversation",
    "SessionStream",
    "Policy",
    "Backoff",
    # What they take and give.
    "Result",
    "Call",
    "tool_output",
    "Input",
    "Settings",
    "Options",
    "Tls",
    # Agents.
    "Agent",
    "Run",
    "Turn",
    "Outcome",
    "RepeatedCall",
    "Tool",
    "ToolDefinitionError",
    "TurnLimitReached",
    # What a server states.
    "TielineError",
    "ApiError",
    "AuthenticationError",
    "BadRequest",
    "Cancelled",
    "Conflict",
    "DeadlineExceeded",
    "NotFound",
    "PermissionDenied",
    "RateLimited",
    "RequestTimeout",
    "RequestTooLarge",
    "ServerError",
    "Unavailable",
    "FailedResponse",
    # What only a client meets.
    "ConnectionLost",
    "ConnectTimeout",
    "IncompleteStream",
    "ConnectionClosed",
    "NotSent",
    "OutcomeUnknown",
    "ProtocolViolation",
    "TurnState",
    "Unsupported",
    "UnsupportedUrl",
]


_MODULES = ("agent", "aio", "errors", "sync", "transports")
"""Those of this package that may be reached as its attributes."""
_HOMES = (
    "tieline.errors",
    "tieline_client.errors",
    "tieline_client.transports",
    "tieline_client._replay",
    "tieline_client.aio",
    "tieline_client.agent",
)
"""Where the public names live; the first module that has one is its home."""
_BLOCKING = {"connect_sync": "connect", "connect_session_sync": "connect_session"}


def __getattr__(name: str) -> object:
    """Imports what is asked for (PEP 562): the commands begin in this package, and at once."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _BLOCKING:
        return getattr(import_module(f"{__name__}.sync"), _BLOCKING[name])
    if name in __all__:
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
