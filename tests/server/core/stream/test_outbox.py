"""Events on their way out: numbers, turns between lanes, merging for slow readers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline import events
from tieline.responses import Response
from tieline_server.core.stream.outbox import MERGE_CHARACTERS, Outbox, Outgoing

BEAT = events.Heartbeat(phase="idle")


def outgoing(merge_from: int | None = None) -> Outgoing:
    return Outgoing(merge_from=merge_from, wake=lambda: None)


def text(outbox: Outbox, delta: str, *, item: str = "msg_1", part: int = 0) -> None:
    outbox.push(
        events.OutputTextDelta(
            sequence_number=outbox.count,
            stream_id=outbox.stream_id,
            item_id=item,
            output_index=0,
            content_index=part,
            delta=delta,
        )
    )


def taken(out: Outgoing) -> list[Any]:
    every = []
    while (event := out.next()) is not None:
        every.append(event)
    return every


class TestNumbers:
    def test_a_response_counts_from_zero_without_gaps(self) -> None:
        """wire.md 3.3."""
        out = outgoing()
        for lane in ("a", "b"):
            outbox = Outbox(out, lane)
            for _ in range(3):
                text(outbox, "x")
        numbers = [event.sequence_number for event in taken(out) if event.stream_id == "b"]
        assert numbers == [0, 1, 2]

    def test_two_responses_of_one_lane_count_each_for_itself(self) -> None:
        out = outgoing()
        text(Outbox(out, None), "x")
        text(Outbox(out, None), "y")
        assert [event.sequence_number for event in taken(out)] == [0, 0]

    def test_only_a_named_lane_is_named(self) -> None:
        out = outgoing()
        text(Outbox(out, None), "x")
        text(Outbox(out, "a"), "y")
        assert [event.stream_id or None for event in taken(out)] == [None, "a"]


class TestTurns:
    def test_why_a_connection_ends_goes_out_after_all_others(self) -> None:
        out = outgoing()
        text(Outbox(out, "a"), "x")
        out.put_last(events.SessionGoingAway(reason="old", seconds=0.0))
        text(Outbox(out, "b"), "y")
        out.put_connection(BEAT)
        assert not out.empty
        kinds = [type(event) for event in taken(out)]
        assert kinds[0] is events.Heartbeat
        assert kinds[-1] is events.SessionGoingAway
        assert len(kinds) == 4
        assert out.empty

    def test_lanes_take_turns_event_by_event(self) -> None:
        out = outgoing()
        for lane, count in (("a", 3), ("b", 1), ("c", 2)):
            outbox = Outbox(out, lane)
            for number in range(count):
                text(outbox, f"{lane}{number}")
        assert [event.delta for event in taken(out)] == ["a0", "b0", "c0", "a1", "c1", "a2"]

    def test_what_belongs_to_the_connection_goes_first(self) -> None:
        out = outgoing()
        text(Outbox(out, None), "x")
        out.put_connection(BEAT)
        assert [event.type for event in taken(out)] == [BEAT.type, "response.output_text.delta"]

    @pytest.mark.parametrize("first", ["lane", "connection", "last"])
    def test_the_writer_is_woken_by_the_first_of_what_it_then_takes_whole(self, first: str) -> None:
        woken: list[int] = []
        out = Outgoing(merge_from=None, wake=lambda: woken.append(1))
        puts: dict[str, Callable[[], object]] = {
            "lane": lambda: text(Outbox(out, None), "x"),
            "connection": lambda: out.put_connection(BEAT),
            "last": lambda: out.put_last(BEAT),
        }
        puts[first]()
        for put in puts.values():
            put()
        assert len(woken) == 1
        taken(out)
        puts[first]()
        assert len(woken) == 2, "and again once it has taken all"

    def test_what_says_why_a_connection_ends_goes_out_after_all_others(self) -> None:
        out = outgoing()
        out.put_last(BEAT)
        text(Outbox(out, None), "x")
        assert not out.empty
        assert [event.type for event in taken(out)] == ["response.output_text.delta", BEAT.type]
        assert out.empty

    def test_a_lane_is_in_a_crowd_of_all_lanes_that_wait(self) -> None:
        out = outgoing()
        slow, quick = Outbox(out, "slow"), Outbox(out, "quick")
        for _ in range(3):
            text(slow, "x")
        assert (slow.crowd, quick.crowd) == (3, 0)
        text(quick, "y")
        assert (slow.crowd, quick.crowd) == (6, 2)
        taken(out)
        assert (slow.crowd, quick.crowd) == (0, 0)

    def test_unsent_counts_a_lane_and_empty_all(self) -> None:
        out = outgoing()
        outbox = Outbox(out, "a")
        assert out.empty
        assert outbox.unsent == 0
        text(outbox, "x")
        text(outbox, "y")
        assert (outbox.unsent, out.unsent("b"), out.empty) == (2, 0, False)
        out.next()
        assert outbox.unsent == 1
        taken(out)
        assert out.empty

    def test_after_the_drop_nothing_is_sent_any_more(self) -> None:
        out = outgoing()
        outbox = Outbox(out, None)
        text(outbox, "x")
        out.put_connection(BEAT)
        out.close()
        text(outbox, "y")
        out.put_connection(BEAT)
        out.put_last(BEAT)
        assert out.next() is None
        assert out.empty

    def test_the_last_word_of_an_expelled_peer_is_sent(self) -> None:
        out = outgoing()
        text(Outbox(out, None), "x")
        out.close(BEAT)
        out.put_connection(BEAT)
        assert taken(out) == [BEAT]


class TestMerging:
    def test_below_sixteen_unsent_every_event_goes_alone(self) -> None:
        out = outgoing(16)
        outbox = Outbox(out, None)
        for number in range(16):
            text(outbox, str(number))
        assert [event.delta for event in taken(out)] == [str(number) for number in range(16)]

    def test_from_sixteen_unsent_on_a_delta_joins_the_last_of_its_part(self) -> None:
        out = outgoing(16)
        outbox = Outbox(out, None)
        for number in range(20):
            text(outbox, f"{number} ")
        sent = taken(out)
        assert [event.sequence_number for event in sent] == list(range(16))
        assert sent[-1].delta == "15 16 17 18 19 "
        text(outbox, "next")
        assert taken(out)[0].sequence_number == 16, "what joined took no number"

    def test_a_delta_that_has_grown_large_joins_no_further(self) -> None:
        """So that a reader who stops costs bounded bytes, not only bounded events."""
        out = outgoing(1)
        outbox = Outbox(out, None)
        for _ in range(100):
            text(outbox, "x" * 10)
        sizes = [len(event.delta) for event in taken(out)]
        assert sum(sizes) == 1000
        assert max(sizes) < MERGE_CHARACTERS + 10
        assert len(sizes) == 8

    @pytest.mark.parametrize("other", [{"item": "msg_2"}, {"part": 1}])
    def test_another_part_does_not_join(self, other: dict[str, Any]) -> None:
        out = outgoing(1)
        outbox = Outbox(out, None)
        text(outbox, "x")
        text(outbox, "y", **other)
        assert [event.sequence_number for event in taken(out)] == [0, 1]

    def test_an_event_that_is_no_delta_never_joins(self) -> None:
        out = outgoing(1)
        outbox = Outbox(out, None)
        for _ in range(3):
            number = outbox.count
            outbox.push(
                events.ResponseInProgress(sequence_number=number, response=Response(id="r"))
            )
        assert len(taken(out)) == 3

    def test_another_lane_that_is_slow_does_not_matter(self) -> None:
        out = outgoing(2)
        slow, quick = Outbox(out, "slow"), Outbox(out, "quick")
        for _ in range(5):
            text(slow, "x")
        text(quick, "y")
        text(quick, "z")
        deltas = [event.delta for event in taken(out) if event.stream_id == "quick"]
        assert deltas == ["y", "z"]

    def test_merge_never_sends_every_event_however_slow_the_reader(self) -> None:
        out = outgoing(None)
        outbox = Outbox(out, None)
        for _ in range(100):
            text(outbox, "x")
        assert len(taken(out)) == 100

    @given(
        st.lists(st.one_of(st.text(max_size=3), st.just(None)), max_size=60),
        st.integers(1, 5),
    )
    def test_whatever_is_merged_the_text_and_the_numbers_are_whole(
        self, plan: list[str | None], merge_from: int
    ) -> None:
        """A None in the plan is the reader taking one event."""
        out = outgoing(merge_from)
        outbox = Outbox(out, None)
        said = ""
        sent: list[Any] = []
        for step in plan:
            if step is None:
                sent += [event for event in [out.next()] if event is not None]
            else:
                text(outbox, step)
                said += step
            assert outbox.unsent <= merge_from
        sent += taken(out)
        assert "".join(event.delta for event in sent) == said
        assert [event.sequence_number for event in sent] == list(range(len(sent)))
        assert outbox.count == len(sent)


class TestRuns:
    """Deltas of one part that became known together."""

    def run(self, merge_from: int | None, before: int, texts: list[str]) -> tuple[Outbox, Any]:
        out = outgoing(merge_from)
        outbox = Outbox(out, "a")
        for _ in range(before):
            text(outbox, "x")
        make = outbox.content_maker(
            events.OutputTextDelta, item_id="msg_1", output_index=0, content_index=0
        )
        outbox.extend(make, texts)
        return outbox, taken(out)

    @pytest.mark.parametrize("before", [0, 3])
    def test_each_is_an_event_with_the_next_number(self, before: int) -> None:
        outbox, sent = self.run(None, before, ["a", "b", "c"])
        assert [event.delta for event in sent[before:]] == ["a", "b", "c"]
        assert [event.sequence_number for event in sent] == list(range(before + 3))
        assert {event.stream_id for event in sent} == {"a"}
        assert outbox.count == before + 3

    def test_past_the_bound_they_join_the_last_unsent_one(self) -> None:
        outbox, sent = self.run(4, 2, ["a", "b", "c", "d"])
        assert [event.delta for event in sent] == ["x", "x", "a", "bcd"]
        assert [event.sequence_number for event in sent] == [0, 1, 2, 3]
        assert outbox.count == 4

    def test_however_long_a_run_is_no_delta_grows_past_the_bound(self) -> None:
        texts = ["four"] * 1000
        outbox, sent = self.run(1, 1, texts)
        assert "".join(event.delta for event in sent) == "x" + "".join(texts)
        assert max(len(event.delta) for event in sent) < MERGE_CHARACTERS + len("four")
        assert min(len(event.delta) for event in sent[:-1]) >= MERGE_CHARACTERS
        assert [event.sequence_number for event in sent] == list(range(outbox.count))

    def test_behind_another_part_they_are_one_event(self) -> None:
        out = outgoing(1)
        outbox = Outbox(out, None)
        text(outbox, "x", item="msg_0")
        make = outbox.content_maker(
            events.OutputTextDelta, item_id="msg_1", output_index=1, content_index=0
        )
        outbox.extend(make, ["a", "b"])
        assert [(event.item_id, event.delta) for event in taken(out)] == [
            ("msg_0", "x"),
            ("msg_1", "ab"),
        ]

    def test_who_sends_is_woken_once(self) -> None:
        woken: list[int] = []
        out = Outgoing(merge_from=None, wake=lambda: woken.append(1))
        outbox = Outbox(out, None)
        make = outbox.content_maker(
            events.OutputTextDelta, item_id="msg_1", output_index=0, content_index=0
        )
        outbox.extend(make, ["a", "b"])
        outbox.extend(make, ["c"])
        assert woken == [1]

    def test_after_the_peer_has_gone_they_are_numbered_and_dropped(self) -> None:
        out = outgoing(1)
        outbox = Outbox(out, None)
        out.close()
        make = outbox.content_maker(
            events.OutputTextDelta, item_id="msg_1", output_index=0, content_index=0
        )
        outbox.extend(make, ["a", "b"])
        assert (outbox.count, taken(out)) == (2, [])


class TestTake:
    @pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
    def test_it_takes_what_next_would_give(self, most: int) -> None:
        def filled() -> Outgoing:
            out = outgoing()
            for lane, count in (("a", 3), ("b", 1), ("c", 2)):
                for _ in range(count):
                    text(Outbox(out, lane), lane)
            out.put_connection(BEAT)
            out.put_last(BEAT)
            return out

        out, found = filled(), list[Any]()
        while some := out.take(most):
            assert len(some) <= most
            found += some
        assert found == taken(filled())

    def test_one_lane_alone_is_taken_whole(self) -> None:
        out = outgoing()
        outbox = Outbox(out, None)
        for _ in range(5):
            text(outbox, "x")
        assert len(out.take(2)) == 2
        assert len(out.take(10)) == 3
        assert (out.empty, out.take(10)) == (True, [])
