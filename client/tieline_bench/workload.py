"""What is asked of the servers: scripted answers, the key, the requests of each transport."""

import hashlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tieline.codecs import json, proto
from tieline.requests import SessionStart

GRPC: Final = "grpc"
WEBSOCKET: Final = "websocket"
SSE: Final = "sse"
TRANSPORTS: Final = (GRPC, WEBSOCKET, SSE)

KEY: Final = "bench-key"
"""The API key of the run: the product checks keys while it is measured."""

MODEL: Final = "scripted"
WORD: Final = " go"
"""One token of the scripted engine's vocabulary: text of n words is n deltas."""

DELTAS: Final = 20
EVENTS: Final = 28
"""Events of a turn of text: 4 that begin it, the deltas, 4 that end it."""
ENDING: Final = 4

INSTRUCTIONS_BYTES: Final = 700
INPUT_BYTES: Final = 1000
TOOLS_BYTES: Final = 20_000

PROSE: Final = "The quick brown fox jumps over the lazy dog and goes home before it rains again. "
STREAMS: Final = 16
RATE: Final = 1000
"""Tokens a second of each stream."""

ANSWER: Final = "answer"
STREAM: Final = "stream"
"""What the user says to get a short answer, or a long one at ``RATE``."""


class Files(NamedTuple):
    """What the product is started with."""

    script: Path
    keys: Path


def write(folder: Path, *, tokens: int) -> Files:
    """Writes the script, whose long answer has so many ``tokens``, and the file of keys."""
    script = {
        "models": [MODEL],
        "rules": [
            {
                "id": STREAM,
                "when": {"user_contains": STREAM},
                "emit": {"type": "message", "text": WORD * tokens},
                "pace": {"tokens_per_second": RATE},
            },
            {"id": ANSWER, "emit": {"type": "message", "text": WORD * DELTAS}},
        ],
    }
    files = Files(folder / "script.json", folder / "keys.toml")
    files.script.write_bytes(msgspec.json.encode(script))
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    files.keys.write_text(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "bench"\n')
    return files


def keeps_state(folder: Path, model: str) -> tuple[str, str]:
    """The flag of a file of settings: ``model``'s upstream keeps state for it."""
    path = folder / "state.toml"
    path.write_text(
        f'[models.{model}]\nmodel = "{model}"\nupstream_mode = "responses"\nupstream_state = true\n'
    )
    return "--config", str(path)


def create(
    transport: str,
    says: str,
    *,
    previous: str | None = None,
    tools: bool = False,
    resumable: bool = False,
) -> bytes:
    """A create with about ``INPUT_BYTES`` of new input, as ``transport`` sends it.

    ``tools`` sends ``TOOLS_BYTES`` of them, in full.
    """
    content = [{"type": "input_text", "text": f"{says}: {prose(INPUT_BYTES if tools else 100)}"}]
    members: dict[str, Any] = {
        "model": MODEL,
        "store": False,
        "instructions": prose(INSTRUCTIONS_BYTES),
        "input": [{"type": "message", "role": "user", "content": content}],
    }
    if previous is not None:
        members["previous_response_id"] = previous
    if resumable:
        members["resumable"] = True
    if tools:
        members["tools"] = tool_list(TOOLS_BYTES)
    if transport == SSE:
        return msgspec.json.encode({**members, "stream": True})
    event = msgspec.json.encode({"type": "response.create", **members})
    if transport == WEBSOCKET:
        return event
    return proto.encode_request(json.RequestDecoder().decode(event)).SerializeToString()


def prose(size: int) -> str:
    """So many characters of plain English."""
    return (PROSE * (size // len(PROSE) + 1))[:size]


def session_start() -> bytes:
    """The first message of a gRPC connection: every event as it was made."""
    return proto.encode_request(SessionStart(merge="never")).SerializeToString()


def tool_list(size: int) -> list[dict[str, Any]]:
    """Function tools of about ``size`` bytes of JSON, of the shape that agents send."""
    tools: list[dict[str, Any]] = []
    while len(msgspec.json.encode(tools)) < size:
        tools.append(_tool(len(tools)))
    return tools


def _tool(number: int) -> dict[str, Any]:
    names = ("path", "pattern", "limit")
    described = {name: {"type": "string", "description": f"The {name}. " * 8} for name in names}
    schema = {
        "type": "object",
        "properties": described,
        "required": list(names),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": f"tool_{number}",
        "description": "Looks at the files of a project and says what is in them. " * 6,
        "parameters": schema,
        "strict": True,
    }
