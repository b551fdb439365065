"""A create's settings as the runtime takes them."""

from typing import Any

from tests.support.chat_syntaxes import HERMES
from tests.support.engine_contract import WEATHER, prompt
from tieline_server.engines.chat_format.constrain import Speech, constraint_of
from tieline_server.engines.chat_format.prompt import Ready
from tieline_server.engines.llama.runtime import Completion
from tieline_server.engines.llama.sampling import LIKELY, completion_of

HERMES_SPEECH = Speech(syntax=HERMES, special={"<tool_call>": 5, "</s>": 2}, end="</s>")


def completion(**members: Any) -> Completion:
    settings = prompt("hi", **members).settings
    constraint = constraint_of(settings.tools.offered, settings, HERMES_SPEECH)
    return completion_of(Ready(ids=[1, 2], max_tokens=7, constraint=constraint), settings)


def test_the_prompt_and_its_limit_are_passed_on() -> None:
    assert (completion().ids, completion().max_tokens) == ([1, 2], 7)


def test_settings_are_those_that_the_response_echoes() -> None:
    body = completion(
        temperature=0,
        top_p=0.5,
        presence_penalty=1.5,
        frequency_penalty=-1,
        top_logprobs=3,
        include=["message.output_text.logprobs"],
    ).body()
    assert (body["temperature"], body["top_p"]) == (0, 0.5)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (1.5, -1)
    assert body["logprobs"] == 3


def test_what_nobody_sets_is_as_the_api_has_it() -> None:
    made = completion()
    assert (made.temperature, made.top_p) == (1.0, 1.0)
    assert (made.presence_penalty, made.frequency_penalty, made.logprobs) == (0.0, 0.0, None)


def test_unlikely_tokens_are_left_out_only_where_nobody_sets_how_to_sample() -> None:
    assert completion().min_p == LIKELY
    assert completion(temperature=1).min_p == 0.0
    assert completion(top_p=1).min_p == 0.0


def test_log_probabilities_are_told_only_to_who_asks_for_them() -> None:
    assert completion(top_logprobs=3).logprobs is None
    assert completion(include=["message.output_text.logprobs"]).logprobs == 0


def test_a_constraint_is_sampled_under_with_its_tokens_to_be_seen() -> None:
    called = completion(tools=[WEATHER], tool_choice="required")
    assert called.grammar
    assert called.told == ("<tool_call>",)
    assert "grammar" not in completion().body()
