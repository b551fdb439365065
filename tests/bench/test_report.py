"""Bars that are met or not, and how a run says so."""

import json

from tieline_bench.report import Bare, Report, as_json, as_text, bar, report

FINE = Bare(name="turn.grpc", us=80.0, known_us=66.0)
DEAR = Bare(name="turn.sse", us=86.0, known_us=66.0)


def made(*bare: Bare) -> Report:
    bars = [bar("turn.grpc", 2.5, 3.0), bar("flatness.grpc", 1.2, 1.15), bar("turn.sse", None, 3.0)]
    return report(bars, bare, {"turn.grpc.product_us": 200.0, "rounds": [1.0, 2.0]})


def test_a_bar_is_met_up_to_its_target_and_never_without_a_value() -> None:
    assert bar("x", 3.0, 3.0).met
    assert not bar("x", 3.1, 3.0).met
    assert not bar("x", None, 3.0).met


def test_a_run_is_met_when_all_its_bars_are() -> None:
    assert report([bar("a", 1.0, 3.0)], [FINE], {}).met
    assert not made(FINE).met


def test_a_bare_server_that_is_too_dear_makes_the_run_meet_nothing() -> None:
    assert not FINE.suspect
    assert DEAR.suspect
    result = made(FINE, DEAR)
    assert not any(each.met for each in result.bars)
    assert result.bars[0].note == "bare suspect: turn.sse"


def test_json_has_name_value_target_and_met_of_each_bar() -> None:
    whole = json.loads(as_json(made(FINE, DEAR)))
    first = {name: whole["bars"][0][name] for name in ("name", "value", "target", "met")}
    assert first == {"name": "turn.grpc", "value": 2.5, "target": 3.0, "met": False}
    assert whole["bars"][2]["value"] is None
    assert [row["suspect"] for row in whole["bare"]] == [False, True]
    assert whole["figures"]["turn.grpc.product_us"] == 200.0


def test_text_shows_bars_bare_servers_and_figures() -> None:
    text = as_text(made(FINE))
    assert "turn.grpc      2.50   <= 3     yes" in text
    assert "flatness.grpc  1.20   <= 1.15  NO" in text
    assert "turn.grpc    80.0  66.0" in text
    assert "rounds                1.00 2.00" in text
    assert "BARE SUSPECT" in as_text(made(DEAR))
