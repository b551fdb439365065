"""What the model says: the events of its answers over both interfaces, made beforehand."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

CALLS: Final = "calls"
"""The model that always calls a tool."""

IN_STEP: Final = "in-step"
"""The model that says word after word at its pace, a word of every stream at each step: so do
servers that batch, which is all of them."""

APART: Final = "apart"
"""The same, each stream at its own time: no two words come together."""

MODELS: Final = (CALLS, IN_STEP, APART)

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"

WORD: Final = " go"
"""One token."""

TOOL: Final = "read_file"
ARGUMENTS: Final = ('{"path":', '"src/', "main", '.py"}')
"""What the tool is called with, a token each."""

NUMBER: Final = b"@@"
"""Stands in ids for the number of the answer."""

INPUT_TOKENS: Final = 1000


class Answer(NamedTuple):
    """An answer's events, each a block of server-sent events."""

    begin: bytes
    deltas: tuple[bytes, ...]
    end: bytes

    @property
    def whole(self) -> bytes:
        """All of them."""
        return self.begin + b"".join(self.deltas) + self.end


def call(path: str) -> Answer:
    """A call of ``TOOL`` over the interface at ``path``."""
    return _chat_call() if path == CHAT else _responses_call()


def words(path: str, count: int) -> Answer:
    """So many words over the interface at ``path``."""
    return _chat_words(count) if path == CHAT else _responses_words(count)


def response(model: str) -> bytes:
    """A response that says nothing, whole."""
    return _encode({**_head(model), "status": "completed", "output": []})


def _head(model: str) -> dict[str, Any]:
    """What every response of a model has."""
    return {
        "id": "resp_@@",
        "object": "response",
        "created_at": 0,
        "model": model,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _chat_call() -> Answer:
    function = {"name": TOOL, "arguments": ""}
    opening = {"index": 0, "id": "call_@@", "type": "function", "function": function}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in ARGUMENTS]
    begin = {"role": "assistant", "content": None, "tool_calls": [opening]}
    deltas = [{"tool_calls": [piece]} for piece in pieces]
    return _chat(CALLS, begin, deltas, reason="tool_calls")


def _chat_words(count: int) -> Answer:
    begin = {"role": "assistant", "content": ""}
    return _chat(IN_STEP, begin, [{"content": WORD}] * count, reason="stop")


def _chat(
    model: str, begin: dict[str, Any], deltas: Sequence[dict[str, Any]], *, reason: str
) -> Answer:
    head = {"id": "chatcmpl-@@", "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _data({**head, "choices": [choice]})

    count = len(deltas)
    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": count,
        "total_tokens": INPUT_TOKENS + count,
    }
    end = chunk({}, reason) + _data({**head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    return Answer(chunk(begin), tuple(map(chunk, deltas)), end)


def _responses_call() -> Answer:
    item = {"type": "function_call", "id": "fc_@@", "call_id": "call_@@", "name": TOOL}
    arguments = "".join(ARGUMENTS)
    begun = {**item, "arguments": "", "status": "in_progress"}
    ended = {**item, "arguments": arguments, "status": "completed"}
    place = {"item_id": "fc_@@", "output_index": 0}
    kind = "response.function_call_arguments"
    events = _Events(CALLS)
    return Answer(
        events.begin() + events.event("response.output_item.added", output_index=0, item=begun),
        tuple(events.event(f"{kind}.delta", **place, delta=piece) for piece in ARGUMENTS),
        events.event(f"{kind}.done", **place, name=TOOL, arguments=arguments)
        + events.event("response.output_item.done", output_index=0, item=ended)
        + events.end(ended, len(ARGUMENTS)),
    )


def _responses_words(count: int) -> Answer:
    text = WORD * count
    item = {"type": "message", "id": "msg_@@", "role": "assistant"}
    part = {"type": "output_text", "annotations": [], "logprobs": []}
    begun = {**item, "status": "in_progress", "content": []}
    ended = {**item, "status": "completed", "content": [{**part, "text": text}]}
    place = {"item_id": "msg_@@", "output_index": 0, "content_index": 0}
    kind = "response.output_text"
    events = _Events(IN_STEP)
    return Answer(
        events.begin()
        + events.event("response.output_item.added", output_index=0, item=begun)
        + events.event("response.content_part.added", **place, part={**part, "text": ""}),
        tuple(
            events.event(f"{kind}.delta", **place, delta=WORD, logprobs=[]) for _ in range(count)
        ),
        events.event(f"{kind}.done", **place, text=text, logprobs=[])
        + events.event("response.content_part.done", **place, part={**part, "text": text})
        + events.event("response.output_item.done", output_index=0, item=ended)
        + events.end(ended, count),
    )


class _Events:
    """Events of one response, numbered."""

    def __init__(self, model: str) -> None:
        self._number = 0
        self._response = _head(model)

    def event(self, kind: str, **members: Any) -> bytes:
        """The next event."""
        data = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: %b\n" % kind.encode() + _data(data)

    def begin(self) -> bytes:
        """The events with which a response begins."""
        response = {**self._response, "status": "in_progress", "output": []}
        return b"".join(
            self.event(f"response.{kind}", response=response) for kind in ("created", "in_progress")
        )

    def end(self, item: dict[str, Any], tokens: int) -> bytes:
        """The event with which it ends."""
        usage = {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + tokens,
        }
        response = {**self._response, "status": "completed", "output": [item], "usage": usage}
        return self.event("response.completed", response=response)


_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


def _data(value: Any) -> bytes:
    return b"data: %b\n\n" % _encode(value)
