"""What the ledger has of a workload, whatever carried it."""

from typing import Any, Final

import pytest
from msgspec.structs import asdict

from tests.conformance.server import Served, serve
from tests.conformance.wire import WIRES, Json, Peer, Wire, ask, collect, response
from tieline_server.core.values import UsageRecord
from tieline_server.engines.bpe import shipped
from tieline_server.storage.base import Question, Sum

COUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")

UP_TO_THE_CLOCK = pytest.mark.apart("how far a turn has come when it is reached depends on time")

SCRIPT: Json = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "stated",
            "when": {"user_contains": "stated"},
            "emit": [{"type": "reasoning", "text": "hm"}, {"type": "message", "text": "teal"}],
            "usage": {
                "input_tokens": 100,
                "cached_tokens": 60,
                "output_tokens": 20,
                "reasoning_tokens": 5,
            },
        },
        {
            "id": "slow",
            "when": {"user_contains": "slow"},
            "pace": {"tokens_per_second": 50},
            "emit": {"type": "message", "text": "word " * 10_000},
        },
    ],
}


def counts(row: UsageRecord | Sum) -> tuple[int, ...]:
    """Input, cached, output, reasoning."""
    return tuple(getattr(row, name) for name in COUNTS)


def used(answer: Json) -> tuple[int, ...]:
    """The same of a response, as its client is told."""
    usage = answer["usage"]
    return (
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )


def comparable(row: UsageRecord) -> Json:
    """What does not depend on the transport, nor on the time."""
    different = ("response_id", "transport", "started_at", "ended_at", "phases")
    return {name: each for name, each in asdict(row).items() if name not in different}


async def three_turns(peer: Peer, **members: Any) -> list[Json]:
    """Three responses, each after the one before."""
    answers: list[Json] = []
    for number in range(3):
        follows = {"previous_response_id": answers[-1]["id"]} if answers else {}
        events = await ask(peer, input=f"stated {number}", **members, **follows)
        answers.append(response(events))
    return answers


async def test_us_01_each_turn_of_a_line_has_a_row_with_all_of_its_tokens(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        answers = await three_turns(peer)

        assert [row.response_id for row in served.rows] == [each["id"] for each in answers]
        assert [counts(row) for row in served.rows] == [(100, 60, 20, 5)] * 3
        assert [used(each) for each in answers] == [(100, 60, 20, 5)] * 3
        (name,) = (name for name, each in WIRES.items() if each.connect is wire.connect)
        assert {row.transport for row in served.rows} == {name.removeprefix("open-")}
        (total,) = await served.ledger.usage(Question(by="model"))
        assert (total.group, total.responses) == ("scripted", 3)
        assert counts(total) == (300, 180, 60, 15)


async def test_us_01_the_same_turns_have_the_same_rows_on_every_transport() -> None:
    async def rows(wire: Wire) -> list[Any]:
        async with serve(SCRIPT) as served, wire(served) as peer:
            await three_turns(peer, store=True)
            return [comparable(row) for row in served.rows]

    found = {name: await rows(wire) for name, wire in WIRES.items()}
    expected = found["websocket"]

    assert len(expected) == 3
    assert found == dict.fromkeys(WIRES, expected)


async def begin(peer: Peer, *, deltas: int) -> str:
    """Starts a slow answer and reads so many of its deltas; returns the response's id."""
    create = {"type": "response.create", "model": "scripted", "store": False}
    await peer.send({**create, "input": "slow please", "max_output_tokens": 10_000})
    created = await peer.receive()
    while deltas:
        event = await peer.receive()
        assert event["type"] != "response.completed", "it has said all"
        deltas -= event["type"] == "response.output_text.delta"
    found: str = created["response"]["id"]
    return found


def only_row(served: Served) -> UsageRecord:
    """The one row, whose tokens are those that left the engine."""
    (row,) = served.rows
    assert row.input_tokens > 0
    assert row.output_tokens == served.engine.said
    return row


@UP_TO_THE_CLOCK
@pytest.mark.needs("events")
async def test_us_03_a_peer_that_leaves_is_booked_what_was_sampled_for_it(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await begin(peer, deltas=10)
        await peer.abort()
        await served.signal.until(lambda: served.engine.running == 0)

        row = only_row(served)
        assert (row.outcome, row.stored) == ("disconnected", False)
        assert row.output_tokens >= 10


@UP_TO_THE_CLOCK
@pytest.mark.needs("events", "cancel_by_id")
async def test_us_03_a_cancel_by_id_books_what_its_terminal_event_says(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        cut = await peer.cancel(await begin(peer, deltas=10))
        end = response(await collect(peer))

        row = only_row(served)
        assert (row.outcome, row.response_id) == ("cancelled", end["id"])
        assert cut["status"] == end["status"] == "cancelled"
        assert used(cut) == used(end) == counts(row)
        assert row.output_tokens >= 10


@UP_TO_THE_CLOCK
@pytest.mark.needs("cancel")
async def test_us_03_a_cancel_on_the_line_books_what_its_terminal_event_says(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await begin(peer, deltas=10)
        await peer.send({"type": "response.cancel"})
        end = response(await collect(peer))

        row = only_row(served)
        assert row.outcome == "cancelled"
        assert used(end) == counts(row)


def words(tokens: int) -> str:
    """A text of so many tokens."""
    count, text = shipped().count, "a"
    while count(text) < tokens:
        text += " a"
    assert count(text) == tokens
    return text


@pytest.mark.needs("warm_up")
async def test_us_04_a_warm_up_has_a_row_of_its_own_and_its_turn_reports_it_as_cached(
    wire: Wire,
) -> None:
    async with serve() as served, wire(served) as peer:
        # A user message takes four tokens beside its text.
        warm = response(await ask(peer, input=words(86), generate=False))
        turn = response(await ask(peer, previous_response_id=warm["id"], input="go on"))

        first, second = served.rows
        assert (first.kind, first.response_id, counts(first)) == (
            "prewarm",
            warm["id"],
            (90, 0, 0, 0),
        )
        assert (second.kind, second.cached_tokens) == ("turn", 90)
        assert second.input_tokens > 90
        assert [used(warm), used(turn)] == [counts(first), counts(second)]
        (total,) = await served.ledger.usage(Question(by="key"))
        session = map(sum, zip(used(warm), used(turn), strict=True))
        assert counts(total) == tuple(session)
