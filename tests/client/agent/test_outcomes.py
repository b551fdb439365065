"""Each way in which a call comes out has words and a status of its own."""

import pytest

from tieline_client.agent import outcomes
from tieline_client.agent.outcomes import TEXTS, Outcome, span
from tieline_client.aio import Call


def test_tl_08_what_did_not_bring_anything_is_told_in_different_words() -> None:
    assert len(set(TEXTS.values())) == len(TEXTS) == 3
    for outcome, text in TEXTS.items():
        assert text.startswith(f"Error: {outcome.value}: ")


def test_without_opentelemetry_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "trace", None)
    with span(Call(call_id="c", name="f", arguments="{}")) as tell:
        tell(Outcome.DENIED)
