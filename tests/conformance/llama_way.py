"""The same cases with a real model that answers, whatever a script would say.

On one road each case that needs no given words runs with the packaged model (on a leash,
``tests.support.brief_model``): a few in every run, all of them under --soak. The other cases look
for the script's own words, items, or counters.

The model is embedded, or an upstream that is asked by completions of token ids: no server of ours
reads those, so that mode has llama.cpp's own behind it.
"""

from collections.abc import Container, Iterator
from typing import Final

WAYS: Final = {"llama": "embedded", "completions": "beside"}
"""Way to the model -> the fixture that has it."""

ROADS: Final = ("websocket", "sse")
"""A case runs over the first of these that offers what it needs, if any."""

ALWAYS: Final = frozenset(
    {
        "test_a_create_that_comes_again_while_it_runs_reads_along",
        "test_a_replay_leaves_the_lane_as_it_was",
        "test_another_body_under_the_key_is_a_conflict_and_runs_nothing",
        "test_each_end_of_a_turn_closes_what_is_open_before_its_terminal_event",
        "test_null_is_the_same_as_nothing",
        "test_us_03_a_cancel_by_id_books_what_its_terminal_event_says",
        "test_us_03_a_cancel_on_the_line_books_what_its_terminal_event_says",
        "test_what_was_refused_leaves_its_key_free",
    }
)
"""Those that take a second or less."""

SOAKED: Final = frozenset(
    {
        "test_it_is_cancelled_by_its_id_as_often_as_one_likes",
        "test_a_bad_message_beside_a_running_turn_never_takes_its_numbers",
        "test_a_second_resume_takes_over_and_the_first_reader_is_told",
        "test_a_compaction_item_is_added_and_done_before_anything_else",
        "test_a_lane_name_of_other_characters_is_refused_without_an_echo",
        "test_a_lane_that_is_busy_takes_no_response",
        "test_a_line_is_no_place_for_it",
        "test_a_line_streams_whatever_a_create_says_of_it",
        "test_a_response_is_cancelled_by_its_id_from_another_line",
        "test_a_response_with_automatic_compaction_cannot_be_steered",
        "test_a_resumable_response_outlives_its_connection_for_its_window_only",
        "test_a_resume_behind_the_end_is_the_terminal_event_alone",
        "test_a_wrong_create_is_one_typed_error_event",
        "test_an_append_to_an_empty_lane_is_refused",
        "test_an_event_that_a_line_does_not_offer_is_one_that_it_does_not_know",
        "test_cancel_of_a_finished_response_is_silent_and_of_an_unknown_one_an_error",
        "test_cn_04_a_model_without_steering_says_so_and_the_stream_is_unharmed",
        "test_mx_03_a_queued_create_can_be_cancelled_by_its_event_id",
        "test_mx_03_lanes_overlap_and_each_event_names_its_lane",
        "test_mx_03_one_lane_is_strictly_first_in_first_out",
        "test_mx_03_the_queue_of_a_lane_is_bounded",
        "test_openais_other_tools_are_echoed_as_types_that_clients_know",
        "test_rc_09_the_events_are_read_again_by_the_responses_id",
        "test_sr_02_what_was_kept_of_it_goes_with_its_window",
        "test_sr_07_what_is_wrong_with_it_is_said_at_once_and_nothing_is_left",
        "test_the_thirty_third_lane_name_is_refused_and_echoed",
        "test_tools_and_formats_are_echoed_as_types_that_clients_know",
        "test_what_a_create_sets_is_echoed_by_the_response_and_the_rest_is_ignored",
        "test_what_a_transport_does_not_offer_is_refused_by_name",
        "test_what_cannot_be_resumed_is_one_error_and_the_line_lives",
    }
)
"""The others."""


_PLACES: Final = "there are two places at that upstream, and who waits for one is last"

LEFT_OUT: Final = {
    "completions": {
        "test_a_resumable_response_outlives_its_connection_for_its_window_only": (
            "its window is over before a model on another thread has said three tokens"
        ),
        "test_mx_03_lanes_overlap_and_each_event_names_its_lane": _PLACES,
        "test_the_thirty_third_lane_name_is_refused_and_echoed": _PLACES,
    }
}
"""Way -> the cases that cannot hold on it, and why."""


def roads_of(case: str, offered: Container[str], *, soak: bool) -> Iterator[tuple[str, str]]:
    """The ways on which ``case`` runs with the model, and the road of each."""
    if case not in ALWAYS and not (soak and case in SOAKED):
        return
    for road in [name for name in ROADS if name in offered][:1]:
        yield from ((way, road) for way in WAYS if case not in LEFT_OUT.get(way, {}))
