"""From a create to the body of a Responses request, and what the upstream keeps of it.

Where the upstream keeps responses, a turn sends what is new: the link that was answered last
remembers the upstream's id of that answer, for each replica, and what came behind it is all that
goes. The answer's own items count as known there as long as the chain has them as they were said;
where it has not (a cut answer), and where the upstream has lost the response, everything goes.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tieline.items import Message
from tieline_server.core.create.settings import LOGPROBS, Settings
from tieline_server.core.create.tools import Tool
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.client_tools import brought_tools, callable_tools
from tieline_server.engines.upstream.faults import Failure
from tieline_server.engines.upstream.items import Items, items_of
from tieline_server.engines.upstream.modes import Request, Sent
from tieline_server.engines.upstream.prefaces import Preface, Prefaces
from tieline_server.engines.upstream.probe import Prober, UpstreamError
from tieline_server.engines.upstream.replicas import Replica
from tieline_server.engines.upstream.response_answer import ResponseAnswer
from tieline_server.engines.upstream.tool_names import by_name, declared
from tieline_server.engines.upstream.truncation import SHORTER, room_of, start_of, tokens_in

KEPT: Final = "upstream.kept"
"""The memo of a link: what each replica keeps that ends with an answer to it."""

CUT: Final = "incomplete"
"""Status of a message that does not stand in the chain as it was said."""

LEAST: Final = 16
"""The least ``max_output_tokens`` that OpenAI takes; what is probed asks for that."""

CUSTOM: Final = (
    {"type": "message", "role": "user", "content": "hello"},
    {"type": "custom_tool_call", "call_id": "call_1", "name": "echo", "input": "hello"},
    {"type": "custom_tool_call_output", "call_id": "call_1", "output": "hello"},
)
"""What only an upstream that knows custom tools counts."""

_encode: Final = msgspec.json.Encoder().encode


class Kept(Struct, frozen=True):
    """An answer that the upstream keeps, and the types of its items."""

    response_id: str
    kinds: tuple[str, ...]


class _Id(Struct, frozen=True):
    id: str


_id: Final = msgspec.json.Decoder(_Id)


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    """A create, ready to be sent."""

    prompt: Prompt
    preface: Preface
    chain: Items
    keeps: bool
    """Whether the upstream shall keep the answer."""
    links: Mapping[str, tuple[Kept, tuple[ChainNode, ...]]] = {}
    """What replicas keep, by their URLs, with the links behind it."""
    start: ChainNode | None = None
    custom: bool = True

    @property
    def tokens(self) -> int:
        """How many tokens the prompt has, about."""
        preface = self.preface
        return tokens_in(len(preface.head) + len(preface.tail) + self.chain.size)

    def to(self, replica: Replica) -> Sent:
        """All of it, or what this replica does not have."""
        prompt = self.prompt
        most = prompt.max_output_tokens
        kept, new = self.links.get(replica.url, (None, ()))
        pieces = [self.preface.head]
        if most is not None:
            pieces.append(b',"max_output_tokens":%d' % most)
        if kept is not None:
            pieces.append(b',"previous_response_id":%b' % _encode(kept.response_id))
            inputs = iter([self._own(link) for link in new])
        else:
            inputs = self.chain.pieces()
        body = b"".join((*pieces, b',"input":[', *_bare(inputs), self.preface.tail))
        remember = None
        if self.keeps:
            remember = partial(_remember, prompt.chain, replica.url)
        logprobs = LOGPROBS in prompt.settings.include
        return Sent(body, ResponseAnswer(self.preface.tools, remember, logprobs=logprobs))

    def _own(self, link: ChainNode) -> memoryview:
        return items_of(link, self.prompt.work, custom=self.custom).own


class ResponsesMode:
    """The Responses API. ``state``: the upstream is to keep what it is sent.

    ``contexts`` are the models' contexts, where they are known.
    """

    path = "responses"
    counts: Sequence[str] = ("responses/input_tokens",)

    def __init__(
        self, contexts: Mapping[str, int | None] | None = None, *, state: bool = False
    ) -> None:
        self.custom = False
        """Whether the upstream knows custom tools; else they are functions there."""
        self._contexts = {} if contexts is None else contexts
        self._state = state
        self._prefaces = Prefaces(self._make, _options)

    async def probe(self, prober: Prober) -> None:
        """Finds out what the upstream knows of it; raises :class:`UpstreamError`."""
        asked = _encode({"model": prober.model, "input": CUSTOM})
        self.custom = (await prober.post("responses/input_tokens", asked))[0] == 200
        if self._state:
            await _check_state(prober)

    def heavy(self, prompt: Prompt) -> bool:
        """Never: to join bytes takes no time."""
        return False

    def build(self, prompt: Prompt) -> ResponsesRequest:
        """The request; raises :class:`EngineError` for content that cannot be read."""
        links = dict(_known(prompt.chain)) if self._state else {}
        # Where the upstream has the history, it alone can leave some of it out.
        room = None if links else room_of(prompt, self._contexts.get(prompt.model))
        return self._build(prompt, room, links)

    def estimate(self, prompt: Prompt) -> int:
        """About how many tokens the prompt has."""
        return self._build(prompt, room_of(prompt, self._contexts.get(prompt.model))).tokens

    def counted(self, prompt: Prompt) -> bytes:
        """The body that asks what the input comes to: no limit, no stream."""
        request = self._build(prompt, None)
        preface = request.preface
        inputs = _bare(request.chain.pieces())
        return b"".join((preface.head, b',"input":[', *inputs, b"]}"))

    def again(
        self, prompt: Prompt, request: Request, replica: Replica, failure: Failure
    ) -> Request | None:
        """All of it, where the upstream has lost what it kept; or less, where that is too long."""
        assert isinstance(request, ResponsesRequest)
        shorter = failure.too_long and prompt.settings.truncation == "auto"
        if request.links.get(replica.url) is not None and (
            shorter or (failure.status in (400, 404, 410) and not failure.too_long)
        ):
            others = {url: kept for url, kept in request.links.items() if url != replica.url}
            return self._build(prompt, room_of(prompt, self._contexts.get(prompt.model)), others)
        if shorter:
            less = self._build(prompt, int(request.tokens * SHORTER))
            return less if less.tokens < request.tokens else None
        return None

    def _build(
        self,
        prompt: Prompt,
        room: int | None,
        links: Mapping[str, tuple[Kept, tuple[ChainNode, ...]]] | None = None,
    ) -> ResponsesRequest:
        start = start_of(prompt, room)
        chain = items_of(prompt.chain, prompt.work, custom=self.custom, start=start)
        return ResponsesRequest(
            prompt=prompt,
            preface=self._prefaces.of(prompt, brought_tools(prompt.chain)),
            chain=chain,
            keeps=self._state,
            links=links or {},
            start=start,
            custom=self.custom,
        )

    def _make(self, prompt: Prompt, extra: tuple[Tool, ...]) -> Preface:
        settings = prompt.settings
        named = by_name(callable_tools(settings, extra))
        choice = settings.tool_choice
        offered = named
        if choice.allowed is not None:
            offered = {name: tool for name, tool in named.items() if choice.admits(tool)}
        options = {
            "model": prompt.model,
            "instructions": settings.instructions or None,
            **self._tool_options(settings, offered),
            **_options(settings),
            "store": self._state,
        }
        body = {name: value for name, value in options.items() if value is not None}
        return Preface(
            settings=settings,
            model=prompt.model,
            extra=extra,
            head=_encode(body)[:-1],
            told=True,
            tail=b'],"stream":true}',
            tools=offered,
        )

    def _tool_options(self, settings: Settings, offered: Mapping[str, Tool]) -> dict[str, Any]:
        if not offered:
            return {}
        choice = settings.tool_choice
        tool_choice: Any = choice.mode
        if choice.mode == "required" and choice.allowed is not None and len(offered) == 1:
            ((name, tool),) = offered.items()
            kind = "custom" if tool.type == "custom" and self.custom else "function"
            tool_choice = {"type": kind, "name": name}
        return {
            "tools": [self._declared(name, tool) for name, tool in offered.items()],
            "tool_choice": tool_choice,
            "parallel_tool_calls": None if settings.parallel_tool_calls else False,
        }

    def _declared(self, name: str, tool: Tool) -> dict[str, Any]:
        """A tool as an entry of ``tools``."""
        if tool.type == "custom" and self.custom:
            entry: dict[str, Any] = {"type": "custom", "name": name}
            if tool.description:
                entry["description"] = tool.description
            return entry if tool.format is None else {**entry, "format": Raw(tool.format)}
        strict = {} if tool.type == "custom" else {"strict": bool(tool.strict)}
        return {"type": "function", **declared(name, tool)["function"], **strict}


def _bare(inputs: Iterator[memoryview]) -> list[memoryview]:
    """Items without the comma before the first one."""
    pieces = [piece for piece in inputs if len(piece)]
    if pieces:
        pieces[0] = pieces[0][1:]
    return pieces


def _options(settings: Settings) -> dict[str, Any]:
    """How to sample and what to say. What the client left out, the upstream decides."""
    echo = settings.echo
    logprobs = LOGPROBS in settings.include
    return {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "presence_penalty": echo.get("presence_penalty") or None,
        "frequency_penalty": echo.get("frequency_penalty") or None,
        "reasoning": _said(echo["reasoning"], b'{"effort":null,"summary":null}'),
        "text": _said(echo["text"], b'{"format":{"type":"text"}}'),
        "truncation": "auto" if settings.truncation == "auto" else None,
        **settings.passed_on,
        "include": [LOGPROBS] if logprobs else None,
        "top_logprobs": settings.top_logprobs if logprobs else None,
    }


def _said(echo: Raw, nothing: bytes) -> Raw | None:
    return None if bytes(echo) == nothing else echo


def _known(last_node: ChainNode) -> "Iterator[tuple[str, tuple[Kept, tuple[ChainNode, ...]]]]":
    """What replicas keep of the chain before ``last_node``, with the links that they do not have.

    The newest of each; only as far back as there is something that may be kept.
    """
    behind: list[ChainNode] = [last_node]
    found: set[str] = set()
    link = last_node.base
    while link is not None and not (found and KEPT in link.memo and found >= {*link.memo[KEPT]}):
        for url, kept in link.memo.get(KEPT, {}).items():
            new = _new(link, kept, behind)
            if url not in found and new is not None:
                found.add(url)
                yield url, (kept, new)
        behind.append(link)
        link = link.base


def _new(
    answered: ChainNode, kept: Kept, behind: Sequence[ChainNode]
) -> tuple[ChainNode, ...] | None:
    """The links behind an answer, of those behind what it answered; None if they differ.

    ``behind`` has the newest first.
    """
    if not kept.kinds:
        return tuple(reversed(behind))
    said = behind[-1]
    if len(behind) < 2 or said.turn != answered.turn:
        return None
    if tuple(item.type for item in said.items) != kept.kinds:
        return None
    if any(isinstance(item.view, Message) and item.view.status == CUT for item in said.items):
        # Whole for the upstream, and cut behind it: by a guard, or by who had enough.
        return None
    return tuple(reversed(behind[:-1]))


def _remember(last_node: ChainNode, url: str, response_id: str, kinds: tuple[str, ...]) -> None:
    last_node.memo[KEPT] = {**last_node.memo.get(KEPT, {}), url: Kept(response_id, kinds)}


async def _check_state(prober: Prober) -> None:
    """Whether an answer can be continued; raises :class:`UpstreamError`."""
    asked: dict[str, Any] = {
        "model": prober.model,
        "input": "hello",
        "max_output_tokens": LEAST,
        "store": True,
    }
    status, body = await prober.post("responses", _encode(asked))
    try:
        before = _id.decode(body).id if status == 200 else None
    except msgspec.MsgspecError:
        before = None
    if before is not None:
        asked["previous_response_id"] = before
        status, _ = await prober.post("responses", _encode(asked))
    if before is None or status != 200:
        raise UpstreamError(
            f"{prober.url}/responses keeps no responses (status {status}): "
            "it goes without upstream_state"
        )
