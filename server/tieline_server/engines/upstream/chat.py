"""From a create to the body of a chat completion."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tieline_server.core.create.settings import LOGPROBS, Settings
from tieline_server.core.create.tools import Tool
from tieline_server.core.effects import Prompt
from tieline_server.engines.client_tools import brought_tools, callable_tools
from tieline_server.engines.upstream.answer import ChatAnswer
from tieline_server.engines.upstream.faults import NEWER_LIMIT, Failure
from tieline_server.engines.upstream.fragments import Rendered, messages_of
from tieline_server.engines.upstream.modes import Request, Sent
from tieline_server.engines.upstream.prefaces import Preface, Prefaces
from tieline_server.engines.upstream.probe import Prober
from tieline_server.engines.upstream.replicas import Replica
from tieline_server.engines.upstream.tool_names import by_name, declared
from tieline_server.engines.upstream.truncation import SHORTER, room_of, start_of, tokens_in

STREAMED: Final = b',"stream":true,"stream_options":{"include_usage":true}}'

_encode: Final = msgspec.json.Encoder().encode


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A create, ready to be sent."""

    body: bytes
    tools: Mapping[str, Tool]
    tokens: int
    """How many tokens the prompt has, about."""
    logprobs: bool
    """Whether the client wants them."""

    def to(self, replica: Replica) -> Sent:
        """The same for every replica."""
        return Sent(self.body, ChatAnswer(self.tools, logprobs=self.logprobs))


class ChatMode:
    """Chat completions. ``contexts`` are the models' contexts, where they are known."""

    path = "chat/completions"
    counts: Sequence[str] = ("tokenize", "apply-template")

    def __init__(self, contexts: Mapping[str, int | None] | None = None) -> None:
        self.limit = "max_tokens"
        """The name of the limit: the one that every server knows, until one wants another."""
        self._contexts = {} if contexts is None else contexts
        self._prefaces = Prefaces(_make, _options)

    async def probe(self, prober: Prober) -> None:
        """Nothing: what a server lacks, it refuses when it is asked for."""

    def heavy(self, prompt: Prompt) -> bool:
        """Never: to join bytes takes no time."""
        return False

    def build(self, prompt: Prompt, *, room: int | None = None) -> ChatRequest:
        """The request; raises :class:`EngineError` for content that has no form upstream."""
        preface, chain = self._parts(prompt, room)
        most = prompt.max_output_tokens
        limit = b"" if most is None else b',"%b":%d' % (self.limit.encode(), most)
        return ChatRequest(
            body=b"".join((*_messages(preface, chain), preface.tail, limit, STREAMED)),
            tools=preface.tools,
            tokens=_estimate(preface, chain),
            logprobs=LOGPROBS in prompt.settings.include,
        )

    def estimate(self, prompt: Prompt) -> int:
        """About how many tokens the prompt has."""
        return _estimate(*self._parts(prompt))

    def counted(self, prompt: Prompt) -> bytes:
        """The body that asks what the messages come to: no limit, no stream."""
        preface, chain = self._parts(prompt)
        return b"".join((*_messages(preface, chain), preface.tail, b"}"))

    def again(
        self, prompt: Prompt, request: Request, replica: Replica, failure: Failure
    ) -> Request | None:
        """With the newer name of the limit, or with less of the history."""
        if failure.other_limit and self.limit != NEWER_LIMIT:
            self.limit = NEWER_LIMIT
            return self.build(prompt)
        if failure.too_long and prompt.settings.truncation == "auto":
            shorter = self.build(prompt, room=int(request.tokens * SHORTER))
            return shorter if shorter.tokens < request.tokens else None
        return None

    def _parts(self, prompt: Prompt, room: int | None = None) -> tuple[Preface, Rendered]:
        if room is None:
            room = room_of(prompt, self._contexts.get(prompt.model))
        chain = messages_of(prompt.chain, prompt.work, start=start_of(prompt, room))
        return self._prefaces.of(prompt, brought_tools(prompt.chain)), chain


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
    return tokens_in(len(preface.head) + len(preface.tail) + chain.size)


def _make(prompt: Prompt, extra: tuple[Tool, ...]) -> Preface:
    settings = prompt.settings
    named = by_name(callable_tools(settings, extra))
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
        "verbosity": settings.verbosity,
        "response_format": _response_format(settings),
        **settings.passed_on,
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
