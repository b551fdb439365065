"""The script file of the scripted engine: models, pace, and rules (docs/scripted-engine.md).

Everything is checked when the file is read, so that a mistake is one line at the start of the
server rather than a strange answer later.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from tieline.errors import TielineError
from tieline_server.engines.base import Model

DAY: Final = 86_400
"""Seconds: nothing in a script waits longer."""

Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[float, Meta(ge=0, le=1000 * DAY)]
Rate = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0, le=DAY)]
Status = Annotated[int, Meta(ge=400, le=599)]


class ScriptError(TielineError):
    """A script file is wrong; the message is one line that names the rule and the key."""


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mistyped key is an error, never a rule that quietly means something else."""


class Pace(_Strict, frozen=True, kw_only=True):
    """When tokens come: the first after ``ttft_ms``, then so many a second (None: no limit)."""

    ttft_ms: Milliseconds = 0
    tokens_per_second: Rate | None = None


class PaceChange(_Strict, frozen=True, kw_only=True):
    """A rule's own pace; what it does not name is the script's."""

    ttft_ms: Milliseconds | UnsetType = UNSET
    tokens_per_second: Rate | UnsetType | None = UNSET

    def over(self, pace: Pace) -> Pace:
        """``pace`` with these changes."""
        ttft, rate = self.ttft_ms, self.tokens_per_second
        return Pace(
            ttft_ms=pace.ttft_ms if ttft is UNSET else ttft,
            tokens_per_second=pace.tokens_per_second if rate is UNSET else rate,
        )


class When(_Strict, frozen=True, kw_only=True):
    """What must hold for a rule; what is not named always holds."""

    last: Literal["message", "tool_output"] | UnsetType = UNSET
    tool: Annotated[list[str | None], Meta(min_length=2, max_length=3)] | UnsetType = UNSET
    user_contains: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    turn: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class Emission(_Strict, frozen=True, kw_only=True, tag_field="type"):
    """One thing that a rule lets the model say or do. Its strings may hold placeholders."""


class Message(Emission, frozen=True, kw_only=True, tag="message"):
    """Text for the user."""

    text: str


class Reasoning(Emission, frozen=True, kw_only=True, tag="reasoning"):
    """Thought: in the raw, as a summary, or both."""

    text: str = ""
    summary: str = ""


class FunctionCall(Emission, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function; ``arguments`` is an object, or text that is sent as it stands."""

    name: str
    arguments: dict[str, Any] | str = "{}"
    namespace: str | None = None


class CustomToolCall(Emission, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool with free text."""

    name: str
    input: str = ""
    namespace: str | None = None


class Refusal(Emission, frozen=True, kw_only=True, tag="refusal"):
    """The model declines, in words."""

    text: str


class Error(Emission, frozen=True, kw_only=True, tag="error"):
    """The engine refuses the prompt; with ``after_tokens`` it breaks after so many tokens."""

    status: Status
    code: str
    message: str
    after_tokens: Count | None = None


class Stall(Emission, frozen=True, kw_only=True, tag="stall"):
    """Nothing comes for a while."""

    seconds: Seconds


AnyEmission = Message | Reasoning | FunctionCall | CustomToolCall | Refusal | Error | Stall


class StatedUsage(_Strict, frozen=True, kw_only=True):
    """Token counts to report instead of the real ones."""

    input_tokens: Count | None = None
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class Rule(_Strict, frozen=True, kw_only=True):
    """What is emitted, in order, when all of ``when`` holds."""

    emit: list[AnyEmission]
    id: str | None = None
    when: When = When()
    pace: PaceChange = PaceChange()
    usage: StatedUsage = StatedUsage()

    @property
    def error(self) -> Error | None:
        """The rule's error, of which there is at most one."""
        return next((each for each in self.emit if isinstance(each, Error)), None)


class Script(Struct, frozen=True, kw_only=True):
    """A whole script: the first rule that holds decides an answer."""

    models: tuple[Model, ...] = (Model(id="scripted"),)
    pace: Pace = Pace()
    rules: tuple[Rule, ...] = ()


class _ModelView(_Strict, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    steering: bool = True


class _File(_Strict, frozen=True, kw_only=True):
    models: list[str | _ModelView] | UnsetType = UNSET
    pace: Pace = Pace()
    rules: list[Raw] = []


class _Single(Struct, frozen=True):
    emit: Raw = Raw()
    id: str | None = None


def load(path: Path) -> Script:
    """Reads a script file; raises :class:`ScriptError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ScriptError(f"cannot read {path}: {error.strerror}") from None
    return parse(data, source=str(path))


def parse(data: bytes, *, source: str = "script") -> Script:
    """Reads a script; raises :class:`ScriptError`, whose message begins with ``source``.

    >>> len(parse(b'{"rules": [{"id": "hi", "emit": {"type": "message", "text": "x"}}]}').rules)
    1
    """
    file = _decode(data, _File, source)
    rules = tuple(_rule(raw, index, source) for index, raw in enumerate(file.rules))
    names = [rule.id for rule in rules if rule.id is not None]
    if (twice := _twice(names)) is not None:
        raise ScriptError(f"{source}: rules: two rules have the id '{twice}'")
    if file.models is UNSET:
        return Script(pace=file.pace, rules=rules)
    return Script(models=_models(file.models, source), pace=file.pace, rules=rules)


def _models(entries: list[str | _ModelView], source: str) -> tuple[Model, ...]:
    views = [_ModelView(name=each) if isinstance(each, str) else each for each in entries]
    if not views or not all(view.name for view in views):
        raise ScriptError(f"{source}: models: at least one model, and each needs a name")
    if (twice := _twice([view.name for view in views])) is not None:
        raise ScriptError(f"{source}: models: '{twice}' is there twice")
    return tuple(Model(id=view.name, steering=view.steering) for view in views)


def _twice(names: list[str]) -> str | None:
    return next((name for at, name in enumerate(names) if name in names[:at]), None)


def _rule(raw: Raw, index: int, source: str) -> Rule:
    where = f"rules[{index}]"
    single = _decode(raw, _Single, f"{source}: {where}")
    if single.id is not None:
        where = f"rule '{single.id}' ({where})"
    place = f"{source}: {where}"
    data = bytes(raw)
    if bytes(single.emit)[:1] == b"{":
        # One emission is a list of one; decoded alone, its mistakes are named without an index.
        emission: AnyEmission = _decode(single.emit, AnyEmission, place, path="emit")
        members = msgspec.json.decode(data, type=dict[str, Raw])
        data = msgspec.json.encode({**members, "emit": [emission]})
    rule: Rule = _decode(data, Rule, place)
    _check(rule, place)
    return rule


def _check(rule: Rule, place: str) -> None:
    """What the types cannot say."""
    tool = rule.when.tool
    if tool is not UNSET and tool[0] is None:
        raise ScriptError(f"{place}: when.tool[0]: a tool has a type, a string")
    if sum(isinstance(each, Error) for each in rule.emit) > 1:
        raise ScriptError(f"{place}: emit: only one error can end an answer")


_WORDS: Final[Mapping[str, str]] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
_KINDS: Final = ", ".join(
    sorted(str(each.__struct_config__.tag) for each in Emission.__subclasses__())
)
_KNOWN: Final[Mapping[str, str]] = {
    "last": "message, tool_output",
    "type": _KINDS,
}
"""Key -> the values that it may have."""


def _decode(data: bytes | Raw, kind: Any, place: str, *, path: str = "") -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        key = (path + where.rstrip("`")).lstrip(".")
        problem = _plain(what, key)
        raise ScriptError(f"{place}: {key}: {problem}" if key else f"{place}: {problem}") from None
    except msgspec.DecodeError as error:
        raise ScriptError(f"{place}: {_syntax(str(error), bytes(data))}") from None
    except RecursionError:
        raise ScriptError(f"{place}: nested too deeply") from None


def _plain(what: str, key: str) -> str:
    """A decoder's complaint in the words of JSON."""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        return f"unknown key '{unknown[1]}'"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"missing key '{missing[1]}'"
    known = _KNOWN.get(key.rpartition(".")[2])
    if known and what.startswith("Invalid"):
        return f"{what[:1].lower()}{what[1:]}, known are: {known}"
    words = re.sub(r"`([a-z]+)`", lambda match: _WORDS.get(match[1], match[1]), what)
    words = re.sub(r"`([a-z |]+)`", lambda match: _alternatives(match[1]), words)
    return (words[:1].lower() + words[1:]).replace("`", "")


def _alternatives(types: str) -> str:
    return " or ".join(_WORDS.get(each, each) for each in types.split(" | "))


def _syntax(what: str, data: bytes) -> str:
    """Where JSON is broken, by line."""
    found = re.search(r"\(byte (\d+)\)", what)
    line = data.count(b"\n", 0, int(found[1])) + 1 if found else data.count(b"\n") + 1
    return f"line {line}: not valid JSON: {what.removeprefix('JSON is malformed: ')}"


PLACEHOLDER: Final = re.compile(r"\{(output|user|context)\}")


def fill(template: str, values: Any) -> str:
    """``template`` with its placeholders replaced by the attributes of ``values``, once.

    >>> from types import SimpleNamespace
    >>> fill("{user}!", SimpleNamespace(user="{output}"))
    '{output}!'
    """
    return PLACEHOLDER.sub(lambda match: str(getattr(values, match[1])), template)


def fill_all(value: Any, values: Any) -> Any:
    """:func:`fill` in every string of a JSON value, keys too."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, list):
        return [fill_all(each, values) for each in value]
    if isinstance(value, dict):
        return {fill(key, values): fill_all(each, values) for key, each in value.items()}
    return value
