"""A model's own chat template, in Jinja: rendered once for what it looks like, not for each turn.

A template renders whole chats, and a turn must cost what is new in it. So what the template puts
around a message of each role is read off it once, with marks in place of what is said; from then
on a message is that and its text. Only the tools are still rendered by the template itself, when
they change.

What is said never meets the template: a mark stands for it, so that nothing of it is taken for a
special token, a mark, or Jinja.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from tieline_server.engines.chat_format.tokens import Trusted
from tieline_server.models import ModelError

MARK: Final = "\ue000{}\ue001"
"""Stands for text in what the template renders."""
MARKS: Final = re.compile("\ue000(\\d+)\ue001")
SUSPECT: Final = "\ue000\ue001"

Around = tuple[Trusted, Trusted]
"""What is before and behind the text of a message."""


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


class JinjaTemplate:
    """A template, and what it looks like; raises :class:`ModelError` where nobody can tell."""

    def __init__(self, source: str, *, bos: str, eos: str, special: Sequence[str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _no_time
        self._tokens = {"bos_token": bos, "eos_token": eos}
        suspects = sorted((*special, *SUSPECT), key=len, reverse=True)
        self._suspect = re.compile("|".join(map(re.escape, suspects)))
        try:
            self._template = environment.from_string(source)
            self.forms: Final = self._learn(bos)
        except (TemplateError, ValueError) as error:
            raise ModelError(f"the model's chat template cannot be used: {error}") from error

    def head(
        self, instructions: str | None, tools: Sequence[Mapping[str, Any]]
    ) -> list[str] | None:
        """All before the first message of a chat with these; None where the template refuses."""
        said: list[str] = []

        def safe(value: Any) -> Any:
            match value:
                case str():
                    return self._suspect.sub(lambda found: _mark(said, found[0]), value)
                case dict():
                    return {safe(name): safe(each) for name, each in value.items()}
                case list():
                    return [safe(each) for each in value]
            return value

        messages = [{"role": "system", "content": safe(instructions)}] if instructions else []
        user = _mark(said, "")
        try:
            text = self._render(
                [*messages, {"role": "user", "content": user}], tools=safe([*tools])
            )
        except (TemplateError, ValueError, TypeError):
            return None
        before = text.partition(user)[0]
        if not before.endswith(self.forms.user[0]):
            return None
        return _parts(before[: len(before) - len(self.forms.user[0])], said)

    def whole(self, messages: Sequence[Mapping[str, Any]], **members: Any) -> str:
        """A chat as the template renders it."""
        return self._render(messages, **members)

    def _render(self, messages: Sequence[Mapping[str, Any]], **members: Any) -> str:
        # Where a template can choose, tools are the system's business, not the user's.
        given = {"tools_in_user_message": False, **self._tokens, **members}
        return self._template.render(messages=messages, **given)

    def _learn(self, bos: str) -> Forms:
        user, said, again = (MARK.format(at) for at in range(3))
        asked = [{"role": "user", "content": user}]
        answered = [*asked, {"role": "assistant", "content": said}]
        before, between, after, closing = _cut(
            self._render([*answered, {"role": "user", "content": again}]), user, said, again
        )
        opening = self._render(asked, add_generation_prompt=True).partition(user)[2]
        ended = self._render(asked).partition(user)[2]
        if not opening.startswith(ended) or not between.startswith(ended) or closing != ended:
            raise ValueError("messages look different from place to place")
        ends = self._render(answered).partition(said)[2]
        if not after.startswith(ends):
            # The last answer of a chat is ended differently (gpt-oss): by its first token here.
            ends = _first_token(after)
        begins = after[len(ends) :]
        if not before.endswith(begins):
            raise ValueError("the first message looks different from others")
        prelude, system = self._learn_system(before[: len(before) - len(begins)], begins, bos)
        return Forms(
            prelude=Trusted(prelude),
            system=system,
            user=(Trusted(begins), Trusted(ended)),
            assistant=(Trusted(between[len(ended) :]), Trusted(ends)),
            opening=Trusted(opening[len(ended) :]),
        )

    def _learn_system(self, prelude: str, begins: str, bos: str) -> tuple[str, Around | None]:
        told, user = MARK.format(0), MARK.format(1)
        messages = [{"role": "system", "content": told}, {"role": "user", "content": user}]
        try:
            before, between, _ = _cut(self._render(messages), told, user)
        except (TemplateError, ValueError):
            return prelude, None
        if not between.endswith(begins):
            return prelude, None
        # A system message that the template puts where there is none is not for everybody: the
        # packaged model does not even know the capital of France with it.
        if not before.startswith(prelude):
            begun = bos and before.startswith(bos) and not begins.startswith(bos)
            prelude = bos if begun else ""
        ends = between[: len(between) - len(begins)]
        return prelude, (Trusted(before[len(prelude) :]), Trusted(ends))


def _cut(text: str, *marks: str) -> list[str]:
    """What is around ``marks``, which are in ``text`` in this order."""
    parts: list[str] = []
    for mark in marks:
        part, found, text = text.partition(mark)
        if not found:
            raise ValueError("it does not show every message")
        parts.append(part)
    return [*parts, text]


def _first_token(text: str) -> str:
    found = re.match(r"<\|[^|]*\|>|<[^>]*>|\[[^\]]*\]", text)
    return found[0] if found else ""


def _mark(said: list[str], text: str) -> str:
    said.append(text)
    return MARK.format(len(said) - 1)


def _parts(text: str, said: Sequence[str]) -> list[str]:
    """``text`` with what was said in place of its marks."""
    parts = MARKS.split(text)
    return [said[int(part)] if at % 2 else Trusted(part) for at, part in enumerate(parts)]


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Not Jinja's own, which writes HTML's special characters as escapes.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _no_time(_form: str) -> str:
    # A date in the prompt would cost every chat its cache at midnight.
    return ""
