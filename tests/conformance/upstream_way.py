"""The same cases with the upstream engine between the server and its script.

On one road each case runs again for each mode: the scripted engine then answers on a port of its
own, behind chat completions (``tests.support.scripted_chat``) or as a server of ours, which has
the Responses API, and the server in front has the upstream engine. What a mode cannot carry is
listed here, with the reason.
"""

from collections.abc import Container
from typing import Final

ROADS: Final = ("websocket", "sse")
"""A case runs over the first of these that offers what it needs, if any."""

_IDS: Final = "it looks for ids of items, and those of ours mean nothing upstream"
_REASONING: Final = "it looks for reasoning in the next prompt, and reasoning stays here"
_CACHED: Final = "what was cached the upstream alone says, and a warm-up does not reach it"
_ESTIMATE: Final = "it compares a warm-up's count with its turn's: one is an estimate there"
_SUMMARY: Final = (
    "it wants summaries of reasoning, or calls of custom tools that nobody offered: "
    "chat completions know neither"
)

_STEERING: Final = "a list of models does not say which ones can be steered"
_WORDS: Final = "it looks for the script's own words, and those of an upstream reach no client"

CHAT: Final[dict[str, str]] = {
    "test_a_sealed_thought_is_restored_for_the_model": _REASONING,
    "test_a_warm_up_samples_nothing_and_can_be_continued": _ESTIMATE,
    "test_cn_04_a_model_without_steering_says_so_and_the_stream_is_unharmed": _STEERING,
    "test_ev_06_a_failure_after_the_start_is_numbered_and_typed": _WORDS,
    "test_ev_06_a_turn_with_all_kinds_of_output_has_every_event_that_it_can": _SUMMARY,
    "test_ev_06_lifecycle_events_are_whole_and_items_have_their_status": _SUMMARY,
    "test_nor_in_the_summary_of_a_thought": _SUMMARY,
    "test_st_06_a_delta_with_only_the_tool_output_gives_each_item_once": _IDS,
    "test_the_model_never_reads_sealed_text_of_its_own_chain": _REASONING,
    "test_tl_03_an_open_custom_tool_call_is_named_with_its_kind": _SUMMARY,
    "test_us_04_a_warm_up_has_a_row_of_its_own_and_its_turn_reports_it_as_cached": _ESTIMATE,
}
RESPONSES: Final[dict[str, str]] = {
    "test_a_warm_up_samples_nothing_and_can_be_continued": _CACHED,
    "test_cn_04_a_model_without_steering_says_so_and_the_stream_is_unharmed": _STEERING,
    "test_ev_06_a_failure_after_the_start_is_numbered_and_typed": _WORDS,
    "test_st_06_a_delta_with_only_the_tool_output_gives_each_item_once": _IDS,
    "test_us_04_a_warm_up_has_a_row_of_its_own_and_its_turn_reports_it_as_cached": _CACHED,
}
MODES: Final[dict[str, dict[str, str]]] = {"chat": CHAT, "responses": RESPONSES}
"""Mode -> the cases that cannot hold behind it, and why."""


def roads_of(case: str, offered: Container[str]) -> dict[str, str]:
    """The mode of each further run of ``case`` -> the road over which it goes."""
    road = next((name for name in ROADS if name in offered), None)
    return {mode: road for mode, left_out in MODES.items() if road and case not in left_out}
