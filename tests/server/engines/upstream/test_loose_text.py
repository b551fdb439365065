"""A call with white space is a call, and what is none stays as it was written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_contract import WEATHER, prompt
from tieline_server.core.deltas import CallDelta, CallStart, Delta, TextDelta
from tieline_server.engines.chat_format.constrain import Constraint, Speech, constraint_of
from tieline_server.engines.chat_format.sampled_text import Piece
from tieline_server.engines.upstream.loose_text import LooseReader, Squeeze

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def constraint() -> Constraint:
    settings = prompt(tools=[WEATHER]).settings
    return constraint_of(settings.tools.offered, settings, Speech(special={"end": 2}, end="end"))


def read(text: str, size: int) -> list[Delta]:
    reader = LooseReader(constraint())
    pieces = [Piece(text[at : at + size], 1) for at in range(0, len(text), size)]
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    return [*deltas, *reader.end("length")[0]]


@given(values, st.integers(1, 9))
def test_squeezed_json_is_the_same_value_and_the_shortest(value: object, size: int) -> None:
    text = json.dumps(value, indent=1)
    squeeze = Squeeze()
    squeezed = "".join(squeeze.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert squeezed == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_call_is_found_in_pieces_of_any_size(size: int) -> None:
    text = '\n {"name" : "get_weather",\n "arguments": {"city": "New  York", "unit": "celsius"}}'
    start, *rest = read(text, size)
    assert start == CallStart(kind="function_call", name="get_weather", tokens=start.tokens)  # type: ignore[union-attr]
    arguments = "".join(each.text for each in rest if isinstance(each, CallDelta))
    assert json.loads(arguments) == {"city": "New  York", "unit": "celsius"}


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "text", ["Fine,  thank you.", '{ "name": "none" }', '{"na', "  \n", '{ "name": "get_weather" }']
)
def test_what_is_no_call_is_text_as_it_came(text: str, size: int) -> None:
    deltas = read(text, size)
    assert all(isinstance(each, TextDelta) for each in deltas)
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == text
