"""From a create to what a model samples from: token ids, a limit, and the constraint.

What comes again with every create (instructions, tools, text format) is made once for a lane and
used again for as long as the lane sends the same.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tieline_server.core.create.settings import Settings
from tieline_server.core.create.tools import BRINGING, Tool
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.chat_template import (
    ChatTemplate,
    Manner,
    Rendered,
    assemble,
)
from tieline_server.engines.chat_format.constrain import Constraint, Rules, constraint_of
from tieline_server.engines.client_tools import brought_tools, callable_tools

INLINE_BYTES: Final = 64 * 1024
"""New bytes that are rendered on the event loop (some 5 ms); more go to a thread."""

LANES: Final = 256
"""Lanes whose preface is kept."""

RESERVE: Final = 512
"""Tokens kept free for the answer where ``truncation`` may cut and the create has no limit."""


class Preface(Struct, frozen=True, kw_only=True):
    """What a lane's settings come to: the system message, and what an answer must look like."""

    settings: Settings
    extra: tuple[Tool, ...]
    manner: Manner
    ids: list[int]
    constraint: Constraint

    def serves(self, settings: Settings, extra: tuple[Tool, ...]) -> bool:
        """Whether it would come out the same for these.

        A lane that sends the same bytes again gets the same objects (``settings.SettingsCache``).
        """
        return self.made_of(settings) and self.extra is extra

    def made_of(self, settings: Settings) -> bool:
        """Whether it was made of these very settings."""
        mine = self.settings
        return (
            mine.tools is settings.tools
            and mine.tool_choice is settings.tool_choice
            and mine.format is settings.format
            and mine.instructions is settings.instructions
            and mine.parallel_tool_calls is settings.parallel_tool_calls
            and mine.reasoning_effort == settings.reasoning_effort
        )


class Ready(Struct, frozen=True, kw_only=True):
    """A create, ready to be sampled."""

    ids: list[int]
    max_tokens: int
    constraint: Constraint


class Whole(Struct, frozen=True, kw_only=True):
    """A prompt of which nothing is left out, in parts: ``opening`` follows the chain."""

    head: list[int]
    chain: Rendered
    opening: list[int]
    max_tokens: int
    constraint: Constraint

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return len(self.head) + self.chain.total + len(self.opening)


class PromptBuilder:
    """Builds for one model with ``context`` tokens of prompt and answer together.

    ``rules`` say how what samples is held to schemas.
    """

    def __init__(self, template: ChatTemplate, *, context: int, rules: Rules | None = None) -> None:
        self.template: Final = template
        self._rules = rules or Rules()
        self._context = context
        self._prefaces: OrderedDict[str, Preface] = OrderedDict()

    def new_bytes(self, prompt: Prompt) -> int:
        """Bytes of items and settings that :meth:`build` or :meth:`count` have to render."""
        whole = self.template.manner(prompt.settings.reasoning_effort).forms is None
        new = self.template.unrendered(prompt.chain, whole=whole)
        return new + (0 if self._knows(prompt) else _size(prompt.settings))

    def heavy(self, prompt: Prompt) -> bool:
        """Whether these may take long: much is to be rendered, or a schema may be a new one."""
        settings = prompt.settings
        if self._knows(prompt):
            if any(each.type in BRINGING for each in prompt.chain.shown):
                return True
        elif settings.format.schema or any(tool.parameters for tool in settings.tools.offered):
            return True
        return self.new_bytes(prompt) > INLINE_BYTES

    def _knows(self, prompt: Prompt) -> bool:
        """Whether the lane's settings are those that it had last."""
        kept = self._prefaces.get(prompt.session)
        return kept is not None and kept.made_of(prompt.settings)

    def count(self, prompt: Prompt) -> int:
        """How many tokens the prompt has. Raises :class:`EngineError` for what is no text."""
        chain = self.template.chain(prompt.chain, prompt.work)
        preface = self._preface(prompt)
        if preface.manner.forms is None:
            return len(self._rendered(prompt, preface, _links(chain)))
        return len(preface.ids) + chain.total + len(preface.manner.opening)

    def build(self, prompt: Prompt) -> Ready:
        """The prompt's ids and limit.

        Raises :class:`EngineError` ``context_length_exceeded`` when it does not fit, or, with
        ``truncation: auto``, when not even its newest part does.
        """
        settings = prompt.settings
        chain = self.template.chain(prompt.chain, prompt.work)
        preface = self._preface(prompt)
        limit = prompt.max_output_tokens
        least = 1
        if settings.truncation == "auto":
            least = min(limit or RESERVE, self._context // 2)
        room = self._context - least
        opening = preface.manner.opening
        rendered = None
        if preface.manner.forms is None:
            rendered = self._rendered(prompt, preface, _links(chain))
        size = len(preface.ids) + chain.total + len(opening)
        if rendered is not None:
            size = len(rendered)
        if size > room and settings.truncation != "auto":
            raise self._too_long(size)
        if rendered is None:
            ids = assemble(preface.ids, chain, opening, room=room)
        else:
            ids = rendered if size <= room else self._shortened(prompt, preface, chain, room=room)
        if ids is None:
            raise self._too_long(size)
        free = self._context - len(ids)
        return Ready(
            ids=ids,
            max_tokens=min(limit or free, free),
            constraint=preface.constraint,
        )

    def whole(self, prompt: Prompt) -> Whole | None:
        """The prompt in parts, for who need not have its ids in one; None where it does not fit,
        or has no parts.

        Raises :class:`EngineError` for what is no text.
        """
        chain = self.template.chain(prompt.chain, prompt.work)
        preface = self._preface(prompt)
        if preface.manner.forms is None:
            return None
        opening = [*preface.manner.opening]
        size = len(preface.ids) + chain.total + len(opening)
        free, limit = self._context - size, prompt.max_output_tokens
        auto = prompt.settings.truncation == "auto"
        if free < (min(limit or RESERVE, self._context // 2) if auto else 1):
            return None
        return Whole(
            head=preface.ids,
            chain=chain,
            opening=opening,
            max_tokens=min(limit or free, free),
            constraint=preface.constraint,
        )

    def _rendered(self, prompt: Prompt, preface: Preface, links: Sequence[Rendered]) -> list[int]:
        """A chat of these links, for a template that renders it whole."""
        segments = [each.link for each in links if each.link is not None]
        prompt.work.render += sum(link.size for link in segments)
        return self.template.whole(segments, prompt.settings, preface.manner)

    def _shortened(
        self, prompt: Prompt, preface: Preface, chain: Rendered, *, room: int
    ) -> list[int] | None:
        """The newest links that fit into ``room`` tokens; None when not even the last one does."""
        links = _links(chain)
        # The fewest that have to go: what is rendered grows with each that stays.
        few, many, best = 1, len(links), None
        while few < many:
            gone = (few + many) // 2
            ids = self._rendered(prompt, preface, _answered(links[gone:]))
            if len(ids) <= room and _answered(links[gone:]):
                many, best = gone, ids
            else:
                few = gone + 1
        return best

    def _too_long(self, size: int) -> EngineError:
        return EngineError(
            "context_length_exceeded",
            f"This model's context is {self._context} tokens, of which the answer needs some; "
            f"the input has {size} tokens.",
            param="input",
        )

    def _preface(self, prompt: Prompt) -> Preface:
        kept = self._prefaces.get(prompt.session)
        extra = brought_tools(prompt.chain)
        if kept is not None and kept.serves(prompt.settings, extra):
            self._prefaces.move_to_end(prompt.session)
            return kept
        made = self._prefaces[prompt.session] = self._make(prompt.settings, extra, prompt.work)
        self._prefaces.move_to_end(prompt.session)
        if len(self._prefaces) > LANES:
            self._prefaces.popitem(last=False)
        return made

    def _make(self, settings: Settings, extra: tuple[Tool, ...], work: Work) -> Preface:
        work.render += _size(settings)
        manner = self.template.manner(settings.reasoning_effort)
        # What the chain has brought stands where it came; what stands before it stays the same.
        ids = self.template.head(settings.instructions, callable_tools(settings), manner)
        offered = callable_tools(settings, extra)
        return Preface(
            settings=settings,
            extra=extra,
            manner=manner,
            ids=ids,
            constraint=constraint_of(offered, settings, manner.speech, self._rules),
        )


def _links(chain: Rendered) -> list[Rendered]:
    """The links of a chain, the oldest first."""
    links: list[Rendered] = []
    link: Rendered | None = chain
    while link is not None:
        links.append(link)
        link = link.before
    return [each for each in reversed(links) if each.link is not None]


def _answered(links: Sequence[Rendered]) -> Sequence[Rendered]:
    """The same without outputs whose calls are left out."""
    begin = next((at for at, each in enumerate(links) if not each.answers), len(links))
    return links[begin:]


def _size(settings: Settings) -> int:
    """Bytes, about, that a preface is made of."""
    schema = settings.format.schema or b""
    return len(settings.instructions or "") + len(bytes(settings.tools.echo)) + len(schema)
