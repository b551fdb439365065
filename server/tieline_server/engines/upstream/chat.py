"""From a create to the body of a chat completion.

What comes again with every create (instructions, tools, the text format) is encoded once for a
lane and used again for as long as the lane sends the same.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tieline_server.core.effects import Prompt
from tieline_server.core.settings import Settings, Tool
from tieline_server.engines.upstream.fragments import Rendered, messages_of
from tieline_server.engines.upstream.tool_names import by_name, declared

LANES: Final = 1024
"""Lanes whose preface is kept."""

BYTES_PER_TOKEN: Final = 4
"""What the estimate of a prompt's size goes by."""

LOGPROBS: Final = "message.output_text.logprobs"
"""The member of ``include`` that asks for log probabilities."""

STREAMED: Final = b',"stream":true,"stream_options":{"include_usage":true}}'

_encode: Final = msgspec.json.Encoder().encode


class Preface(Struct, frozen=True, kw_only=True):
    """What a lane's settings come to. ``head`` ends where the messages begin."""

    settings: Settings
    model: str
    extra: tuple[Tool, ...]
    head: bytes
    told: bool
    """Whether the head has a message already."""
    tail: bytes
    tools: Mapping[str, Tool]
    """The tools that the model may call, by their names upstream."""


class Request(Struct, frozen=True, kw_only=True):
    """A create, ready to be sent."""

    body: bytes
    tools: Mapping[str, Tool]
    tokens: int
    """How many tokens the prompt has, about."""


class ChatRequests:
    """Builds the bodies of chat completions."""

    def __init__(self) -> None:
        self.limit = "max_tokens"
        """The name of the limit: the one that every server knows, until one wants another."""
        self._prefaces: OrderedDict[str, Preface] = OrderedDict()

    def build(self, prompt: Prompt) -> Request:
        """The request; raises :class:`EngineError` for content that has no form upstream."""
        chain = messages_of(prompt.tip, prompt.work)
        preface = self._preface(prompt, chain)
        most = prompt.max_output_tokens
        limit = b"" if most is None else b',"%b":%d' % (self.limit.encode(), most)
        return Request(
            body=b"".join((*_messages(preface, chain), preface.tail, limit, STREAMED)),
            tools=preface.tools,
            tokens=_estimate(preface, chain),
        )

    def estimate(self, prompt: Prompt) -> int:
        """About how many tokens the prompt has."""
        chain = messages_of(prompt.tip, prompt.work)
        return _estimate(self._preface(prompt, chain), chain)

    def counted(self, prompt: Prompt) -> bytes:
        """The body that asks what the messages come to: no limit, no stream."""
        chain = messages_of(prompt.tip, prompt.work)
        preface = self._preface(prompt, chain)
        return b"".join((*_messages(preface, chain), preface.tail, b"}"))

    def _preface(self, prompt: Prompt, chain: Rendered) -> Preface:
        kept = self._prefaces.get(prompt.session)
        if kept is None or not _serves(kept, prompt, chain):
            kept = self._prefaces[prompt.session] = _make(prompt, chain.tools)
            prompt.work.render += len(kept.head) + len(kept.tail)
            if len(self._prefaces) > LANES:
                self._prefaces.popitem(last=False)
        self._prefaces.move_to_end(prompt.session)
        return kept


def _messages(preface: Preface, chain: Rendered) -> "list[bytes | memoryview]":
    """The body up to the end of the messages."""
    pieces = [preface.head, *chain.pieces()]
    if not preface.told:
        # The comma before the first one.
        first = next((at for at, piece in enumerate(pieces) if at and len(piece)), 0)
        if first:
            pieces[first] = pieces[first][1:]
    return pieces


def _estimate(preface: Preface, chain: Rendered) -> int:
    return -(-(len(preface.head) + len(preface.tail) + chain.size) // BYTES_PER_TOKEN)


def _serves(kept: Preface, prompt: Prompt, chain: Rendered) -> bool:
    """Whether it would come out the same.

    A lane that sends the same bytes again gets the same objects (``settings.Recall``).
    """
    mine, theirs = kept.settings, prompt.settings
    if kept.extra is not chain.tools or kept.model != prompt.model:
        return False
    return mine is theirs or (
        mine.instructions is theirs.instructions
        and mine.tools is theirs.tools
        and mine.tool_choice is theirs.tool_choice
        and _options(mine) == _options(theirs)
    )


def _make(prompt: Prompt, extra: tuple[Tool, ...]) -> Preface:
    settings = prompt.settings
    named = by_name((*settings.tools.offered, *extra))
    choice = settings.tool_choice
    offered = named
    if choice.allowed is not None:
        offered = {name: tool for name, tool in named.items() if choice.admits(tool)}
    told = b""
    if settings.instructions:
        told = b'{"role":"system","content":%b}' % _encode(settings.instructions)
    options = {**_tool_options(settings, offered), **_options(settings)}
    members = _encode(options)[1:-1]
    return Preface(
        settings=settings,
        model=prompt.model,
        extra=extra,
        head=b'{"model":%b,"messages":[' % _encode(prompt.model) + told,
        told=bool(told),
        tail=b"]," + members if members else b"]",
        tools=offered,
    )


def _tool_options(settings: Settings, offered: Mapping[str, Tool]) -> dict[str, Any]:
    """Where no tool can be called, chat completions take none of these members."""
    if not offered:
        return {}
    choice = settings.tool_choice
    tool_choice: Any = choice.mode
    if choice.mode == "required" and choice.allowed is not None and len(offered) == 1:
        tool_choice = {"type": "function", "function": {"name": next(iter(offered))}}
    options: dict[str, Any] = {
        "tools": [declared(name, tool) for name, tool in offered.items()],
        "tool_choice": tool_choice,
    }
    if not settings.parallel_tool_calls:
        options["parallel_tool_calls"] = False
    return options


def _options(settings: Settings) -> dict[str, Any]:
    """How to sample. What the client left out, the upstream decides."""
    echo = settings.echo
    options: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "presence_penalty": echo.get("presence_penalty") or None,
        "frequency_penalty": echo.get("frequency_penalty") or None,
        "reasoning_effort": settings.reasoning_effort,
        "response_format": _response_format(settings),
    }
    if LOGPROBS in settings.include:
        options |= {"logprobs": True, "top_logprobs": settings.top_logprobs or None}
    return {name: value for name, value in options.items() if value is not None}


def _response_format(settings: Settings) -> dict[str, Any] | None:
    form = settings.format
    if form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": form.name or "answer", "schema": Raw(form.schema or b"{}")}
    if form.strict is not None:
        schema["strict"] = form.strict
    return {"type": "json_schema", "json_schema": schema}
