"""What the model was asked last, and whether the whole conversation was in it."""

from http.client import HTTPConnection
from typing import NamedTuple

import msgspec

from tieline_bench.clients import LoadError
from tieline_bench.model.server import LAST, TRANSPORT
from tieline_bench.processes import Server


class _Call(msgspec.Struct):
    id: str


class _Message(msgspec.Struct):
    role: str = ""
    tool_calls: list[_Call] = []
    tool_call_id: str | None = None
    type: str = "message"
    call_id: str | None = None


class _Body(msgspec.Struct):
    messages: list[_Message] = []
    input: list[_Message] = []


class Asked(NamedTuple):
    """The body of a request, and how many calls it had, each with its output."""

    body: bytes
    calls: int


def last_asked(model: Server) -> Asked:
    """The last request to the model.

    Raises :class:`LoadError` where calls and outputs do not belong together, in order.
    """
    body = last_body(model)
    return Asked(body, calls_in(body))


def last_body(model: Server) -> bytes:
    """The last request to the model, whatever is in it."""
    connection = HTTPConnection(model.addresses[TRANSPORT])
    connection.request("GET", LAST)
    body = connection.getresponse().read()
    connection.close()
    return body


def calls_in(body: bytes) -> int:
    """How many calls with outputs a request has; raises as :func:`last_asked`."""
    decoded = msgspec.json.decode(body, type=_Body)
    calls = [call.id for message in decoded.messages for call in message.tool_calls]
    calls += [item.call_id or "" for item in decoded.input if item.type == "function_call"]
    outputs = [each.tool_call_id for each in decoded.messages if each.role == "tool"]
    outputs += [each.call_id for each in decoded.input if each.type == "function_call_output"]
    if calls != outputs:
        raise LoadError("what the model was sent has calls without their outputs")
    return len(calls)
