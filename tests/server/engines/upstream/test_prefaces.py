"""What comes again with every create is made once for a lane, and again when it would differ."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.engine_contract import WEATHER, link, prompt
from tieline_server.core.create.settings import Settings, SettingsCache
from tieline_server.core.create.tools import Tool
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Work
from tieline_server.engines.upstream.prefaces import LANES, Preface, Prefaces

TIP = link("hello")


class Lane:
    """A lane whose prefaces are counted; each is of eight bytes."""

    def __init__(self) -> None:
        self.work = Work()
        self.made: list[Preface] = []
        self.prefaces = Prefaces(self._make, _options)
        self._recall = SettingsCache(self.work)

    def ask(self, session: str = "line/0", **members: Any) -> Prompt:
        """A prompt of the lane: what comes in the same bytes is the same object."""
        given = prompt(tip=TIP, work=self.work, recall=self._recall, **members)
        return replace(given, session=session)

    def _make(self, prompt: Prompt, extra: tuple[Tool, ...]) -> Preface:
        made = Preface(
            settings=prompt.settings,
            model=prompt.model,
            extra=extra,
            head=b"head",
            told=False,
            tail=b"tail",
            tools={},
        )
        self.made.append(made)
        return made


def _options(settings: Settings) -> dict[str, Any]:
    return {"temperature": settings.temperature}


SENT: dict[str, Any] = {
    "instructions": "Be brief.",
    "tools": [WEATHER],
    "tool_choice": "auto",
    "temperature": 0.5,
}


def test_what_a_lane_sends_again_is_made_once_and_counted_once() -> None:
    lane = Lane()
    first = lane.prefaces.of(lane.ask(**SENT), ())
    rendered = lane.work.render
    assert lane.prefaces.of(lane.ask(**SENT), ()) is first
    assert (len(lane.made), lane.work.render) == (1, rendered)
    assert rendered == len(b"headtail")


@pytest.mark.parametrize(
    "other",
    [
        {"instructions": "Be long."},
        {"tools": [{**WEATHER, "name": "other"}]},
        {"tool_choice": "none"},
        {"temperature": 0.7},
        {"model": "another"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_it_is_made_again_when_it_would_come_out_otherwise(other: dict[str, Any]) -> None:
    lane = Lane()
    first = lane.prefaces.of(lane.ask(**SENT), ())
    second = lane.prefaces.of(lane.ask(**{**SENT, **other}), ())
    assert second is not first
    assert lane.made == [first, second]


def test_settings_that_it_is_not_made_of_do_not_make_it_again() -> None:
    lane = Lane()
    first = lane.prefaces.of(lane.ask(**SENT), ())
    again = lane.ask(**SENT, max_output_tokens=9)
    assert again.settings is not first.settings
    assert lane.prefaces.of(again, ()) is first


def test_tools_that_came_with_the_input_are_part_of_it() -> None:
    lane = Lane()
    tools = (Tool(type="function", name="late"),)
    first = lane.prefaces.of(lane.ask(**SENT), ())
    assert lane.prefaces.of(lane.ask(**SENT), tools).extra is tools
    assert lane.prefaces.of(lane.ask(**SENT), tools) is not first
    assert len(lane.made) == 2


def test_each_lane_has_its_own() -> None:
    lane = Lane()
    first = lane.prefaces.of(lane.ask("line/0", **SENT), ())
    second = lane.prefaces.of(lane.ask("line/1", **{**SENT, "temperature": 1}), ())
    assert lane.prefaces.of(lane.ask("line/0", **SENT), ()) is first
    assert lane.prefaces.of(lane.ask("line/1", **{**SENT, "temperature": 1}), ()) is second


def test_of_too_many_lanes_the_one_that_was_quiet_longest_is_forgotten() -> None:
    lane = Lane()
    kept = lane.prefaces.of(lane.ask("line/0", **SENT), ())
    forgotten = lane.prefaces.of(lane.ask("line/1", **SENT), ())
    for at in range(2, LANES):
        lane.prefaces.of(lane.ask(f"line/{at}", **SENT), ())
    assert lane.prefaces.of(lane.ask("line/0", **SENT), ()) is kept
    lane.prefaces.of(lane.ask("one more", **SENT), ())
    assert lane.prefaces.of(lane.ask("line/0", **SENT), ()) is kept
    assert lane.prefaces.of(lane.ask("line/1", **SENT), ()) is not forgotten


def test_all_are_made_again_once_they_are_cleared() -> None:
    lane = Lane()
    first = lane.prefaces.of(lane.ask(**SENT), ())
    lane.prefaces.clear()
    assert lane.prefaces.of(lane.ask(**SENT), ()) is not first
