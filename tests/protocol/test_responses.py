"""The Response object."""

from typing import Final

import msgspec
import pytest
from msgspec import Raw

from tieline import responses
from tieline.responses import Response, Usage

MEMBERS: Final = (
    "id object created_at completed_at status model output error incomplete_details "
    "previous_response_id instructions tools tool_choice parallel_tool_calls truncation text "
    "temperature top_p presence_penalty frequency_penalty top_logprobs reasoning usage "
    "max_output_tokens max_tool_calls store background service_tier metadata "
    "safety_identifier prompt_cache_key"
)


def test_all_31_members_are_there_whatever_their_value() -> None:
    members = MEMBERS.split(" ")
    assert list(msgspec.json.decode(responses.encode(Response()))) == members
    assert len(members) == 31


def test_free_form_members_are_copied_as_they_came() -> None:
    tools = b'[{"type": "function",  "name":"f", "parameters": {"z":1,"a":1.50}}]'
    assert tools in responses.encode(Response(tools=Raw(tools)))


def test_reading_what_was_written_gives_the_same_response() -> None:
    made = Response(
        id="resp_1",
        output=[Raw(b'{"a":1}')],
        usage=Usage.of(input=3, cached=1, output=2, reasoning=1),
    )
    assert responses.decode(responses.encode(made)) == made


def test_a_snapshot_from_elsewhere_may_lack_what_it_likes() -> None:
    assert responses.decode(b'{"id":"r","unknown":1}').id == "r"
    with pytest.raises(msgspec.ValidationError):
        responses.decode(b'{"id":5}')


def test_usage_adds_up() -> None:
    usage = Usage.of(input=10, cached=4, written=3, output=5, reasoning=2)
    assert usage.total_tokens == 15
    assert usage.input_tokens_details.cache_write_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize(
    ("input", "cached", "written", "told"),
    [(100, 40, 0, 0), (1, 4, 0, 0), (1, 4, 9, 0), (100, 40, 70, 60)],
)
def test_up_05_what_was_written_to_a_cache_is_what_was_stated_within_what_was_not_cached(
    input: int, cached: int, written: int, told: int
) -> None:
    usage = Usage.of(input=input, cached=cached, written=written, output=0, reasoning=0)
    assert usage.input_tokens_details.cache_write_tokens == told


def test_usages_add_up_member_by_member() -> None:
    one = Usage.of(input=10, cached=4, written=2, output=5, reasoning=2)
    both = one.plus(Usage.of(input=3, cached=1, written=1, output=2, reasoning=1))
    assert both == Usage.of(input=13, cached=5, written=3, output=7, reasoning=3)
