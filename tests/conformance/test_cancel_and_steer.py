"""Cancel, steer, and a peer that leaves."""

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.conformance.server import run, serve
from tests.conformance.wire import Json, Peer, Wire, ask, collect, context, output, response, said
from tests.support.signal import Signal
from tieline_server.auth.keys import Keys
from tieline_server.core.create.limits import Share

SCRIPT: Json = {
    "models": ["scripted", {"name": "stubborn", "steering": False}],
    "rules": [
        {
            "id": "stall",
            "when": {"user_contains": "stall"},
            "emit": {"type": "stall", "seconds": 600},
        },
        {
            "id": "long",
            "when": {"user_contains": "long", "last": "message"},
            "pace": {"tokens_per_second": 20},
            "emit": {"type": "message", "text": "and on it goes " * 500},
        },
        {
            "id": "slow",
            "when": {"user_contains": "slow", "last": "message"},
            "pace": {"tokens_per_second": 20},
            "emit": {"type": "message", "text": "one two three four five six seven eight nine ten "
                     "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"},
        },
        {
            "id": "think-then-call",
            "when": {"user_contains": "call", "last": "message"},
            "pace": {"tokens_per_second": 50},
            "emit": [
                {"type": "reasoning", "text": "hm hm hm hm hm hm"},
                {"type": "function_call", "name": "f", "arguments": {"n": 1}},
            ],
        },
        {
            "id": "two-items",
            "when": {"user_contains": "two"},
            "pace": {"tokens_per_second": 50},
            "emit": [
                {"type": "reasoning", "text": "hm hm hm hm hm hm"},
                {"type": "message", "text": "never reached " * 50},
            ],
        },
        {"id": "context", "emit": {"type": "message", "text": "{context}"}},
    ],
}  # fmt: skip


UP_TO_THE_CLOCK = pytest.mark.apart("how far a turn has come when it is reached depends on time")


async def _create(peer: Peer, **members: Any) -> None:
    await peer.send({"type": "response.create", "model": "scripted", "store": False, **members})


async def _until(peer: Peer, *kinds: str) -> list[Json]:
    """Events up to the first of one of these types."""
    seen: list[Json] = []
    while not seen or seen[-1]["type"] not in kinds:
        seen.append(await peer.receive())
    return seen


@UP_TO_THE_CLOCK
@pytest.mark.needs("cancel")
async def test_cancel_ends_the_turn_with_partial_output_and_the_chain_goes_on(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, input="long please")
        events = await _until(peer, "response.output_text.delta")
        await peer.send({"type": "response.cancel"})
        events += await collect(peer)
        partial = "".join(e.get("delta", "") for e in events)
        after = await ask(peer, previous_response_id=response(events)["id"], input="go on")

        end = response(events)
        assert (events[-1]["type"], end["status"]) == ("response.incomplete", "cancelled")
        assert end["incomplete_details"] is None
        assert 0 < end["usage"]["output_tokens"] < 2000
        assert end["output"][0]["content"][0]["text"] == partial
        assert said(context(after)) == [
            ("user", "long please"),
            ("assistant", partial),
            ("user", "go on"),
        ]
        assert len(served.engine.aborted) == 1


@pytest.mark.needs("cancel")
async def test_cancel_of_a_finished_response_is_silent_and_of_an_unknown_one_an_error(
    wire: Wire,
) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        done = response(await ask(peer, input="x"))["id"]
        await peer.send({"type": "response.cancel", "response_id": done})
        await peer.send({"type": "response.cancel", "response_id": "resp_unknown"})
        event = await peer.receive()

        assert event["error"]["code"] == "response_not_found"
        assert event["status"] == 404


@UP_TO_THE_CLOCK
@pytest.mark.needs("cancel")
@pytest.mark.parametrize("store", [True, False])
async def test_a_response_is_cancelled_by_its_id_from_another_line(wire: Wire, store: bool) -> None:
    """Its own line hears the end; the other one hears nothing, then or when it asks again."""

    async with serve(SCRIPT) as served, wire(served) as peer, wire(served) as other:
        await _create(peer, store=store, input="stall")
        (created,) = await _until(peer, "response.created")
        cancel = {"type": "response.cancel", "response_id": created["response"]["id"]}
        await other.send(cancel)
        end = (await _until(peer, "response.incomplete"))[-1]["response"]
        assert (end["id"], end["status"]) == (created["response"]["id"], "cancelled")
        if store:
            await other.send(cancel)
        assert response(await ask(other, input="x"))["status"] == "completed"


@UP_TO_THE_CLOCK
@pytest.mark.needs("deadline")
async def test_a_turns_own_deadline_ends_it_with_its_usage(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        events = await ask(peer, input="slow please", timeout_ms=300)

        assert response(events)["incomplete_details"] == {"reason": "deadline"}
        assert response(events)["usage"]["output_tokens"] > 0


@pytest.mark.needs("events")
def test_cn_01_a_peer_that_leaves_stops_the_engine_once(wire: Wire) -> None:
    async def leaves_after(words: str, *kinds: str) -> None:
        async with serve(SCRIPT) as served, wire(served) as peer:
            await _create(peer, input=words, max_output_tokens=10_000)
            for kind in kinds:
                await _until(peer, kind)
            assert served.engine.running == 1
            await peer.abort()
            await served.signal.until(lambda: served.engine.running == 0, seconds=1)

            assert len(served.engine.aborted) == 1
            assert [record.outcome for record in served.records] == ["disconnected"]
            (row,) = served.rows
            assert (row.outcome, row.stored) == ("disconnected", False)
            assert row.input_tokens > 0
            assert (row.output_tokens > 0) is (words == "slow")

    run(leaves_after("stall", "response.in_progress"))
    run(leaves_after("slow", *["response.output_text.delta"] * 3))


async def test_cn_01_a_peer_that_leaves_before_any_answer_stops_the_engine_once(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, input="stall")
        await served.signal.until(lambda: served.engine.running == 1)
        await peer.abort()
        await served.signal.until(lambda: served.engine.running == 0, seconds=1)

        assert len(served.engine.aborted) == 1
        assert [record.outcome for record in served.records] == ["disconnected"]
        (row,) = served.rows
        assert (row.outcome, row.output_tokens) == ("disconnected", 0)
        assert row.input_tokens > 0


@UP_TO_THE_CLOCK
@pytest.mark.needs("steer")
async def test_cn_04_a_steer_ends_the_response_at_its_item_and_a_successor_follows(
    wire: Wire,
) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, input="two items", instructions="stay calm")
        events = await _until(peer, "response.reasoning_text.delta")
        running = events[0]["response"]["id"]
        await peer.send(
            {
                "type": "response.steer",
                "previous_response_id": running,
                "input": "shorter please",
            }
        )
        events += await collect(peer)
        successor = await collect(peer)

        accepted = next(e for e in events if e["type"] == "response.steer.accepted")
        assert accepted["steer"]["previous_response_id"] == running
        assert accepted["steer"]["id"].startswith("steer_")
        assert list(range(len(events))) == [e["sequence_number"] for e in events]
        assert response(events)["incomplete_details"] == {"reason": "steered"}
        assert response(successor)["previous_response_id"] == running
        assert response(successor)["instructions"] == "stay calm"
        assert said(context(successor))[-1] == ("user", "shorter please")


@UP_TO_THE_CLOCK
@pytest.mark.needs("steer")
async def test_cn_04_a_response_that_completes_first_is_followed_all_the_same(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, input="slow please")
        events = await _until(peer, "response.output_text.delta")
        steer = {"previous_response_id": events[0]["response"]["id"], "input": "shorter"}
        await peer.send({"type": "response.steer", **steer})
        events += await collect(peer)
        successor = await collect(peer)

        assert response(events)["status"] == "completed"
        assert said(context(successor))[-1] == ("user", "shorter")


@UP_TO_THE_CLOCK
@pytest.mark.needs("steer")
async def test_cn_04_a_steer_waits_for_open_calls_and_is_applied_once(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, input="call it")
        events = await _until(peer, "response.function_call_arguments.delta")
        running = events[0]["response"]["id"]
        steer = {"previous_response_id": running, "input": "shorter please"}
        await peer.send({"type": "response.steer", **steer})
        events += await collect(peer)
        call = response(events)["output"][-1]
        pending = await peer.receive()
        answered = await ask(
            peer, previous_response_id=running, input=[output(call["call_id"], "ok")]
        )
        later = await ask(peer, previous_response_id=response(answered)["id"], input="end")

        assert response(events)["status"] == "completed"
        assert pending["type"] == "response.steer.pending"
        assert pending["reason"] == "waiting_for_required_input"
        assert pending["required_input"] == [
            {"type": "function_call_output", "call_id": call["call_id"], "name": "f"}
        ]
        steered = ("user", "shorter please")
        assert said(context(answered))[-2:] == [("function_call_output", "ok"), steered]
        assert said(context(later)).count(steered) == 1


@UP_TO_THE_CLOCK
@pytest.mark.needs("steer")
async def test_cn_04_a_model_without_steering_says_so_and_the_stream_is_unharmed(
    wire: Wire,
) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, model="stubborn", input="slow please")
        events = await _until(peer, "response.output_text.delta")
        steer = {"previous_response_id": events[0]["response"]["id"], "input": "shorter"}
        await peer.send({"type": "response.steer", **steer})
        failed = (await _until(peer, "response.steer.failed"))[-1]
        events = await collect(peer)

        assert failed["error"]["code"] == "steering_not_supported"
        assert failed["steer"]["input"] == "shorter"
        assert response(events)["status"] == "completed"


@pytest.mark.needs("steer")
async def test_cn_05_a_steer_for_an_old_or_unknown_response_changes_no_other(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        old = response(await ask(peer, input="one"))["id"]
        newest = response(await ask(peer, previous_response_id=old, input="two"))["id"]
        refused = []
        for target in (old, "resp_unknown", newest):
            await peer.send(
                {"type": "response.steer", "previous_response_id": target, "input": "lost"}
            )
            refused.append(await peer.receive())
        after = await ask(peer, previous_response_id=newest, input="three")

        assert {event["type"] for event in refused} == {"response.steer.failed"}
        assert [event["error"]["code"] for event in refused] == [
            "response_not_found",
            "response_not_found",
            "response_already_completed",
        ]
        assert refused[0]["steer"] == {"previous_response_id": old, "input": "lost"}
        assert "lost" not in str(context(after))


@UP_TO_THE_CLOCK
@pytest.mark.needs("steer")
async def test_cn_05_a_queued_steer_dies_with_its_line(wire: Wire) -> None:
    async with serve(SCRIPT) as served:
        async with wire(served) as peer:
            first = response(await ask(peer, store=True, input="call it"))
            await _create(peer, store=True, input="slow please")
            events = await _until(peer, "response.output_text.delta")
            steer = {"previous_response_id": events[0]["response"]["id"], "input": "lost"}
            await peer.send({"type": "response.steer", **steer})
            await _until(peer, "response.steer.accepted")
            await peer.abort()
        async with wire(served) as peer:
            call = first["output"][-1]["call_id"]
            after = await ask(peer, previous_response_id=first["id"], input=[output(call, "ok")])

        assert "lost" not in str(context(after))


@UP_TO_THE_CLOCK
@pytest.mark.needs("steer")
async def test_a_cancel_that_crosses_a_steered_end_cancels_the_successor(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await _create(peer, input="two items")
        events = await _until(peer, "response.reasoning_text.delta")
        running = events[0]["response"]["id"]
        steer = {"previous_response_id": running, "input": "stall now"}
        await peer.send({"type": "response.steer", **steer})
        await _until(peer, "response.incomplete")
        await _until(peer, "response.in_progress")
        await peer.send({"type": "response.cancel", "response_id": running})
        successor = await collect(peer)

        assert response(successor)["previous_response_id"] == running
        assert response(successor)["status"] == "cancelled"


class WatchedShare(Share):
    """Tells when something is given back."""

    def __init__(self, *, each: int, signal: Signal) -> None:
        super().__init__(each=each)
        self._signal = signal

    def give_back(self, owner: str, amount: int = 1) -> None:
        """As a share does."""
        super().give_back(owner, amount)
        self._signal.notify()


def _keys(folder: Path, *owners: str) -> Keys:
    """One key for each owner, of the same name."""
    path = folder / "keys.toml"
    hashes = ((owner, hashlib.sha256(owner.encode()).hexdigest()) for owner in owners)
    rows = [f'[[keys]]\nhash = "sha256:{hash_}"\nowner = "{owner}"\n' for owner, hash_ in hashes]
    path.write_text("".join(rows))
    return Keys(path, clock=time.monotonic, warn=print)


async def _steered(peer: Peer, calls: list[str]) -> Json:
    """What is said of a steer of 1,000 letters for a turn that is held."""
    held = await ask(peer, append=True, input="call it")
    calls.append(response(held)["output"][-1]["call_id"])
    steer = {"previous_response_id": response(held)["id"], "input": "x" * 1000}
    await peer.send({"type": "response.steer", **steer})
    return await peer.receive()


@pytest.mark.needs("steer", "append")
async def test_the_steers_of_one_owner_have_a_bound_over_all_its_lines(
    wire: Wire, tmp_path: Path
) -> None:
    """Another owner is served; what is used, and what goes with its line, leaves room."""
    signal = Signal()
    share = WatchedShare(each=3000, signal=signal)

    calls: list[str] = []
    async with serve(SCRIPT, keys=_keys(tmp_path, "ann", "bob"), queued=share) as served:
        ann, bob = (structs.replace(served, key=name) for name in ("ann", "bob"))
        async with wire(ann) as one, wire(ann) as two, wire(ann) as three, wire(bob) as other:
            told = [await _steered(peer, calls) for peer in (one, two, three, other)]
            assert [each["type"].rpartition(".")[2] for each in told] == [
                "accepted",
                "accepted",
                "failed",
                "accepted",
            ]
            assert told[2]["error"]["code"] == "too_many_pending_steers"
            await one.send({"type": "response.append", "input": [output(calls[0], "ok")]})
            assert "x" * 1000 in str(response(await collect(one))["output"])
            steer = {
                "type": "response.steer",
                "previous_response_id": told[2]["steer"]["previous_response_id"],
                "input": "x" * 1000,
            }
            await three.send(steer)
            assert (await three.receive())["type"] == "response.steer.accepted"
            await three.send(steer)
            assert (await three.receive())["type"] == "response.steer.failed"
            each = share.held_by("ann") // 2
            await two.abort()
            await signal.until(lambda: share.held_by("ann") == each)
            await three.send(steer)
            assert (await three.receive())["type"] == "response.steer.accepted"
    assert share.taken == 0
