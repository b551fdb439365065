"""The family of a template, by what it writes: known calls are rendered, and read back.

No tag tells a family: neighbours share tags, and one template names in its head what another one
writes. So chats with calls that we know are rendered, and what stands around their names and
values is the form. Where no call is visible there is no form, and the model is told in words how
to call a tool (``plain``). Templates differ in what they take: arguments as an object or as text,
content that is empty or None, ids in a form of their own; each is tried.
"""

import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from tieline_server.engines.chat_format.jinja_template import (
    FAULTS,
    Chat,
    Forms,
    alike,
    cut,
    same_start,
)
from tieline_server.engines.chat_format.syntax.base import (
    ID,
    INDEX,
    NAME,
    OUTPUT,
    THOUGHT,
    VALUE,
    Parameters,
    Syntax,
)

Render = Callable[..., str]
"""A chat as the template writes it."""

TOOLS: Final = ("qzToolA", "qzToolB")
KEYS: Final = ("qzKeyA", "qzKeyB")
STRINGS: Final = ("qzStringA", "qzStringB")
IDS: Final = ("qzidAAAA1", "qzidBBBB2")
OUTPUTS: Final = ('qzOutput"A"', 'qzOutput"B"')
USER: Final = "qzUser"
ANSWER: Final = "qzAnswer"
MARKED: Final = "qzOutput"
LAST: Final = "qzLast"
QUESTION: Final = [{"role": "user", "content": USER}]
BOTH: Final = dict(zip(KEYS, STRINGS, strict=True))
ONE: Final = (TOOLS[0], BOTH)
TWO: Final = (TOOLS[1], BOTH)
KIMI: Final = "functions.{name}:{index}"
"""Ids that the models of one maker call by, and that its templates write as they come."""

SAMPLES: Final[dict[str, tuple[Any, tuple[str, ...]]]] = {
    "string": ('qz "v" <w>\nx', ('qz "v" <w>\nx',)),
    "number": (4207, ("4207",)),
    "boolean": (True, ("true", "True")),
    "object": ({"qz": [1]}, ('{"qz": [1]}', '{"qz":[1]}', "{'qz': [1]}")),
    "array": (["qz"], ('["qz"]', "['qz']")),
    "null": (None, ("null", "None")),
}
"""A kind of value -> one, and how it may stand among parameters."""

WORDS: Final = {"true": "True", "false": "False", "null": "None"}

NO_THOUGHT: Final = re.compile(
    r"^\s*(?:<[^<>]*(?i:think)[^<>]*>)?\s*<(?:/|\|END_)[^<>]*(?i:think)[^<>]*>"
)
"""A thought of which only the tags are there, or the end."""

DECODER: Final = json.JSONDecoder()


class Unreadable(Exception):
    """Arguments are written in a form of its own, of which we know nothing."""


class Manner(Struct, frozen=True, kw_only=True):
    """What a template takes calls as."""

    arguments: str
    content: str | None
    ids: str

    def called(self, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """A chat that ends with these calls."""
        asked = [self._call(at, *call) for at, call in enumerate(calls)]
        said = {"role": "assistant", "content": self.content, "tool_calls": asked}
        return [{"role": "user", "content": USER}, said]

    def answered(self, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The same with an output of each, an answer, and a further question."""
        chat = self.called(*calls)
        for call, output in zip(chat[1]["tool_calls"], OUTPUTS, strict=False):
            name = call["function"]["name"]
            chat.append(
                {"role": "tool", "tool_call_id": call["id"], "name": name, "content": output}
            )
        chat.append({"role": "assistant", "content": ANSWER})
        return [*chat, {"role": "user", "content": LAST}]

    def _call(self, at: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        given = json.dumps(arguments) if self.arguments == "str" else dict(arguments)
        call_id = self.ids.format(name=name, index=at) if self.ids else IDS[at]
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": given},
        }


MANNERS: Final = [
    Manner(arguments=arguments, content=content, ids=ids)
    for ids, arguments, content in product(("", KIMI), ("dict", "str"), ("", None))
]


def _function(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": "d"} for key in KEYS}
    schema = {"type": "object", "properties": properties, "required": []}
    about = {"name": name, "description": "qzAbout", "parameters": schema}
    return {"type": "function", "function": about}


FUNCTIONS: Final = [_function(name) for name in TOOLS]


def learn(render: Render, forms: Forms | None, *, special: Sequence[str]) -> Syntax | None:
    """The form of the calls that a template writes; None where none can be seen."""
    for manner in MANNERS:
        try:
            return _Learner(render, manner, forms).learn(special)
        except Unreadable:
            return None
        except FAULTS:
            continue
    return None


def learn_thought(render: Render) -> tuple[str, str] | None:
    """The tags that a template writes around a thought."""
    thought = "qzThought"
    said = {"role": "assistant", "content": ANSWER}
    said |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought)
    try:
        _, before, between, _ = cut(render([*QUESTION, said]), USER, thought, ANSWER)
    except FAULTS:
        before = between = ""
    opens = re.search(r"(<[^<>]+>|\[[^\[\]]+\])\s*$", before)
    closes = re.match(r"\s*(<[^<>]+>|\[[^\[\]]+\])", between)
    if opens and closes and _closed(opens[1]) == closes[1]:
        return opens[1], closes[1]
    tagged = f"{THOUGHT[0]}{thought}{THOUGHT[1]}{ANSWER}"
    last = {"role": "user", "content": LAST}
    try:
        asks = render(QUESTION, add_generation_prompt=True)
        shown = render([*QUESTION, {"role": "assistant", "content": tagged}, last])
    except FAULTS:
        return None
    return THOUGHT if THOUGHT[0] in asks or (ANSWER in shown and thought not in shown) else None


def _closed(tag: str) -> str:
    """The tag that closes what this one opens."""
    if "START_" in tag:
        return tag.replace("START_", "END_")
    return tag[0] + "/" + tag[1:]


class _Row(Struct, frozen=True, kw_only=True):
    """What is around the names and values of calls that follow each other."""

    opens: str = ""
    before: str
    middle: str
    behind: str
    between: str | None = None
    closes: str = ""
    first: int = 0

    def without_lead(self) -> "tuple[str, _Row]":
        """White space before the first call, and the row without."""
        if self.opens:
            opens = self.opens.lstrip()
            return self.opens[: len(self.opens) - len(opens)], replace(self, opens=opens)
        before = self.before.lstrip()
        lead = self.before[: len(self.before) - len(before)]
        between = None if self.between is None else self.between + lead
        return lead, replace(self, before=before, between=between)


class _Learner:
    """Learns by one manner. Raises one of ``FAULTS`` where no call is to be seen."""

    def __init__(self, render: Render, manner: Manner, forms: Forms | None) -> None:
        self._render = render
        self._manner = manner
        self._forms = forms
        asked = [{"role": "user", "content": USER}]
        answered = [*asked, {"role": "assistant", "content": ANSWER}]
        self._begins = [self._show(asked, add_generation_prompt=True)]
        """What is between a question and an answer."""
        if forms is not None:
            self._ends: str = forms.assistant[1]
        else:
            more = self._show([*answered, {"role": "user", "content": LAST}])
            begins, _, more = more.partition(ANSWER)
            self._begins.append(begins)
            self._ends = same_start(more, self._show(answered).partition(ANSWER)[2])
        self._parameters: Parameters | None = None
        self._head = ""
        """What is between the name and parameters."""
        shown = self._show(manner.called(ONE))
        if _json_span(shown, BOTH) is None:
            try:
                self._parameters, self._head = self._learn_parameters()
            except FAULTS:
                if manner.arguments == "dict" and STRINGS[0] in shown and str(BOTH) not in shown:
                    raise Unreadable from None
                raise

    def learn(self, special: Sequence[str]) -> Syntax:
        """The form; ``special`` are the model's special tokens."""
        asked = self._read(self._show(self._manner.called(ONE)), TOOLS[0])[-1]
        before, middle, rest = self._read(self._show(self._manner.answered(ONE)), TOOLS[0])
        closing, ends, call_ends = self._ended(asked, rest.partition(MARKED)[0], special)
        begun, before = self._begun(before)
        row = self._row(_Row(before=before, middle=middle, behind=closing), closing)
        lead, row = row.without_lead()
        form = row.before + NAME + row.middle + VALUE + row.behind
        written = f"{lead}{row.opens}{form}{row.closes}".replace(INDEX, str(row.first))
        if written != f"{before}{NAME}{middle}{VALUE}{closing}":
            raise ValueError("what is around a call is not the same for each")
        says = self._says()
        outputs, output, as_json = self._outputs(closing + ends)
        return Syntax(
            name="json" if self._parameters is None else "parameters",
            call=form,
            custom=self._custom(form),
            parameters=self._parameters,
            message=(begun + lead, ends),
            lead=bool(lead),
            opens=row.opens,
            between=row.between,
            closes=row.closes,
            begins=None if says else _begins(row.opens, row.before),
            says=says,
            call_ends=call_ends,
            native=TOOLS[0] in self._render(QUESTION, tools=FUNCTIONS),
            arguments=self._manner.arguments,
            empty=self._manner.content,
            first=row.first,
            ids=self._manner.ids,
            output=output,
            outputs=outputs,
            output_json=as_json,
        )

    def _row(self, one: "_Row", closing: str) -> "_Row":
        """What of ``one`` is around each call, and what is around several."""
        two = self._two()
        if two is None:
            return one
        _, middle, gap, other, rest = two
        if not rest.startswith(closing):
            raise ValueError("several calls look different from one")
        before, gap, found = _numbered(one.before, gap)
        middle, _, digit = _numbered(middle, other)
        unit = _same_end(before, gap)
        gap = gap[: len(gap) - len(unit)]
        behind = same_start(gap, closing)
        return _Row(
            opens=before[: len(before) - len(unit)],
            before=unit,
            middle=middle,
            behind=behind,
            between=gap[len(behind) :],
            closes=closing[len(behind) :],
            first=next((each for each in (found, digit) if each is not None), 0),
        )

    def _two(self) -> list[str] | None:
        """What is around two calls; None for a model that calls one tool at a time."""
        try:
            return self._read(self._show(self._manner.answered(ONE, TWO)), *TOOLS)
        except FAULTS:
            return None

    def _ended(
        self, asked: str, answered: str, special: Sequence[str]
    ) -> tuple[str, str, str | None]:
        """What is behind the last value, what ends calls, and its token if text ends otherwise."""
        for end in (self._ends, self._ends.strip()):
            if end and end in answered:
                closing, found, _ = answered.partition(end)
                return closing, found, None
        same = same_start(asked, answered)
        begins = self._render(QUESTION).partition(USER)[0]
        tokens = [each for each in special if each and each not in begins and each in same]
        if not tokens:
            return asked, "", None
        last = max(tokens, key=lambda each: (same.rfind(each), len(each)))
        closing = same[: same.rfind(last)]
        return closing, same[len(closing) :], last

    def _show(self, chat: Chat, **members: Any) -> str:
        """A chat with tools, from behind its first question on, with places for ids."""
        text = self._render(chat, tools=FUNCTIONS, **members).partition(USER)[2]
        for call_id in IDS:
            text = text.replace(call_id, ID)
        return text

    def _custom(self, form: str) -> str:
        if self._parameters is None:
            return form.replace(VALUE, f'{{"input": {VALUE}}}')
        before, middle, behind = self._parameters.around["string"]
        return form.replace(VALUE, f"{before}input{middle}{VALUE}{behind}")

    def _begun(self, before: str) -> tuple[str, str]:
        """What asks for an answer, thoughts that are none, and what comes before a call."""
        begun = max((same_start(before, each) for each in self._begins), key=len)
        rest = NO_THOUGHT.sub("", before[len(begun) :])
        ends = [each for each in (self._ends.strip(),) if each]
        if "think" in rest or any(each in rest for each in ends):
            raise ValueError("something else comes before a call")
        asks = len(self._forms.user[1]) if self._forms else 0
        return before[asks : len(before) - len(rest)], rest

    def _says(self) -> str:
        """What is written before text, behind what asks for an answer."""
        if self._forms is None:
            return ""
        opening = NO_THOUGHT.sub("", self._forms.opening)
        opening = re.sub(r"<[^<>]*(?i:think)[^<>]*>\s*$", "", opening)
        before = self._forms.assistant[0]
        if not before.startswith(opening):
            return ""
        says = NO_THOUGHT.sub("", before[len(opening) :])
        return says if says.strip() else ""

    def _learn_parameters(self) -> tuple[Parameters, str]:
        """How arguments are written one by one, and what is before all of them."""
        _, a, b, c, same, e = cut(
            self._show(self._manner.called(ONE)),
            *(TOOLS[0], KEYS[0], STRINGS[0], KEYS[1], STRINGS[1]),
        )
        before = _same_end(a, c)
        behind = c[: len(c) - len(before)]
        if b != same or not e.startswith(behind) or not behind:
            raise ValueError("something is between parameters")
        head, tail = a[: len(a) - len(before)], e[len(behind) :]
        around: dict[str, tuple[str, str, str]] = {}
        words: dict[str, str] = {}
        for kind, (value, forms) in SAMPLES.items():
            text = self._show(self._manner.called((TOOLS[0], {KEYS[0]: value})))
            inside = text.partition(head + before + KEYS[0])[2].removesuffix(tail)
            form = next((each for each in forms if each in inside), None)
            if form is None:
                continue
            middle, _, closing = inside.partition(form)
            around[kind] = (before, middle, closing)
            if form in WORDS.values():
                words |= {
                    each: WORDS[each] for each in WORDS if (each == "null") == (kind == "null")
                }
        if not {"string", "number", "object"} <= around.keys():
            raise ValueError("values look different from each other")
        for kind in ("boolean", "array", "null"):
            around.setdefault(kind, around["number"])
        return Parameters(around=around, words=words), head

    def _read(self, text: str, *names: str) -> list[str]:
        """What is before, between and behind the names and values of calls."""
        parts: list[str] = []
        for name in names:
            before, found, text = text.partition(name)
            if not found:
                raise ValueError("the name is not shown")
            start, end = _json_span(text, BOTH) or (-1, -1)
            if self._parameters is not None:
                behind = self._parameters.around["string"][2]
                start = text.index(self._head) + len(self._head)
                end = text.index(STRINGS[1] + behind) + len(STRINGS[1] + behind)
            if start < 0:
                raise ValueError("the arguments are not shown")
            parts += [before, text[:start].replace(name, NAME)]
            text = text[end:]
        return [*parts, text]

    def _outputs(self, ended: str) -> tuple[tuple[str, str, str], str, bool]:
        """What is around outputs, one output, and whether it is written as JSON."""
        two = self._two()
        rest = two[-1] if two else self._read(self._show(self._manner.answered(ONE)), TOOLS[0])[-1]
        as_json = OUTPUTS[0] not in rest
        marks = [json.dumps(each)[1:-1] if as_json else each for each in OUTPUTS]
        if not rest.startswith(ended):
            raise ValueError("calls are ended differently before outputs")
        rest = rest[len(ended) :]
        if two:
            parts = self._two_outputs(cut(rest, *marks, ANSWER))
        else:
            before, behind, _ = cut(rest, marks[0], ANSWER)
            parts = ["", before, behind, "", ""]
        opens, before, behind, between, closes = (_named(each) for each in parts)
        answer = self._forms.assistant[0] if self._forms else ""
        if answer and closes.endswith(answer):
            closes = closes[: len(closes) - len(answer)]
        elif answer and not closes and behind.endswith(answer):
            behind = behind[: len(behind) - len(answer)]
        if as_json and before.endswith('"') and behind.startswith('"'):
            before, behind = before[:-1], behind[1:]
        return (opens, between, closes), before + OUTPUT + behind, as_json

    def _two_outputs(self, parts: list[str]) -> list[str]:
        before, gap, behind, _ = parts
        before, gap, _ = _numbered(_named(before), _named(gap))
        unit = _same_end(before, gap)
        gap = gap[: len(gap) - len(unit)]
        end = same_start(gap, behind)
        return [before[: len(before) - len(unit)], unit, end, gap[len(end) :], behind[len(end) :]]


def _named(text: str) -> str:
    for name in TOOLS:
        text = text.replace(name, NAME)
    return text


def _begins(opens: str, before: str) -> str | None:
    """What no text contains, of what comes before the name of a call."""
    if (opens + before).startswith("{"):
        return None
    text = opens or before
    tag = re.match(r"<[^<>]+>|\[[^\[\]]+\]", text)
    if not any(letter.isalpha() for letter in text):
        raise ValueError("nothing tells a call from text")
    return tag[0] if tag else text


def _json_span(text: str, value: Any) -> tuple[int, int] | None:
    """Where JSON of this value is."""
    for found in re.finditer(r"\{", text):
        try:
            read, end = DECODER.raw_decode(text, found.start())
        except ValueError:
            continue
        if read == value:
            return found.start(), end
    return None


def _same_end(one: str, other: str) -> str:
    """How both end, no tag cut in two."""
    size = alike(one[::-1], other[::-1])
    for text in (one, other):
        at = len(text) - size
        if text.rfind("<", 0, at) > text.rfind(">", 0, at):
            tag = text.find("<", at)
            size = 0 if tag < 0 else len(text) - tag
    return one[len(one) - size :]


def _numbered(one: str, other: str) -> tuple[str, str, int | None]:
    """Both with a place where the first has a number and the second the next one."""
    for at in range(1, min(len(one), len(other)) + 1):
        mine, its = one[-at], other[-at]
        if mine == its:
            continue
        if mine in "01" and its == str(int(mine) + 1):
            place = [
                text[: len(text) - at] + INDEX + text[len(text) - at + 1 :] for text in (one, other)
            ]
            return place[0], place[1], int(mine)
        break
    return one, other, None
