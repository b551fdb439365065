"""Events of a Responses stream come out as deltas, whatever an upstream leaves out."""

import json
from typing import Any

import pytest

from tests.support.engine_contract import WEATHER, prompt
from tests.support.upstream_shapes import added, ended, item, said, text
from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    Annotation,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    Phase,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
    WholeItem,
)
from tieline_server.engines.upstream.faults import MALFORMED, Failure
from tieline_server.engines.upstream.response_answer import ResponseAnswer

SHELL = Tool(type="custom", name="shell", namespace="os")
TOOLS = {"os__shell": SHELL, "get_weather": prompt(tools=[WEATHER]).settings.tools.offered[0]}


def data(event: bytes) -> bytes:
    return event.removeprefix(b"data: ").strip()


def read(*events: bytes) -> list[Delta]:
    """All deltas of these events, the last step's as well."""
    answer = ResponseAnswer(TOOLS)
    deltas = [delta for event in events for delta in answer.read([data(event)])]
    return [*deltas, *answer.end({})]


def failure(*events: bytes) -> Failure:
    with pytest.raises(Failure) as caught:
        read(*events)
    return caught.value


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([text("a")], [TextDelta("a"), ItemEnd()]),
        ([said("refusal.delta", delta="no")], [RefusalDelta("no"), ItemEnd()]),
        ([said("reasoning_text.delta", delta="hm")], [ReasoningDelta("hm"), ItemEnd()]),
        ([said("reasoning.delta", delta="hm")], [ReasoningDelta("hm"), ItemEnd()]),
        ([said("reasoning_summary_text.delta", delta="s")], [SummaryDelta("s"), ItemEnd()]),
        (
            [text("a"), item("message", content=[{"type": "output_text", "text": "a"}])],
            [TextDelta("a"), ItemEnd()],
        ),
        (
            [item("message", content=[{"text": "a"}, {"refusal": "b"}])],
            [TextDelta("a"), RefusalDelta("b"), ItemEnd()],
        ),
        (
            [item("reasoning", summary=[{"text": "s"}], content=[{"text": "c"}])],
            [SummaryDelta("s"), ReasoningDelta("c"), ItemEnd()],
        ),
        ([item("reasoning", summary=[], content=None)], []),
        ([added("web_search_call", content={}), said("web_search_call.searching")], []),
        ([said("output_text.annotation.added", annotation={})], []),
    ],
)
def test_what_is_said_becomes_deltas(events: list[bytes], expected: list[Delta]) -> None:
    assert read(*events, ended())[:-1] == expected


def test_who_does_not_stream_says_it_all_in_the_last_event() -> None:
    output = [
        {"type": "reasoning", "summary": [{"text": "s"}]},
        {"type": "message", "content": [{"text": "a"}]},
        {"type": "function_call", "name": "get_weather", "call_id": "c", "arguments": "{}"},
    ]
    last = said("completed", response={"id": "r", "status": "completed", "output": output})
    call = [CallStart(kind="function_call", name="get_weather"), CallDelta("{}"), ItemEnd()]
    whole = [SummaryDelta("s"), ItemEnd(), TextDelta("a"), ItemEnd(), *call]
    assert read(last)[:-1] == whole
    # What was said is not said again.
    assert read(text("b"), last)[:-1] == [TextDelta("b"), ItemEnd()]


def test_arguments_that_are_an_object_are_written_as_json() -> None:
    whole = item("function_call", name="get_weather", arguments={"city": "Oslo"})
    assert CallDelta('{"city":"Oslo"}') in read(whole, ended())


@pytest.mark.parametrize("usage", [[], "7", {"input_tokens": "x"}, {"output_tokens_details": 5}])
def test_usage_that_cannot_be_read_was_not_said(usage: Any) -> None:
    last = said("completed", response={"id": "r", "status": "completed", "usage": usage})
    assert read(text("a"), last)[-1] == Finish(phases={})


def test_a_response_that_was_cancelled_there_is_no_answer() -> None:
    assert failure(text("a"), ended("cancelled")).error.code == "server_error"


SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}}


@pytest.mark.parametrize(
    "made",
    [
        SEARCH,
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "results": None},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": []},
        {"type": "image_generation_call", "id": "ig_1", "result": "aGk="},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        {"type": "mcp_call", "id": "mcp_1", "name": "f", "arguments": "{}", "output": "x"},
        {"type": "of_another_year", "content": {"type": "message"}, "status": 7},
    ],
)
def test_items_of_tools_that_ran_upstream_and_unknown_ones_are_passed_on_whole(made: Any) -> None:
    begun, whole = (said(f"output_item.{way}", item=made) for way in ("added", "done"))
    deltas = read(text("a"), begun, whole, text("b"), ended())
    assert [type(each) for each in deltas[:2]] == [TextDelta, ItemEnd]
    assert isinstance(deltas[2], WholeItem)
    assert json.loads(deltas[2].item.raw) == made
    assert (deltas[2].item.type, deltas[2].item.opens) == (made["type"], None)
    assert deltas[3] == TextDelta("b")


@pytest.mark.parametrize(
    "kind", ["compaction", "item_reference", "function_call_output", "mcp_approval_response", ""]
)
def test_items_that_only_a_client_or_a_server_of_ours_says_are_passed_over(kind: str) -> None:
    assert read(item(kind, call_id="c", id="x"), text("a"), ended())[0] == TextDelta("a")


@pytest.mark.parametrize("kind", ["computer_call", "local_shell_call", "mcp_approval_request"])
def test_calls_whose_answer_would_not_reach_the_upstream_are_passed_over(kind: str) -> None:
    assert read(item(kind, call_id="c", id="x"), text("a"), ended())[0] == TextDelta("a")


DEEP = b'data: {"type":"response.output_item.done","item":{"type":"x","a":%b}}' % (
    b"[" * 300 + b"]" * 300
)


@pytest.mark.parametrize(
    "event",
    [
        item("web_search_call", id=5),
        DEEP,
    ],
)
def test_an_item_that_nobody_could_read_is_no_answer(event: bytes) -> None:
    assert failure(event).error.message == MALFORMED


NOTE = {"type": "url_citation", "url": "http://a/", "title": "A", "start_index": 0, "end_index": 1}


@pytest.mark.parametrize(
    "events",
    [
        [text("a"), item("message", content=[{"text": "a", "annotations": [NOTE]}])],
        [text("a"), said("output_text.annotation.added", annotation=NOTE), item("message")],
        [text("a"), said("output_text.annotation.added", annotation=NOTE)],
        [item("message", content=[{"text": "a", "annotations": [NOTE]}])],
    ],
    ids=["in the item", "as an event", "of an item without an end", "in an item that comes whole"],
)
def test_annotations_follow_their_text(events: list[bytes]) -> None:
    said, note, end = read(*events, ended())[:3]
    assert (said, end) == (TextDelta("a"), ItemEnd())
    assert isinstance(note, Annotation)
    assert json.loads(bytes(note.raw)) == NOTE


@pytest.mark.parametrize("note", [5, None, "x", []])
def test_what_is_no_annotation_is_passed_over(note: Any) -> None:
    whole = item("message", content=[{"text": "a", "annotations": [note]}])
    assert read(text("a"), whole, ended())[:-1] == [TextDelta("a"), ItemEnd()]


def test_two_messages_in_a_row_stay_two() -> None:
    whole = item("message", content=[])
    deltas = read(text("a"), whole, added("message"), text("b"), whole, ended())
    assert deltas[:-1] == [TextDelta("a"), ItemEnd(), TextDelta("b"), ItemEnd()]


def test_a_call_comes_in_pieces_and_under_the_name_that_the_client_gave_it() -> None:
    begin = added("function_call", name="get_weather", call_id="c")
    pieces = [said("function_call_arguments.delta", delta=each) for each in ('{"ci', 'ty":"O"}')]
    done = item("function_call", name="get_weather", arguments='{"city":"O"}')
    assert read(begin, *pieces, done, ended())[:-1] == [
        CallStart(kind="function_call", name="get_weather"),
        CallDelta('{"ci'),
        CallDelta('ty":"O"}'),
        ItemEnd(),
    ]


@pytest.mark.parametrize("arguments", ["{}", ""])
def test_a_call_that_is_only_there_as_a_whole_is_read_from_that(arguments: str) -> None:
    deltas = read(item("function_call", name="other", arguments=arguments), ended())
    assert deltas[0] == CallStart(kind="function_call", name="other")
    assert isinstance(deltas[1], CallDelta)
    assert deltas[1].text == "{}"


def test_a_custom_tools_call_is_one_in_either_form() -> None:
    start = CallStart(kind="custom_tool_call", name="shell", namespace="os")
    wrapped = json.dumps({"input": "ls"})
    native = [
        added("custom_tool_call", name="os__shell"),
        said("custom_tool_call_input.delta", delta="ls"),
        item("custom_tool_call", name="os__shell", input="ls"),
    ]
    function = [
        added("function_call", name="os__shell"),
        said("function_call_arguments.delta", delta=wrapped),
        item("function_call", name="os__shell", arguments=wrapped),
    ]
    for events in (native, function):
        assert read(*events, ended())[:-1] == [start, CallDelta("ls"), ItemEnd()]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (ended(), "stop"),
        (ended("incomplete", reason="max_output_tokens"), "length"),
        (ended("incomplete", reason="content_filter"), "content_filter"),
        (ended("incomplete", reason="their own"), "length"),
    ],
)
def test_reasons_of_an_end_are_ours(last: bytes, reason: str) -> None:
    finish = read(text("a"), last)[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == reason


def test_a_call_that_a_limit_cut_is_no_fault() -> None:
    begin = added("function_call", name="get_weather")
    piece = said("function_call_arguments.delta", delta='{"ci')
    done = item("function_call", name="get_weather", arguments='{"ci', status="incomplete")
    for said_of_it in ((), (done,)):
        last = ended("incomplete", reason="max_output_tokens")
        deltas = read(begin, piece, *said_of_it, last)
        assert [type(each) for each in deltas] == [CallStart, CallDelta, Finish]


def test_a_message_that_a_limit_cut_is_not_whole() -> None:
    done = item("message", content=[{"text": "a"}], status="incomplete")
    deltas = read(text("a"), done, ended("incomplete", reason="max_output_tokens"))
    assert [type(each) for each in deltas] == [TextDelta, Finish]


def test_usage_is_what_the_upstream_states() -> None:
    used: Any = {
        "input_tokens": 9,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    response = {"id": "r", "status": "completed", "usage": used}
    finish = read(said("completed", response=response))[-1]
    assert isinstance(finish, Finish)
    counts = finish.input_tokens, finish.cached_tokens
    assert counts == (9, 8)
    assert (finish.output_tokens, finish.reasoning_tokens) == (5, 2)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([ended("failed", error={"code": "server_error", "message": "secret"})], "server_error"),
        (
            [ended("failed", error={"code": "rate_limit_exceeded", "message": "slow"})],
            "rate_limit_exceeded",
        ),
        ([ended("failed", error={"code": "invalid_prompt", "message": "bad"})], "invalid_request"),
        ([said("error", error={"message": "secret"})], "server_error"),
        ([b'data: {"type":"error","code":"rate_limit_exceeded"}'], "rate_limit_exceeded"),
        ([said("output_text.delta", delta=5)], "server_error"),
        ([said("function_call_arguments.delta", delta="{")], "server_error"),
        ([added("function_call")], "server_error"),
        ([added("message", content=5)], "server_error"),
        ([b"data: {"], "server_error"),
        ([item("function_call", name="x", arguments="{")], "server_error"),
        ([item("function_call", name="os__shell", arguments="[]")], "server_error"),
        ([text("a")], "server_error"),
    ],
)
def test_what_goes_wrong_is_typed(events: list[bytes], code: str) -> None:
    found = failure(*events)
    assert found.error.code == code
    assert "secret" not in found.error.message


@pytest.mark.parametrize(
    "kind", ["output_text", "refusal", "reasoning_text", "reasoning_summary_text"]
)
def test_what_is_said_within_a_call_is_no_answer(kind: str) -> None:
    begun = added("function_call", name="get_weather")
    assert failure(begun, said(f"{kind}.delta", delta="a")).error.message == MALFORMED


def test_up_01_the_phase_of_a_message_is_said_before_its_text_or_with_its_end() -> None:
    parts = [{"type": "output_text", "text": "b"}]
    deltas = read(
        added("message", phase="commentary"),
        text("a"),
        item("message", phase="commentary", content=[{"type": "output_text", "text": "a"}]),
        added("message", phase="commentary"),
        added("message"),
        item("message", phase="final_answer", content=parts),
        text("c"),
        item("message", phase=5, content=[{"type": "output_text", "text": "c"}]),
        ended(),
    )
    assert [each for each in deltas if isinstance(each, Phase | TextDelta | ItemEnd)] == [
        Phase("commentary"),
        TextDelta("a"),
        Phase("commentary"),
        ItemEnd(),
        Phase("final_answer"),
        TextDelta("b"),
        Phase("final_answer"),
        ItemEnd(),
        TextDelta("c"),
        ItemEnd(),
    ]
