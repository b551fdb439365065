"""Warm turns beside cold ones: the arithmetic, and a short run against a real server."""

import pytest
from msgspec.structs import replace

from tieline.responses import InputTokensDetails, Response, Usage
from tieline_bench import warm
from tieline_bench.warm import HISTORY, Message, Round, Template, Turn, Warm


def count(messages: list[Message]) -> int:
    """Five tokens for what asks for an answer; a message has three and one for each word."""
    return 5 + sum(4 + len(message.content.split()) for message in messages)


def turn(*, seconds: float, prompt: int, cached: int) -> Turn:
    details = InputTokensDetails(cached_tokens=cached)
    usage = Usage(input_tokens=prompt, input_tokens_details=details)
    return Turn(seconds, replace(RESPONSE, usage=usage))


RESPONSE = Response(id="resp_1", status="completed", model="m", output=[])


def test_what_the_template_adds_is_read_off_the_sizes_of_prompts() -> None:
    def ended(messages: list[Message]) -> int:
        said = [each for each in messages if each.role == "assistant"]
        # An answer that was given has what asked for it, and two tokens that end it.
        return count([each for each in messages if each not in said]) + len(said) * (5 + 2)

    assert warm.template_of(ended) == Template(opening=5, ending=2)


def test_a_history_is_as_long_as_it_must_be_and_begins_with_its_name() -> None:
    text = warm.history_of("grpc 1", count)
    assert text.startswith("grpc 1. ")
    assert HISTORY <= count([Message("user", text)]) < HISTORY + 100


def test_a_turn_that_computed_another_number_is_counted() -> None:
    cold = turn(seconds=1.0, prompt=1500, cached=0)
    turns = [turn(seconds=0.1, prompt=1520, cached=1500 - at) for at in (0, 0, 1)]
    assert Round(cold, turns, [20, 21, 21]).miscounted == 1


def test_a_real_server_computes_what_is_new_over_both_transports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm, "HISTORY", 40)
    monkeypatch.setattr(warm, "TURNS", 2)
    said: list[str] = []
    result = Warm(say=said.append, rounds=1).run()
    bars = {bar.name: bar for bar in result.bars}
    assert bars.keys() == {
        f"{what}.{transport}"
        for what in ("warm_over_cold", "miscounted")
        for transport in ("grpc", "websocket")
    }
    for transport in ("grpc", "websocket"):
        assert bars[f"miscounted.{transport}"].met
        assert (
            result.figures[f"{transport}.warm_prefilled"]
            == (result.figures[f"{transport}.warm_expected"])
        )
    ratios = [bars[f"warm_over_cold.{each}"].value for each in ("grpc", "websocket")]
    assert result.figures["warm_over_cold"] == pytest.approx(max(r or 0 for r in ratios), abs=0.001)
    assert said == ["grpc, round 1 of 1", "websocket, round 1 of 1"]
