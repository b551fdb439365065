"""The asynchronous face of the client."""

from tieline_client.aio.line import Lane, Line, connect
from tieline_client.aio.requests import (
    Call,
    Input,
    Json,
    Settings,
    ToolChoice,
    TurnSettings,
    tool_output,
)
from tieline_client.aio.stream import ResponseStream, Result

__all__ = [
    "Call",
    "Input",
    "Json",
    "Lane",
    "Line",
    "ResponseStream",
    "Result",
    "Settings",
    "ToolChoice",
    "TurnSettings",
    "connect",
    "tool_output",
]
