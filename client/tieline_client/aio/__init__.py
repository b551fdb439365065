"""The asynchronous face of the client."""

from tieline_client.aio.connection import Connection, Lane, connect
from tieline_client.aio.requests import (
    Call,
    Input,
    Json,
    Settings,
    ToolChoice,
    TurnSettings,
    tool_output,
)
from tieline_client.aio.session import Conversation, Session, connect_session
from tieline_client.aio.session_stream import SessionStream
from tieline_client.aio.stream import ResponseStream, Result

__all__ = [
    "Call",
    "Connection",
    "Conversation",
    "Input",
    "Json",
    "Lane",
    "ResponseStream",
    "Result",
    "Session",
    "SessionStream",
    "Settings",
    "ToolChoice",
    "TurnSettings",
    "connect",
    "connect_session",
    "tool_output",
]
