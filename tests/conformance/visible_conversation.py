"""One scripted conversation over each connection, and what a client saw of it.

What is kept is shapes (``visible_shapes``): which event types, which members, which words.
"""

import asyncio
from typing import Any, Final, Protocol

import msgspec
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from tests.conformance.visible_shapes import Fields, Shapes
from tests.support.grpc_client import RawConnection
from tests.support.signal import PATIENCE
from tieline.codecs.json import encode
from tieline.codecs.proto import decode_event, request_to_proto
from tieline.errors import ERRORS

Json = dict[str, Any]

PATH: Final = "/v1/responses"
ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "error")

_FUNCTION: Final = {"type": "function", "name": "f", "parameters": {"type": "object"}}
_CUSTOM: Final = {"type": "custom", "name": "c"}
_MESSAGE: Final = {"type": "message", "text": "here it is"}
_CALL: Final = {"type": "function_call", "name": "f", "arguments": {"n": 1}}
_REASONING: Final = {"type": "reasoning", "text": "let me think", "summary": "thinking"}
_CUSTOM_CALL: Final = {"type": "custom_tool_call", "name": "c", "input": "free text"}
_LATE: Final = {
    "type": "error",
    "status": 500,
    "code": "server_error",
    "message": "Lost.",
    "after_tokens": 1,
}


def _rule(words: str, *emit: Json) -> Json:
    return {"id": words, "when": {"user_contains": words}, "emit": [*emit]}


def _refusal(code: str) -> Json:
    status = ERRORS[code].status
    error = {"type": "error", "status": status, "code": code, "message": "Refused."}
    return _rule(f"refuse {code}.", error)


RULES: Final = (
    {"id": "again", "when": {"last": "tool_output"}, "emit": _MESSAGE},
    *map(_refusal, ERRORS),
    _rule("say all", _REASONING, _MESSAGE, {"type": "refusal", "text": "no"}, _CALL, _CUSTOM_CALL),
    _rule("say some", _REASONING, _MESSAGE, {"type": "refusal", "text": "no"}, _CALL),
    _rule("call", _CALL),
    _rule("stall", {"type": "stall", "seconds": 600}),
    _rule("break", _MESSAGE, _LATE),
    _rule("be busy", _MESSAGE, _LATE | {"status": 503, "code": "server_is_overloaded"}),
    {"id": "else", "emit": _MESSAGE},
)

SETTINGS: Final[Json] = {
    "instructions": "be terse",
    "max_output_tokens": 500,
    "max_tool_calls": 3,
    "metadata": {"k": "v"},
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "prompt_cache_key": "key",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "someone",
    "service_tier": "default",
    "temperature": 0.25,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "tools": [_FUNCTION, _CUSTOM, {"type": "web_search"}],
    "tempratur": 1,
}
"""All that a response says again, a tool that nothing runs, and a member that does not exist."""

OPEN_SETTINGS: Final[Json] = {
    name: value for name, value in SETTINGS.items() if name != "include"
} | {"tools": [_FUNCTION]}


class Seen:
    """All that was seen."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        """Event type, or method and path -> the members of what came."""
        self.fields = Fields()
        """Protobuf messages of the server -> the fields that it fills."""
        self.refusals: dict[str, dict[str, str]] = {code: {} for code in ERRORS}
        """Error code -> wire -> how it came."""
        self.exchanges: list[str] = []
        """What was asked, the status, and the names of headers or metadata of the answer."""


class Talk(Protocol):
    """A connection that says client events and hears server events."""

    async def say(self, type: str, **members: Any) -> None:
        """Sends one client event."""

    async def hear(self) -> Json:
        """The next server event."""


async def until(talk: Talk, *types: str) -> Json:
    """Hears up to the first event of one of these types."""
    heard = []
    try:
        async with asyncio.timeout(PATIENCE):
            while (event := await talk.hear())["type"] not in types:
                heard.append(event["type"])
        return event
    except TimeoutError:
        raise AssertionError(f"none of {types} after {heard}") from None


async def turn(talk: Talk, words: Any, **members: Any) -> Json:
    """One create, and how it ended."""
    await talk.say("response.create", **{"model": "scripted", "input": words, **members})
    return await until(talk, *ENDS, "response.done")


def answers(ended: Json) -> list[Json]:
    """Outputs for all calls of a response."""
    return [
        {
            "type": f"{item['type']}_output",
            "call_id": item["call_id"],
            "output": "ok",
        }
        for item in ended["response"]["output"]
        if "call_id" in item
    ]


async def converse(talk: Talk) -> None:
    """Every event that a connection can have with a scripted engine."""
    first = await turn(talk, "say all", event_id="evt", **SETTINGS)
    chain = first["response"]["id"]
    await turn(talk, answers(first), previous_response_id=chain, stream_id="lane.1", store=True)
    await turn(talk, "hi", max_output_tokens=1)
    await turn(talk, "hi", generate=False)
    await turn(talk, "hi", context_management=[{"type": "compaction", "compact_threshold": 1000}])
    await turn(talk, "long " * 1200)
    await turn(talk, "stall", timeout_ms=1)
    await turn(talk, "break")
    await turn(talk, "hi", model="nobody", event_id="evt")
    await turn(talk, "hi", previous_response_id="resp_0")
    await _hold(talk)
    await _steer(talk)
    await _queue(talk)
    await _resume(talk)
    await talk.say("response.processed", response_id=chain)


async def _hold(talk: Talk) -> None:
    held = await turn(talk, "call", append=True, tools=[_FUNCTION])
    await talk.say("response.append", input=[])
    await until(talk, "error")
    await talk.say("response.append", input=answers(held))
    await until(talk, *ENDS)
    await turn(talk, "call", append=True, tools=[_FUNCTION])
    await talk.say("response.cancel")
    await until(talk, *ENDS)


async def _steer(talk: Talk) -> None:
    await talk.say("response.steer", previous_response_id="resp_0", input="shorter")
    await until(talk, "response.steer.failed")
    await talk.say("response.create", model="scripted", input="stall")
    begun = await until(talk, "response.in_progress")
    steer = {"previous_response_id": begun["response"]["id"], "input": "shorter"}
    await talk.say("response.steer", **steer)
    await until(talk, "response.steer.accepted")
    await until(talk, "response.incomplete")
    await until(talk, "response.completed")


async def _queue(talk: Talk) -> None:
    await talk.say("response.create", model="scripted", input="stall", stream_id="lane.1")
    await until(talk, "response.in_progress")
    await talk.say("response.create", model="scripted", input="hi", stream_id="lane.2")
    await until(talk, "response.queued")
    await talk.say("response.cancel", stream_id="lane.1")
    await until(talk, "response.incomplete")
    await until(talk, "response.completed")


async def _resume(talk: Talk) -> None:
    ended = await turn(talk, "hi", resumable=True)
    await talk.say("response.resume", response_id=ended["response"]["id"], after=1)
    await until(talk, "response.completed")


class WebSocketTalk:
    """One WebSocket."""

    def __init__(self, socket: ClientWebSocketResponse, seen: Seen, wire: str) -> None:
        self._socket = socket
        self._seen = seen
        self._wire = wire

    async def say(self, type: str, **members: Any) -> None:
        """One text frame."""
        await self._socket.send_json({"type": type, **members})

    async def hear(self) -> Json:
        """The next text frame."""
        frame = await self._socket.receive()
        assert frame.type is WSMsgType.TEXT, frame
        event: Json = frame.json()
        self._seen.shapes.add(event["type"], event, self._wire)
        return event


class GrpcTalk:
    """One ``Converse`` stream."""

    def __init__(self, connection: RawConnection, seen: Seen) -> None:
        self._connection = connection
        self._seen = seen

    async def say(self, type: str, **members: Any) -> None:
        """One message."""
        said = msgspec.json.encode({"type": type, **members})
        await self._connection.send(request_to_proto(said))

    async def hear(self) -> Json:
        """The next event, as JSON."""
        message = await self._connection.next()
        assert message is not None
        self._seen.fields.add(message)
        event: Json = msgspec.json.decode(encode(decode_event(message)))
        return event


async def stream(session: ClientSession, seen: Seen, wire: str, words: Any, **body: Any) -> Json:
    """One create over SSE, and its last event."""
    body = {"model": "scripted", "input": words, "stream": True, **body}
    async with session.post(PATH, json=body) as answer:
        assert answer.status == 200, await answer.text()
        last: Json = {}
        async for line in answer.content:
            name, _, data = line.decode().strip().partition(": ")
            if name == "data" and data != "[DONE]":
                last = msgspec.json.decode(data)
                seen.shapes.add(last["type"], last, wire)
    return last


async def converse_by_requests(session: ClientSession, seen: Seen) -> None:
    """The same where each create is a request of its own."""
    first = await stream(session, seen, "sse", "say all", event_id="evt", **SETTINGS)
    chain = first["response"]["id"]
    await stream(session, seen, "sse", answers(first), previous_response_id=chain)
    await stream(session, seen, "sse", "hi", max_output_tokens=1)
    await stream(session, seen, "sse", "stall", timeout_ms=1)
    await stream(session, seen, "sse", "break")


async def refuse(talk: Talk, seen: Seen, wire: str) -> None:
    """Every code of the table, as an event."""
    for code in ERRORS:
        event = await turn(talk, f"refuse {code}.")
        seen.refusals[code][wire] = faced(code, event["status"], event["error"])


def faced(code: str, status: int, error: Json) -> str:
    """How an error came: as its row says, or how else."""
    row = ERRORS[code]
    found = (status, error["type"], error["code"])
    return "as its row says" if found == (row.status, row.type, code) else str(found)
