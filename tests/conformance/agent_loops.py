"""Agent loops against a scripted server: what each must come to, and what it did on the way.

A loop is told by its name. What its tools answer goes into the next call's arguments and at last
into the answer, so that an answer is right only when every output reached the model once and in
order.
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal

from msgspec import Struct, field

from tieline.errors import TielineError
from tieline.responses import Response
from tieline_client import Agent, Conversation, Session, Tool, Turn
from tieline_client.aio import TurnSettings

Call = dict[str, Any]


class Kind(Enum):
    """What a loop is like."""

    LONG = "long"
    """Four turns, which are stored; parallel calls in the first."""
    PASSING = "passing"
    """Two turns, which are not stored."""
    HELD = "held"
    """One stored response that is held at its calls."""


ANSWER: Final = "{user} ends with {output}, and there is nothing more to say about that."


def _call(name: str, step: int, **more: str) -> Call:
    arguments = {"key": f"{{user}}.{step}", **more}
    return {"type": "function_call", "name": name, "arguments": arguments}


def _rule(name: str, emit: Any, **when: Any) -> dict[str, Any]:
    return {"id": name, "when": when, "emit": emit}


_MESSAGE: Final = {"type": "message", "text": ANSWER}
_ONE_ROUND: Final = [_call("look", 1), _call("act", 1), _call("act", 2)]
_SEEN: Final = {"seen": "{output}"}

RULES: Final = [
    *(
        rule
        for kind in (Kind.PASSING.value, Kind.HELD.value)
        for rule in (
            _rule(f"{kind} calls", _ONE_ROUND, user_contains=kind, last="message"),
            _rule(f"{kind} answer", _MESSAGE, user_contains=kind, last="tool_output"),
        )
    ),
    _rule("first", [_call("look", 1), _call("act", 1)], turn=1, last="message"),
    _rule("second", [{"type": "reasoning", "text": "So?"}, _call("act", 2, **_SEEN)], turn=2),
    _rule("third", _call("look", 3, **_SEEN), turn=3),
    _rule("answer", _MESSAGE, turn=4),
]


class Loop(Struct):
    """One loop, and what became of it."""

    name: str
    kind: Kind
    executions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(tool, key) -> how often it ran."""
    seen: dict[str, Response] = field(default_factory=dict)
    """Response id -> the response whose end this side has seen."""
    error: TielineError | None = None
    right: bool = False
    wrong: str | None = None
    """What it came to, when that is neither its answer nor an error."""

    @property
    def acts(self) -> list[tuple[str, str]]:
        """The executions that have side effects, when each call ran once."""
        return [("act", f"{self.name}.{step}") for step in (1, 2)]

    @property
    def answer(self) -> str:
        """What the model must say in the end."""
        last = f"did {self.name}.2"
        if self.kind is Kind.LONG:
            last = f"saw {self.name}.3 after did {self.name}.2 after did {self.name}.1"
        return ANSWER.format(user=self.name, output=last)

    async def run(self, line: Session | Conversation) -> None:
        """Runs to its end, which is its answer or a typed error."""
        settings: TurnSettings = {
            "store": self.kind is not Kind.PASSING,
            "metadata": {"loop": self.name},
        }
        shape: Literal["append", "create"] = "append" if self.kind is Kind.HELD else "create"
        agent = Agent(line, tools=self._tools(), shape=shape, on_turn=self._note, **settings)
        try:
            run = await agent.run(self.name)
        except TielineError as error:
            self.error = error
            return
        self.right = (run.response.status, run.text) == ("completed", self.answer)
        if not self.right:
            turns = [(turn.response.status, turn.calls, turn.text) for turn in run.turns]
            self.wrong = f"{run.response}: {turns}"

    def _note(self, turn: Turn) -> None:
        if turn.response.status != "in_progress":
            self.seen[turn.response.id] = turn.response

    def _tools(self) -> list[Callable[..., Any] | Tool]:
        def look(key: str, seen: str = "") -> str:
            """Reads."""
            return self._execute("look", "saw", key, seen)

        def act(key: str, seen: str = "") -> str:
            """Changes the world."""
            return self._execute("act", "did", key, seen)

        return [look, Tool.of(act, side_effect=True)]

    def _execute(self, tool: str, verb: str, key: str, seen: str) -> str:
        self.executions[tool, key] += 1
        return f"{verb} {key} after {seen}" if seen else f"{verb} {key}"


def loops(count: int, kinds: tuple[Kind, ...], *, prefix: str) -> list[Loop]:
    """So many loops, of these kinds in turn."""
    chosen = (kinds[number % len(kinds)] for number in range(count))
    return [Loop(f"{kind.value} {prefix} {number}", kind) for number, kind in enumerate(chosen)]
