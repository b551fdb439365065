"""Values that upstreams send and that are easily lost or made up, in every mode."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.server.engines.upstream.test_modes import ask, in_each_mode, run
from tests.support.engine_contract import WEATHER, deltas_of, finish_of, text_in
from tests.support.upstream_server import Part, chunk, event, streamed, upstream, usage
from tests.support.upstream_shapes import (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    Shape,
    item,
    opened,
    said,
)
from tieline_server.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    ReasoningDelta,
    TextDelta,
    UsageCounter,
)

HIGH, LOW, EMOJI = "\ud83d", "\ude00", "\U0001f600"


async def answer(shape: Shape, *parts: Part, **members: Any) -> list[Delta]:
    """What an upstream that says this comes to."""
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(streamed(*parts))
        return await deltas_of(engine, ask(**members))


def joined(deltas: Sequence[Delta], kind: type) -> str:
    return "".join(delta.text for delta in deltas if type(delta) is kind)  # type: ignore[union-attr]


HALVES = {
    "joined": (["a" + HIGH, LOW + "b"], f"a{EMOJI}b"),
    "joined twice": (["a" + HIGH, LOW + HIGH, LOW], f"a{EMOJI}{EMOJI}"),
    "joined to nothing else": ([HIGH, LOW], EMOJI),
    "never": (["a" + HIGH, "b"], "a\ufffdb"),
    "never, to the end": (["a", HIGH], "a\ufffd"),
    "never begun": (["a", LOW + "b"], "a\ufffdb"),
    "in the midst": (["a" + HIGH + "b", LOW + HIGH + "c"], "a\ufffdb\ufffd\ufffdc"),
    "two first halves": ([HIGH, HIGH, LOW], f"\ufffd{EMOJI}"),
}


@in_each_mode
@pytest.mark.parametrize(("pieces", "text"), HALVES.values(), ids=HALVES)
def test_up_03_halves_of_a_character_are_joined_or_u_fffd(
    shape: Shape, pieces: list[str], text: str
) -> None:
    parts = [_piece(shape, each) for each in pieces]
    deltas = run(answer(shape, *parts, *shape.stop))
    assert text_in(deltas) == text
    assert finish_of(deltas).reason == "stop"


def _piece(shape: Shape, text: str) -> bytes:
    if shape is COMPLETIONS:
        # Its ids are those of whole characters.
        return event({"choices": [{"index": 0, "text": text}]})
    return shape.text(text)


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
@pytest.mark.parametrize("second", [LOW, "x"])
def test_up_03_so_are_those_of_reasoning(shape: Shape, second: str) -> None:
    pieces = ["a" + HIGH, second]
    if shape is CHAT:
        parts = [chunk(reasoning_content=each) for each in pieces]
    else:
        parts = [said("reasoning_text.delta", item_id="rs_1", delta=each) for each in pieces]
    deltas = run(answer(shape, *parts, shape.text("fine"), *shape.stop))
    assert joined(deltas, ReasoningDelta) == ("a" + EMOJI if second == LOW else "a\ufffdx")
    assert text_in(deltas) == "fine"


@in_each_mode
@pytest.mark.parametrize("second", [LOW, "x", ""])
def test_up_03_and_those_of_a_call(shape: Shape, second: str) -> None:
    pieces = ['{"city":"', "a" + HIGH, second, '","unit":"celsius"}']
    if shape is COMPLETIONS:
        head = '{"name":"get_weather","arguments":'
        parts = [_piece(shape, each) for each in (head, *pieces, "}")]
    else:
        parts = shape.call("get_weather", *pieces)
    deltas = run(answer(shape, *parts, *shape.stop, tools=[WEATHER]))
    city = json.loads(joined(deltas, CallDelta))["city"]
    assert city == ("a" + EMOJI if second == LOW else "a\ufffd" + second)


@in_each_mode
def test_up_03_half_a_character_before_anything_else_stays_in_its_place(shape: Shape) -> None:
    parts = [_piece(shape, "a" + HIGH), _piece(shape, ""), _piece(shape, "b"), *shape.stop]
    assert text_in(run(answer(shape, *parts))) == "a\ufffdb"


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
def test_up_03_an_escape_of_half_a_character_in_arguments_is_json(shape: Shape) -> None:
    arguments = r'{"city":"\ud83d","unit":"celsius","n":1e999}'
    parts = shape.call("get_weather", arguments)
    deltas = run(answer(shape, *parts, *shape.stop, tools=[WEATHER]))
    assert joined(deltas, CallDelta) == arguments


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
def test_up_03_and_so_is_one_in_the_text_of_a_custom_tool(shape: Shape) -> None:
    tool = {"type": "custom", "name": "echo"}
    parts = shape.call("echo", r'{"input":"a\ud83d', r'b"}')
    deltas = run(answer(shape, *parts, *shape.stop, tools=[tool]))
    assert joined(deltas, CallDelta) == "a\ufffdb"


@in_each_mode
def test_up_03_text_that_is_no_utf_8_is_text_all_the_same(shape: Shape) -> None:
    broken = shape.text("aXb").replace(b"X", b"\xff")
    if shape is COMPLETIONS:
        broken = _piece(shape, "aXb").replace(b"X", b"\xff")
    assert text_in(run(answer(shape, broken, *shape.stop))) == "a\ufffdb"


NUMBERS = ["-Infinity", "Infinity", "NaN", "1e999", "-1e999", "-" + "9" * 400]


def _entry(token: str, value: str, *, top: str | None = None) -> str:
    others = "" if top is None else f'{{"token":"z","bytes":[122],"logprob":{top}}},'
    others += f'{{"token":"{token}","bytes":[97],"logprob":-0.5}}'
    return f'{{"token":"{token}","bytes":[97],"logprob":{value},"top_logprobs":[{others}]}}'


def _with_logprobs(shape: Shape, value: str, *, top: bool) -> bytes:
    """A piece of text whose second token, or an alternative to it, has this value."""
    entries = [_entry("a", "-0.5"), _entry("a", "-0.5", top=value) if top else _entry("a", value)]
    whole = f"[{','.join(entries)}]"
    if shape is CHAT:
        choice = f'{{"index":0,"delta":{{"content":"aa"}},"logprobs":{{"content":{whole}}}}}'
        return f'data: {{"choices":[{choice}]}}\n\n'.encode()
    if shape is RESPONSES:
        kind = "response.output_text.delta"
        return f'data: {{"type":"{kind}","delta":"aa","logprobs":{whole}}}\n\n'.encode()
    values = f"[-0.5,{'-0.5' if top else value}]"
    tops = f'[{{"a":-0.5}},{{"a":-0.5,"z":{value if top else -1}}}]'
    logprobs = f'{{"tokens":["a","a"],"token_logprobs":{values},"top_logprobs":{tops}}}'
    return f'data: {{"choices":[{{"index":0,"text":"aa","logprobs":{logprobs}}}]}}\n\n'.encode()


@in_each_mode
@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: value[:9])
@pytest.mark.parametrize("top", [False, True], ids=["token", "other"])
def test_up_04_a_log_probability_that_is_no_number_is_left_out(
    shape: Shape, value: str, top: bool
) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    deltas = run(answer(shape, _with_logprobs(shape, value, top=top), *shape.stop, **asked))
    assert text_in(deltas) == "aa"
    entries = [
        json.loads(bytes(each))
        for delta in deltas
        if isinstance(delta, TextDelta)
        for each in delta.logprobs
    ]
    assert [entry["logprob"] for entry in entries] == ([-0.5, -0.5] if top else [-0.5])
    assert [[other["logprob"] for other in each["top_logprobs"]] for each in entries] == (
        [[-0.5], [-0.5]] if top else [[-0.5]]
    )


@in_each_mode
@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "9" * 5000], ids=lambda v: v[:9])
def test_up_04_a_number_that_is_none_elsewhere_fails_no_turn(shape: Shape, value: str) -> None:
    """Nor does it in usage, or in members that are nobody's."""
    last = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": "@"}, "x": "@"})
    if shape is RESPONSES:
        used = {"input_tokens": 7, "output_tokens": "@"}
        last = said("completed", response={"id": "r", "status": "completed", "usage": used})
    stop = [each for each in shape.stop if b"usage" not in each]
    parts = [shape.text("fine"), *stop, last.replace(b'"@"', value.encode())]
    end = finish_of(run(answer(shape, *parts)))
    assert (end.reason, end.input_tokens, end.output_tokens) == ("stop", 7, None)


USAGES: list[tuple[dict[str, Any], int]] = [
    ({"cached_tokens": 40, "cache_write_tokens": 0}, 0),
    ({"cached_tokens": 40, "cache_write_tokens": 25}, 25),
    ({"cached_tokens": 40}, 0),
    ({"cached_tokens": 40, "cache_write_tokens": None}, 0),
    ({"cached_tokens": 40, "cache_write_tokens": -3}, 0),
    ({"cached_tokens": 40, "cache_write_tokens": "25"}, 25),
    ({"cached_tokens": 40, "cache_write_tokens": 1000}, 60),
    ({}, 0),
]


def told(end: Finish) -> int:
    """What the client is told of a turn that ends so."""
    return UsageCounter().usage(end).input_tokens_details.cache_write_tokens


@in_each_mode
@pytest.mark.parametrize(("details", "written"), USAGES)
def test_up_05_what_was_written_to_the_cache_is_what_is_stated(
    shape: Shape, details: dict[str, Any], written: int
) -> None:
    if shape is RESPONSES:
        used = {"input_tokens": 100, "output_tokens": 1, "input_tokens_details": details}
        stop = [said("completed", response={"id": "r", "status": "completed", "usage": used})]
    else:
        stop = [shape.stop[0], usage(100, 1, prompt_tokens_details=details)]
    end = finish_of(run(answer(shape, shape.text("fine"), *stop)))
    assert end.cached_tokens == details.get("cached_tokens")
    assert told(end) == written


@pytest.mark.parametrize("shape", [CHAT, COMPLETIONS], ids=str)
def test_up_05_another_name_for_it_is_read_too(shape: Shape) -> None:
    last = usage(100, 1, prompt_cache_hit_tokens=40, cache_creation_input_tokens=25)
    end = finish_of(run(answer(shape, shape.text("fine"), shape.stop[0], last)))
    assert (end.cached_tokens, told(end)) == (40, 25)


def test_an_item_of_a_foreign_tool_with_a_number_that_is_none_is_passed_on_without_it() -> None:
    odd = item("web_search_call", id="ws_1", score="@").replace(b'"@"', b"1e999")
    deltas = run(answer(RESPONSES, odd, RESPONSES.text("fine"), *RESPONSES.stop))
    whole = next(delta for delta in deltas if hasattr(delta, "item"))
    assert json.loads(whole.item.raw) == {"type": "web_search_call", "id": "ws_1", "score": None}


PASSED: list[tuple[str, Any]] = [
    ("service_tier", "flex"),
    ("service_tier", "auto"),
    ("safety_identifier", "someone"),
    ("prompt_cache_key", "key"),
    ("prompt_cache_retention", "24h"),
    ("user", "someone"),
]


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
@pytest.mark.parametrize(("name", "value"), PASSED)
def test_up_01_settings_that_mean_something_upstream_alone_go_as_they_are(
    shape: Shape, name: str, value: Any
) -> None:
    assert run(asked(shape, **{name: value}))[name] == value
    assert name not in run(asked(shape))


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
def test_up_01_so_does_verbosity_where_each_api_has_it(shape: Shape) -> None:
    body = run(asked(shape, text={"verbosity": "low"}))
    said = body["verbosity"] if shape is CHAT else body["text"]["verbosity"]
    assert said == "low"
    assert "verbosity" not in run(asked(shape, text={"format": {"type": "text"}}))


async def asked(shape: Shape, content: Any = "hello", **members: Any) -> dict[str, Any]:
    """The body that an upstream gets for this."""
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(shape.good)
        await deltas_of(engine, ask(content, **members))
        return server.bodies[-1]


NOTE = {"type": "url_citation", "url": "http://a/", "title": "A", "start_index": 0, "end_index": 4}


def test_up_01_phases_and_annotations_are_said_again_upstream() -> None:
    part = {"type": "output_text", "text": "fine", "annotations": [NOTE], "logprobs": []}
    plain = {**part, "annotations": []}
    content = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "phase": "commentary", "content": [plain]},
        {"role": "assistant", "phase": "final_answer", "content": [part]},
        {"role": "assistant", "phase": None, "content": [plain]},
        {"role": "user", "content": "go on"},
    ]
    told = run(asked(RESPONSES, content))["input"]
    message = {"type": "message", "role": "assistant"}
    noted = {"type": "output_text", "text": "fine", "annotations": [NOTE]}
    assert told[1:4] == [
        {**message, "phase": "commentary", "content": "fine"},
        {**message, "phase": "final_answer", "content": [noted]},
        {**message, "content": "fine"},
    ]


NULLS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": None, "summary": []},
    {"type": "reasoning", "id": None, "summary": [], "content": None, "encrypted_content": None},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "id": None, "phase": None, "content": "fine"},
]


@in_each_mode
@pytest.mark.parametrize("given", NULLS)
def test_up_02_null_is_as_if_absent(shape: Shape, given: dict[str, Any]) -> None:
    def without_null(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_null(each) for name, each in value.items() if each is not None}
        return [*map(without_null, value)] if isinstance(value, list) else value

    last = {"role": "user", "content": "go on"}
    bodies = [run(asked(shape, [each, last])) for each in (given, without_null(given))]
    for body in bodies:
        body.pop("cache_salt", None)
    assert bodies[0] == bodies[1]
