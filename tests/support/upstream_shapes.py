"""What an upstream says in each mode, so that one test can run over all of them."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from tests.support.upstream_server import (
    Handler,
    UpstreamServer,
    call,
    chunk,
    event,
    streamed,
    usage,
)
from tests.support.upstream_server import talk as talk_by_chat
from tieline_server.engines.bpe import shipped
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.choice import Wanted
from tieline_server.models.packaged import find

TOKENIZER = find()
"""The packaged model, whose vocabulary is also that of the package."""

_ids = itertools.count(1)


def said(kind: str, **members: Any) -> bytes:
    """An event of a Responses stream."""
    return event({"type": f"response.{kind}", **members})


def ended(
    status: str = "completed",
    *,
    response_id: str | None = None,
    used: tuple[int, int] | None = (7, 1),
    reason: str | None = None,
    error: Any = None,
) -> bytes:
    """Its last event."""
    usage = None if used is None else {"input_tokens": used[0], "output_tokens": used[1]}
    return said(
        status,
        response={
            "id": response_id or f"resp_up_{next(_ids)}",
            "status": status,
            "usage": usage,
            "incomplete_details": None if reason is None else {"reason": reason},
            "error": error,
        },
    )


def item(kind: str, **members: Any) -> bytes:
    """An item is whole."""
    return said("output_item.done", output_index=0, item={"type": kind, **members})


def added(kind: str, **members: Any) -> bytes:
    """An item begins."""
    return said("output_item.added", output_index=0, item={"type": kind, **members})


def text(piece: str) -> bytes:
    """A piece of text."""
    return said("output_text.delta", delta=piece)


def _responses_call(name: str, *arguments: str) -> list[bytes]:
    whole = "".join(arguments)
    pieces = [said("function_call_arguments.delta", delta=each) for each in arguments]
    begin = added("function_call", name=name, call_id="call_1", arguments="")
    done = item("function_call", name=name, call_id="call_1", arguments=whole)
    return [begin, *pieces, done]


def _chat_call(name: str, *arguments: str) -> list[bytes]:
    return [call(0, id="call_1", name=name), *(call(0, each) for each in arguments)]


def ids_of(piece: str) -> list[int]:
    """A piece of text as the packaged model's ids."""
    return shipped().encode(piece)


def _completion(piece: str, reason: str | None = None) -> bytes:
    ids = ids_of(piece) if reason is None else []
    choice = {"index": 0, "text": piece, "token_ids": ids, "finish_reason": reason}
    return event({"choices": [choice]})


def _completion_call(name: str, *arguments: str) -> list[bytes]:
    head = f'{{"name":"{name}","arguments":'
    return [_completion(each) for each in (head, *arguments, "}")]


class Shape(NamedTuple):
    """One mode: how to ask in it, and what is answered there."""

    name: str
    how: Wanted
    text: Callable[[str], bytes]
    call: Callable[..., list[bytes]]
    stop: list[bytes]
    """The end of an answer that used 7 and 1 tokens."""
    length: list[bytes]
    wrong: bytes
    """A piece of text of the wrong type."""
    ids: Callable[[str], list[int]] = ids_of

    @property
    def good(self) -> Handler:
        """Says ``fine``."""
        return streamed(self.text("fine"), *self.stop)

    def __str__(self) -> str:
        return self.name


CHAT = Shape(
    name="chat",
    how=Wanted(mode="chat"),
    text=lambda piece: chunk(content=piece),
    call=_chat_call,
    stop=[chunk("stop"), usage(7, 1)],
    length=[chunk("length"), usage(7, 1)],
    wrong=chunk(content=5),
)
RESPONSES = Shape(
    name="responses",
    how=Wanted(mode="responses"),
    text=text,
    call=_responses_call,
    stop=[ended()],
    length=[ended("incomplete", reason="max_output_tokens")],
    wrong=said("output_text.delta", delta=5),
)

COMPLETIONS = Shape(
    name="completions",
    how=Wanted(mode="completions", tokenizer=TOKENIZER),
    text=_completion,
    call=_completion_call,
    stop=[_completion("", "stop"), usage(7, 1)],
    length=[_completion("", "length"), usage(7, 1)],
    wrong=event({"choices": [{"index": 0, "text": 5}]}),
)

SHAPES = (CHAT, COMPLETIONS, RESPONSES)


async def talk(
    server: UpstreamServer, body: dict[str, Any], request: web.Request
) -> web.StreamResponse:
    """Answers as a model would, in the mode that it is asked in (``upstream_server.talk``)."""
    if "messages" in body:
        return await talk_by_chat(server, body, request)
    shape = COMPLETIONS if "prompt" in body else RESPONSES
    if not body.get("stream"):
        usage = {"prompt_tokens": len(body["prompt"])}
        return web.json_response({"choices": [{"text": "7"}], "usage": usage})
    if body.get("structured_outputs") or body.get("tool_choice") not in (None, "auto", "none"):
        pieces = shape.call("get_weather", '{"city":"Os', 'lo","unit":"celsius"}')
        return await streamed(*pieces, *shape.stop)(server, body, request)
    words = 200 if len(json.dumps(body.get("prompt") or body["input"])) > 500 else 5
    most = min(words, body.get("max_tokens") or body.get("max_output_tokens") or words)
    said = [shape.text(" word") for _ in range(most)]
    last = shape.length if most < words else shape.stop
    return await streamed(*said, *last)(server, body, request)


@asynccontextmanager
async def opened(
    shape: Shape, *servers: UpstreamServer, **options: Any
) -> AsyncIterator[UpstreamEngine]:
    """An engine that has asked what there is; what it asked is forgotten."""
    for server in servers:
        server.otherwise = talk
    engine = UpstreamEngine([server.url for server in servers], how=shape.how, **options)
    await engine.probe()
    for server in servers:
        server.bodies.clear()
    try:
        yield engine
    finally:
        await engine.close()
