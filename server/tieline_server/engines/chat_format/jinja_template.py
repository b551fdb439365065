"""A model's own chat template, in Jinja: what it writes, and what it puts around messages.

A template renders whole chats, and a turn must cost what is new in it. So what the template puts
around a message of each role is read off it once, with marks in place of what is said; from then
on a message is that and its text. Only the tools are still rendered by the template itself, when
they change. A template that treats messages by their place cannot be cut so: it renders each chat
whole (``whole_chat``).

What is said never meets the template: a mark stands for it, so that nothing of it is taken for a
special token, a mark, or Jinja.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment
from msgspec import Struct

from tieline_server.engines.chat_format.tokens import Trusted
from tieline_server.models.packaged import ModelError

MARK: Final = "\ue000{}\ue001"
"""Stands for text in what the template renders."""
MARKS: Final = re.compile("\ue000(\\d+)\ue001")
SUSPECT: Final = "\ue000\ue001"

FAULTS: Final = (TemplateError, ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""What a template may raise that is given a chat which it was not written for."""

Around = tuple[Trusted, Trusted]
"""What is before and behind the text of a message."""

Chat = Sequence[Mapping[str, Any]]


class Forms(Struct, frozen=True, kw_only=True):
    """What a template puts around messages."""

    prelude: Trusted
    """What comes before every chat."""
    system: Around | None
    """None where the template has no such message of its own."""
    user: Around
    assistant: Around
    opening: Trusted
    """What asks for an answer."""


class Generation(Extension):
    """``{% generation %}`` marks for a trainer what the model says; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012
    """As Jinja has it: the tags that are read here."""

    def parse(self, parser: Parser) -> list[Node]:
        """What is between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class JinjaTemplate:
    """A template; raises :class:`ModelError` for one that renders no chat."""

    def __init__(self, source: str, *, bos: str, eos: str, special: Sequence[str]) -> None:
        # Templates append to lists of their own, which the immutable kind of sandbox forbids.
        environment = SandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _no_time
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._bos = bos
        suspects = sorted((*special, *SUSPECT), key=len, reverse=True)
        self._suspect = re.compile("|".join(map(re.escape, suspects)))
        user = MARK.format(0)
        try:
            self._template = environment.from_string(source)
            shown = self.whole([{"role": "user", "content": user}], add_generation_prompt=True)
        except FAULTS as error:
            raise ModelError(f"the model's chat template cannot be used: {error}") from error
        if user not in shown:
            raise ModelError("the model's chat template cannot be used: it shows no message")

    def forms(self, **members: Any) -> Forms | None:
        """What the template puts around messages; None for one that cannot be cut."""
        try:
            return self._learn(members)
        except FAULTS:
            return None

    def head(
        self,
        instructions: str | None,
        tools: Sequence[Mapping[str, Any]],
        forms: Forms,
        **members: Any,
    ) -> list[str] | None:
        """All before the first message of a chat with these; None where the template refuses."""
        said: list[str] = []
        told = self.safe(instructions, said)
        messages = [{"role": "system", "content": told}] if instructions else []
        user = _mark(said, "")
        asked = [*messages, {"role": "user", "content": user}]
        try:
            text = self.whole(asked, tools=self.safe([*tools], said), **members)
        except FAULTS:
            return None
        before = text.partition(user)[0]
        if not before.endswith(forms.user[0]):
            return None
        return _parts(before[: len(before) - len(forms.user[0])], said)

    def safe(self, value: Any, said: list[Any]) -> Any:
        """``value`` with marks, added to ``said``, for all in it that a template could write."""
        match value:
            case str():
                return self._suspect.sub(lambda found: _mark(said, found[0]), value)
            case dict():
                return {
                    self.safe(name, said): self.safe(each, said) for name, each in value.items()
                }
            case list():
                return [self.safe(each, said) for each in value]
        return value

    def whole(self, messages: Chat, **members: Any) -> str:
        """A chat as the template renders it. Raises one of :data:`FAULTS` where it refuses."""
        # Where a template can choose, tools are the system's business, not the user's.
        given = {"tools_in_user_message": False, **self._tokens, **members}
        # For one that asks for its tools by another name, as text (firefunction).
        given = {"functions": _to_json(members.get("tools") or []), "datetime": "", **given}
        return self._template.render(messages=messages, **given)

    def _learn(self, members: Mapping[str, Any]) -> Forms:
        user, said, again = (MARK.format(at) for at in range(3))
        asked = [{"role": "user", "content": user}]
        answered = [*asked, {"role": "assistant", "content": said}]
        before, between, after, _ = cut(
            self.whole([*answered, {"role": "user", "content": again}], **members),
            *(user, said, again),
        )
        asks = self.whole(asked, add_generation_prompt=True, **members).partition(user)[2]
        ended = self.whole(asked, **members).partition(user)[2]
        if not asks.startswith(ended) or not between.startswith(ended):
            # Something ends a chat that is not to be answered (Phi).
            ended = same_start(same_start(ended, asks), between)
        ends = self.whole(answered, **members).partition(said)[2]
        if not after.startswith(ends):
            # The last answer of a chat is ended differently (gpt-oss): by its first token here.
            ends = same_start(ends, after) or _first_token(after)
        begins = after[len(ends) :]
        if not before.endswith(begins):
            raise ValueError("the first message looks different from others")
        prelude, system = self._learn_system(before[: len(before) - len(begins)], begins, members)
        forms = Forms(
            prelude=Trusted(prelude),
            system=system,
            user=(Trusted(begins), Trusted(ended)),
            assistant=(Trusted(between[len(ended) :]), Trusted(ends)),
            opening=Trusted(asks[len(ended) :]),
        )
        self._check(forms, members)
        return forms

    def _learn_system(
        self, prelude: str, begins: str, members: Mapping[str, Any]
    ) -> tuple[str, Around | None]:
        told, user = MARK.format(0), MARK.format(1)
        messages = [{"role": "system", "content": told}, {"role": "user", "content": user}]
        try:
            before, between, _ = cut(self.whole(messages, **members), told, user)
        except FAULTS:
            return prelude, None
        if not between.endswith(begins):
            return prelude, None
        # A system message that the template puts where there is none is not for everybody: the
        # packaged model does not even know the capital of France with it.
        if not before.startswith(prelude):
            begun = self._bos and before.startswith(self._bos) and not begins.startswith(self._bos)
            prelude = self._bos if begun else ""
        ends = between[: len(between) - len(begins)]
        return prelude, (Trusted(before[len(prelude) :]), Trusted(ends))

    def _check(self, forms: Forms, members: Mapping[str, Any]) -> None:
        """Raises ValueError where a longer chat is not its messages one after the other."""
        roles = ["user", "assistant", "user", "assistant", "user"]
        around = {"user": forms.user, "assistant": forms.assistant}
        if forms.system is not None:
            roles.insert(0, "system")
            around["system"] = forms.system
        marks = [MARK.format(at) for at in range(len(roles))]
        chat = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        parts = [f"{around[m['role']][0]}{m['content']}{around[m['role']][1]}" for m in chat]
        whole = self.whole(chat, add_generation_prompt=True, **members)
        if whole.partition(marks[0])[2] != "".join((*parts, forms.opening)).partition(marks[0])[2]:
            raise ValueError("messages look different from place to place")


def cut(text: str, *marks: str) -> list[str]:
    """What is around ``marks``, which are in ``text`` in this order; else raises ValueError."""
    parts: list[str] = []
    for mark in marks:
        part, found, text = text.partition(mark)
        if not found:
            raise ValueError("it does not show every message")
        parts.append(part)
    return [*parts, text]


def alike(one: str, other: str) -> int:
    """How many letters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def same_start(one: str, other: str) -> str:
    """How both begin, no tag cut in two."""
    size = alike(one, other)
    opened = max(one.rfind("<", 0, size), one.rfind("[", 0, size))
    closed = max(one.rfind(">", 0, size), one.rfind("]", 0, size))
    inside = opened > closed and (one[opened] == "<" or one[opened + 1 : opened + 2].isupper())
    return one[: opened if inside else size]


def _first_token(text: str) -> str:
    found = re.match(r"<\|[^|]*\|>|<[^>]*>|\[[^\]]*\]", text)
    return found[0] if found else ""


def _mark(said: list[Any], text: str) -> str:
    said.append(text)
    return MARK.format(len(said) - 1)


def _parts(text: str, said: Sequence[str]) -> list[str]:
    """``text`` with what was said in place of its marks."""
    parts = MARKS.split(text)
    return [said[int(part)] if at % 2 else Trusted(part) for at, part in enumerate(parts)]


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not Jinja's own, which writes HTML's special characters as escapes. Nothing else is escaped
    # either, whatever the template says: a mark is to stay one.
    return json.dumps(
        value,
        ensure_ascii=False,
        indent=indent,
        separators=(separators[0], separators[1]) if separators else None,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _no_time(_form: str) -> str:
    # A date in the prompt would cost every chat its cache at midnight.
    return ""
