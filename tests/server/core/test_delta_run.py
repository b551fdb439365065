"""Deltas that are kept as texts: they come back as the very events that were sent."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import Lockstep
from tieline.events import Event, OutputTextDelta, ReasoningSummaryTextDelta
from tieline_server.core.delta_run import DeltaRun
from tieline_server.core.deltas import Accepted, Finish, SummaryDelta, TextDelta


def summaries(first: int, texts: list[str]) -> list[Event]:
    return [
        ReasoningSummaryTextDelta(
            sequence_number=number,
            stream_id="a",
            item_id="rs_1",
            output_index=2,
            summary_index=1,
            delta=text,
        )
        for number, text in enumerate(texts, first)
    ]


@given(
    first=st.integers(0, 9),
    texts=st.lists(st.text(min_size=1), min_size=1),
    number=st.integers(0, 30),
    most=st.none() | st.integers(0, 9),
)
def test_whoever_reads_from_anywhere_gets_the_very_events(
    first: int, texts: list[str], number: int, most: int | None
) -> None:
    every = summaries(first, texts)
    run = DeltaRun(every[0], [*texts])
    behind = [each for each in every if (each.sequence_number or 0) >= number]
    assert run.behind(number, most) == behind[:most]


def test_what_comes_one_by_one_and_what_comes_together_is_the_same_to_who_reads_it_again() -> None:
    line = Lockstep()
    turn = line.create("hi", resumable=True)
    line.say(turn, Accepted())
    line.say(turn, SummaryDelta("I "), SummaryDelta("think"))
    for word in ("so", " it", " is"):
        line.say(turn, TextDelta(word))
    line.say(turn, TextDelta(" so"), TextDelta("."))
    line.say(turn, Finish())
    log = line.turns[turn].log
    assert log is not None
    assert log.after(None) == line.audit.by_response[turn]
    said = [each.delta for each in log.after(None) if isinstance(each, OutputTextDelta)]
    assert said == ["so", " it", " is", " so", "."]
