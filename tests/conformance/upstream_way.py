"""The same cases with the upstream engine between the server and its script.

On one road each case runs a second time: the scripted engine then answers behind chat
completions on a port of its own (``tests.support.scripted_chat``), and the server in front has
the upstream engine. What chat completions cannot carry is listed here, with the reason.
"""

from collections.abc import Container
from typing import Final

ROADS: Final = ("websocket", "sse")
"""A case runs over the first of these that offers what it needs, if any."""

_IDS: Final = "it looks for ids of items, and chat completions have none"
_REASONING: Final = "it looks for reasoning in the next prompt, and reasoning stays here"
_ESTIMATE: Final = "it compares a warm-up's count with its turn's: one is an estimate there"
_SUMMARY: Final = (
    "it wants summaries of reasoning, or calls of custom tools that nobody offered: "
    "chat completions know neither"
)

EXCEPT: Final[dict[str, str]] = {
    "test_a_sealed_thought_is_restored_for_the_model": _REASONING,
    "test_a_warm_up_samples_nothing_and_can_be_continued": _ESTIMATE,
    "test_cn_04_a_model_without_steering_says_so_and_the_stream_is_unharmed": (
        "a list of models does not say which ones can be steered"
    ),
    "test_ev_06_a_failure_after_the_start_is_numbered_and_typed": (
        "it looks for the script's own words, and those of an upstream reach no client"
    ),
    "test_ev_06_a_turn_with_all_kinds_of_output_has_every_event_that_it_can": _SUMMARY,
    "test_ev_06_lifecycle_events_are_whole_and_items_have_their_status": _SUMMARY,
    "test_nor_in_the_summary_of_a_thought": _SUMMARY,
    "test_st_06_a_delta_with_only_the_tool_output_gives_each_item_once": _IDS,
    "test_the_model_never_reads_sealed_text_of_its_own_chain": _REASONING,
    "test_tl_03_an_open_custom_tool_call_is_named_with_its_kind": _SUMMARY,
    "test_us_04_a_warm_up_has_a_row_of_its_own_and_its_turn_reports_it_as_cached": _ESTIMATE,
}
"""Case -> why it cannot hold behind chat completions."""


def road_of(case: str, offered: Container[str]) -> str | None:
    """The road over which ``case`` runs with an upstream, of those that can carry it."""
    if case in EXCEPT:
        return None
    return next((name for name in ROADS if name in offered), None)
