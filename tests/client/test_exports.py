"""The public names of the client."""

import tieline_client
from tieline_client import aio, sync

PUBLIC = {
    "Agent",
    "ApiError",
    "AuthenticationError",
    "Backoff",
    "BadRequest",
    "Call",
    "Cancelled",
    "Conflict",
    "Conversation",
    "ConnectTimeout",
    "ConnectionLost",
    "DeadlineExceeded",
    "FailedResponse",
    "IncompleteStream",
    "Input",
    "Lane",
    "Connection",
    "ConnectionClosed",
    "NotFound",
    "NotSent",
    "Options",
    "Outcome",
    "OutcomeUnknown",
    "PermissionDenied",
    "Policy",
    "ProtocolViolation",
    "RateLimited",
    "RepeatedCall",
    "RequestTimeout",
    "RequestTooLarge",
    "ResponseStream",
    "Result",
    "Run",
    "ServerError",
    "Session",
    "SessionStream",
    "Settings",
    "TielineError",
    "Tls",
    "Tool",
    "ToolDefinitionError",
    "Turn",
    "TurnLimitReached",
    "TurnState",
    "Unavailable",
    "Unsupported",
    "UnsupportedUrl",
    "connect",
    "connect_session",
    "connect_session_sync",
    "connect_sync",
    "tool_output",
}


def test_the_public_names_are_these() -> None:
    assert set(tieline_client.__all__) == PUBLIC
    assert all(hasattr(tieline_client, name) for name in PUBLIC)
    assert len(tieline_client.__all__) == len(PUBLIC)


def test_the_two_faces_have_the_same_verbs() -> None:
    names = ("Connection", "Lane", "ResponseStream", "Session", "Conversation", "SessionStream")
    for name in names:
        asynchronous = {verb for verb in dir(getattr(aio, name)) if not verb.startswith("_")}
        blocking = {verb for verb in dir(getattr(sync, name)) if not verb.startswith("_")}
        # Opened and closed by `connect` and `connect_session`; read by iterating.
        only_aio = {"aclose", "batch", "open", "close"}
        assert asynchronous - only_aio <= blocking
