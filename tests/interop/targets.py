"""The servers that interop runners are pointed at, each with what its scenario needs.

All are real servers with the scripted engine, but for ``newer``: that one plays a revision of the
schema that does not exist yet. Two stand behind a relay that waits for a word in what the server
says, and then cuts the connection, or has the server drain.
"""

import hashlib
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from tests.client.relay import Relay
from tests.support.server_process import ServerProcess, serving, write_script
from tieline.v1 import events_pb2, responses_pb2, service_pb2

KEY: Final = "sk-interop"
WORDS: Final = "one two three four five six seven eight nine ten"
LETTERS: Final = "Grüße aus Köln 🌿 naïve café 漢字かな 👩‍👩‍👧 Привет مرحبا 🇳🇴 done"
# One token of the vocabulary is 64 of these.
LARGE: Final = "=" * (5 * 1024 * 1024)

CUT_AT: Final = b" four"
DRAIN_AT: Final = b" two"
"""Words of the slow text after which a connection is cut, and a server drains."""


def _says(name: str, word: str, text: str, **more: Any) -> dict[str, Any]:
    emit = {"type": "message", "text": text}
    return {"id": name, "when": {"user_contains": word}, "emit": emit, **more}


RULES: Final[list[dict[str, Any]]] = [
    {
        "id": "told",
        "when": {"last": "tool_output"},
        "emit": {"type": "message", "text": "It is {output}."},
    },
    {
        "id": "weather",
        "when": {"user_contains": "weather", "tool": ["function", "get_weather"]},
        "emit": {"type": "function_call", "name": "get_weather", "arguments": {"city": "Oslo"}},
    },
    {
        "id": "refuse",
        "when": {"user_contains": "please refuse"},
        "emit": {
            "type": "error",
            "status": 429,
            "code": "rate_limit_exceeded",
            "message": "Later.",
        },
    },
    _says("slow", "count slowly", WORDS, pace={"tokens_per_second": 5}),
    _says("more", "once more", 'You then said "{user}".'),
    _says("letters", "other letters", LETTERS),
    _says("large", "five mebibytes", LARGE),
    _says("hello", "hello", "Hello from the script."),
]


@contextmanager
def _server(folder: Path, *arguments: str) -> Iterator[ServerProcess]:
    script = write_script(folder, rules=RULES)
    with serving("--script", script, "--reflection", *arguments) as server:
        yield server


def _keys(folder: Path) -> str:
    keys = folder / "keys.toml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    keys.write_text(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "interop"\n')
    keys.chmod(0o600)
    return str(keys)


FUTURE: Final = "Hello from the future."
_LATER: Final = 99
"""A value that no enum of ours has."""

_NEW_FIELD: Final = b"\xfa\x3f\x02\x08\x01"
"""Field 1023, a message, which no revision has."""


def _later_turn() -> service_pb2.ConverseResponse:
    """A turn as a later revision may say it."""
    response = responses_pb2.Response(id="resp_later", model="later")
    response.status = _LATER  # type: ignore[assignment]
    beat = events_pb2.Heartbeat()
    beat.phase = _LATER  # type: ignore[assignment]
    ended = responses_pb2.Response()
    ended.CopyFrom(response)
    part = ended.output.add().message.parts.parts.add().text
    part.type, part.text = "output_text", FUTURE
    events = [
        events_pb2.ServerEvent(response=response, response_created=events_pb2.ResponseCreated()),
        events_pb2.ServerEvent(),
        events_pb2.ServerEvent(heartbeat=beat),
        *(
            events_pb2.ServerEvent(
                output_text_delta=events_pb2.OutputTextDelta(item_id="msg_later", delta=piece)
            )
            for piece in (FUTURE[:10], FUTURE[10:])
        ),
        events_pb2.ServerEvent(
            response=ended,
            response_completed=events_pb2.ResponseCompleted(),
            ending=events_pb2.ENDING_COMPLETED,
        ),
    ]
    for number, event in enumerate(events):
        event.sequence_number = number
        event.MergeFromString(_NEW_FIELD)
    return service_pb2.ConverseResponse(events=events)


def _later_start() -> service_pb2.ConverseResponse:
    """What that revision answers to the start of a session."""
    started = events_pb2.SessionStarted(session_id="later", revision="2099-01-01")
    started.extensions.append("foresight")
    started.limits["thoughts"] = 1
    event = events_pb2.ServerEvent(session_started=started)
    event.MergeFromString(_NEW_FIELD)
    return service_pb2.ConverseResponse(events=[event])


async def _later(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    await context.send_initial_metadata(())
    async for data in requests:
        request = service_pb2.ConverseRequest.FromString(data)
        if request.HasField("session_start"):
            yield _later_start().SerializeToString()
        if not request.HasField("response_create"):
            continue
        answer = _later_turn()
        for event in answer.events:
            if request.HasField("stream_id"):
                event.stream_id = request.stream_id
            if event.HasField("response_created") and request.HasField("event_id"):
                event.response_created.event_id = request.event_id
        yield answer.SerializeToString()


@asynccontextmanager
async def _newer() -> AsyncIterator[str]:
    """A server of a revision that does not exist yet, as far as one turn goes."""
    server = grpc.aio.server()
    service = service_pb2.DESCRIPTOR.services_by_name["ResponsesService"].full_name
    handler: Any = grpc.stream_stream_rpc_method_handler(_later)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Converse": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def targets(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Starts all servers for one runner; what it gives is the file that the runner gets."""
    with (
        _server(folder) as plain,
        _server(folder, "--api-keys", _keys(folder)) as keyed,
        _server(folder) as drained,
    ):

        def drain(data: bytes) -> None:
            if DRAIN_AT in data:
                drained.signal(signal.SIGTERM)

        def cut(data: bytes) -> None:
            if CUT_AT in data:
                cutting.reset()

        async with (
            Relay(plain.address, heard=cut) as cutting,
            Relay(drained.address, heard=drain) as draining,
            _newer() as newer,
        ):
            yield {
                "address": plain.address,
                "keyed": keyed.address,
                "key": KEY,
                "cut": cutting.address,
                "newer": newer,
                "drains": draining.address,
            }
