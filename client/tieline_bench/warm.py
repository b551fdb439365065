"""``warm``: what a turn costs that the KV cache knows, beside one that it does not.

A real server with the embedded engine and its packaged model, in a process of its own. Bars:

- ``warm_over_cold.<transport>``: time to the first token of a warm turn over that of the cold one
  before it, whose history has ``HISTORY`` tokens; medians.
- ``miscounted.<transport>``: warm turns in which the engine computed another number of the
  prompt's tokens than the new ones and the template's.

What the number must be is worked out from outside, with ``/v1/responses/input_tokens``: how long a
message is, what asks for an answer, and what ends a message. An answer that its limit cut has one
token more to compute: the last one that is sampled is never computed by itself, and where the
model ended by itself that one is the first of what ends a message.
"""

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from tieline.errors import TielineError
from tieline.events import OutputTextDelta
from tieline.responses import Response, Usage
from tieline_bench.clients import LoadError
from tieline_bench.limits import machine
from tieline_bench.processes import HTTP, Server, embedded
from tieline_bench.report import Report, bar, report
from tieline_bench.workload import GRPC, WEBSOCKET
from tieline_client.sync import Connection, connect

HISTORY: Final = 1_500
"""Tokens, at least, of what is there before the warm turns."""
WARM: Final = 0.05
ROUNDS: Final = 2
TURNS: Final = 4
"""Warm turns of a round."""
ANSWER: Final = 12
"""Tokens of an answer, at most."""
SCHEMES: Final = {GRPC: "grpc", WEBSOCKET: "ws"}
COUNT_TIMEOUT: Final = 60.0

QUESTION: Final = "Which town was named in line {line} of the list?"
TOWNS: Final = ("Oslo", "Lima", "Cairo", "Hanoi", "Quito", "Accra", "Perth", "Turin", "Osaka")


class Message(NamedTuple):
    """One message of the input."""

    role: str
    content: str


class Template(NamedTuple):
    """Tokens that the chat template adds: what asks for an answer, and what ends a message."""

    opening: int
    ending: int


class Turn(NamedTuple):
    """One turn as it was seen: seconds to its first token, and its counts."""

    first_token: float
    response: Response

    @property
    def usage(self) -> Usage:
        """What it used."""
        return self.response.usage or Usage()

    @property
    def prefilled(self) -> int:
        """Tokens of the prompt that were computed."""
        return self.usage.input_tokens - self.usage.input_tokens_details.cached_tokens

    @property
    def cut(self) -> bool:
        """Whether its limit ended it, and not the model."""
        return self.response.status == "incomplete"


class Round(NamedTuple):
    """A cold turn and the warm ones after it, each with what it should have computed."""

    cold: Turn
    warm: list[Turn]
    expected: list[int]

    @property
    def miscounted(self) -> int:
        """Warm turns that computed another number of tokens than they should."""
        pairs = zip(self.warm, self.expected, strict=True)
        return sum(turn.prefilled != wanted for turn, wanted in pairs)


class Warm:
    """One run; ``say`` is told what is being measured."""

    def __init__(self, *, say: Callable[[str], None], rounds: int = ROUNDS) -> None:
        self._say = say
        self._rounds = rounds

    def run(self) -> Report:
        """Measures everything; raises ``StartError`` when the server does not start."""
        started = time.monotonic()
        figures: dict[str, Any] = machine()
        with embedded() as server:
            count = counter(server)
            template = template_of(count)
            figures["template"] = {"opening": template.opening, "ending": template.ending}
            found = {
                transport: [
                    self._round(transport, number, server, template)
                    for number in range(self._rounds)
                ]
                for transport in SCHEMES
            }
        bars = []
        ratios = []
        for transport, rounds in found.items():
            ratios.append(_ratio(rounds))
            bars.append(bar(f"warm_over_cold.{transport}", ratios[-1], WARM))
            missed = sum(each.miscounted for each in rounds)
            bars.append(bar(f"miscounted.{transport}", missed, 0))
            figures |= _figures(transport, rounds)
        figures["seconds"] = round(time.monotonic() - started, 1)
        return report(bars, [], {"warm_over_cold": round(max(ratios), 4), **figures})

    def _round(self, transport: str, number: int, server: Server, template: Template) -> Round:
        self._say(f"{transport}, round {number + 1} of {self._rounds}")
        count = counter(server)
        history = history_of(f"{transport} {number}", count)
        with _connection(server, transport) as connection:
            cold = take(connection, history)
            warm: list[Turn] = []
            expected: list[int] = []
            for turn in range(TURNS):
                last = warm[-1] if warm else cold
                words = QUESTION.format(line=turn + 1)
                expected.append(
                    count([Message("user", words)]) + template.ending + (1 if last.cut else 0)
                )
                warm.append(take(connection, words, after=last.response.id))
        return Round(cold, warm, expected)


def take(connection: Connection, words: str, *, after: str | None = None) -> Turn:
    """One turn, timed; raises :class:`LoadError` for one that failed or said nothing."""
    first: float | None = None
    try:
        begun = time.perf_counter()
        stream = connection.create(
            input=words,
            previous_response_id=after,
            max_output_tokens=ANSWER,
            temperature=0.0,
            store=False,
        )
        for event in stream:
            if first is None and isinstance(event, OutputTextDelta):
                first = time.perf_counter() - begun
        response = stream.result().response
    except TielineError as error:
        raise LoadError(f"a turn failed: {error}") from error
    if first is None:
        raise LoadError("a turn said nothing")
    return Turn(first, response)


def history_of(name: str, count: Callable[[list[Message]], int]) -> str:
    """Words that no cache knows, of about ``HISTORY`` tokens and never fewer."""
    lines: list[str] = []
    text = ""
    while count([Message("user", text)]) < HISTORY:
        for _ in range(10):
            at = len(lines)
            lines.append(
                f"{at + 1}: {TOWNS[at * 7 % len(TOWNS)]} is {at * 37 % 91} miles from here."
            )
        # The name comes first: a cache is of use from the start on, or not at all.
        text = f"{name}. " + " ".join(lines)
    return text


def template_of(count: Callable[[list[Message]], int]) -> Template:
    """What the template adds, from the sizes of prompts of one, two and three messages."""
    user, said = Message("user", "one two"), Message("assistant", "")
    one, two = count([user]), count([user, user])
    opening = 2 * one - two
    return Template(opening, count([user, said]) - one - opening)


def counter(server: Server) -> Callable[[list[Message]], int]:
    """Counts the prompt of some messages, by the server's own HTTP."""
    url = f"http://{server.addresses[HTTP]}/v1/responses/input_tokens"

    def count(messages: list[Message]) -> int:
        body = msgspec.json.encode({"input": [message._asdict() for message in messages]})
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=COUNT_TIMEOUT) as answer:
            found: int = msgspec.json.decode(answer.read())["input_tokens"]
        return found

    return count


@contextmanager
def _connection(server: Server, transport: str) -> Iterator[Connection]:
    address = server.address(transport)
    if address is None:
        raise LoadError("it has no such transport")
    with connect(f"{SCHEMES[transport]}://{address}") as connection:
        yield connection


def _ratio(rounds: list[Round]) -> float:
    cold = median(each.cold.first_token for each in rounds)
    return median(turn.first_token for each in rounds for turn in each.warm) / cold


def _figures(transport: str, rounds: list[Round]) -> dict[str, Any]:
    warm = [turn for each in rounds for turn in each.warm]
    expected = [wanted for each in rounds for wanted in each.expected]
    return {
        f"{transport}.cold_ms": [round(each.cold.first_token * 1000) for each in rounds],
        f"{transport}.warm_ms": [round(turn.first_token * 1000) for turn in warm],
        f"{transport}.cold_prefilled": [each.cold.prefilled for each in rounds],
        f"{transport}.warm_prefilled": [turn.prefilled for turn in warm],
        f"{transport}.warm_expected": expected,
        f"{transport}.warm_input": [turn.usage.input_tokens for turn in warm],
    }
