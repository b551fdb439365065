"""What a guard reads of items and settings."""

import json
from typing import Any

import pytest

from tests.support.engine_contract import WEATHER, prompt
from tieline.items import decode, decode_input
from tieline_server.guards.base import Piece
from tieline_server.guards.pieces import heads_of, is_models_own, piece_of


def piece(item: Any) -> Piece:
    return piece_of(decode(json.dumps(item).encode()))


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"role": "user", "content": "hello"}, "hello"),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "b"}, IMAGE]},
            "b",
        ),
        (
            {"type": "function_call_output", "call_id": "call_bad", "output": "so"},
            "so",
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "do"},
            "run\ndo",
        ),
        (
            {
                "type": "function_call",
                "call_id": "c",
                "name": "f",
                "arguments": r'{"q":"b\u0061d"}',
            },
            'f\n{"q":"b\\u0061d"}\n{"q":"bad"}',
        ),
        (
            {
                "type": "reasoning",
                "id": "rs_bad",
                "summary": [{"type": "summary_text", "text": "s"}],
            },
            "s",
        ),
        ({"type": "later_kind", "id": "x", "deep": [{"er": ["a", {"b": "c"}]}], "n": 3}, "a\nc"),
        (
            {
                "role": "user",
                "content": [{"type": "input_file", "filename": "f.txt", "file_data": "data:AAAA"}],
            },
            "f.txt",
        ),
    ],
)
def test_every_text_of_an_item_is_read_but_no_names_ids_and_bytes(item: Any, text: str) -> None:
    assert piece(item).text == text


def test_a_phrase_that_is_split_over_parts_is_read_as_a_model_reads_it() -> None:
    parts = [{"type": "input_text", "text": "b"}, IMAGE, {"type": "input_text", "text": "ad"}]
    assert "bad" in piece({"role": "user", "content": parts}).text
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    assert "bad" in piece(output).text
    said = [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "ad"}]
    assert "bad" in piece({"role": "assistant", "content": said}).text


def test_images_are_no_text_and_come_beside_it() -> None:
    urls = [IMAGE, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    found = piece({"role": "user", "content": [*urls, {"type": "input_text", "text": "see"}]})
    assert found == Piece("see", ("data:image/png;base64,AAAA", "https://example.com/a.png"))


@pytest.mark.parametrize(
    ("item", "own"),
    [
        ({"role": "user", "content": "a"}, False),
        ({"role": "developer", "content": "a"}, False),
        ({"role": "assistant", "content": "a"}, True),
        ({"type": "reasoning", "summary": []}, True),
        ({"type": "function_call", "call_id": "c", "name": "f"}, True),
        ({"type": "function_call_output", "call_id": "c", "output": "a"}, False),
        ({"type": "later_kind"}, False),
    ],
)
def test_models_write_messages_of_the_assistant_thoughts_and_calls(item: Any, own: bool) -> None:
    (read,) = decode_input(json.dumps([item]).encode())
    assert is_models_own(read) is own


def test_what_comes_beside_the_input_is_named_by_its_parameter() -> None:
    schema = {"type": "object", "properties": {"q": {"description": "of text"}}}
    web = {"type": "namespace", "name": "web", "tools": [{**WEATHER, "name": "open"}]}
    asked = prompt(
        instructions="be brief",
        tools=[WEATHER, web],
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
    )
    heads = dict(heads_of(asked.settings))
    assert list(heads) == ["instructions", "tools", "text"]
    assert heads["instructions"] == Piece("be brief")
    assert heads["tools"].text.startswith("get_weather\nThe weather in a city.")
    assert "celsius" in heads["tools"].text
    assert "\nweb\nopen\n" in heads["tools"].text
    assert "\nunit\n" in heads["tools"].text
    assert heads["text"] == Piece("n\nq\nof text")
    assert list(heads_of(prompt().settings)) == []
