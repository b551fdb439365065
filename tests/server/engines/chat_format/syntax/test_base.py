"""What is around the value of a call."""

import pytest

from tieline_server.engines.chat_format.syntax import FAMILIES, PLAIN, Syntax
from tieline_server.engines.chat_format.syntax.harmony import HARMONY
from tieline_server.engines.chat_format.syntax.llama3 import LLAMA3
from tieline_server.engines.chat_format.syntax.mistral import MISTRAL


@pytest.mark.parametrize("syntax", [PLAIN, *(found for _, found in FAMILIES)], ids=str)
def test_a_call_is_a_head_that_names_the_tool_and_a_tail(syntax: Syntax) -> None:
    head, tail = syntax.frame("look")
    custom_head, custom_tail = syntax.frame("look", custom=True)
    assert "look" in head
    assert "look" in custom_head
    assert "input" in custom_head
    assert "$" not in head + tail + custom_head + custom_tail


def test_the_name_is_a_json_string_but_where_it_is_written_as_it_is() -> None:
    assert PLAIN.frame('a"b')[0] == '{"name":"a\\"b","arguments":'
    assert HARMONY.frame("a")[0].startswith("<|channel|>commentary to=functions.a ")


def test_all_that_may_stand_around_what_is_said_is_in_its_texts() -> None:
    assert LLAMA3.may_open in LLAMA3.texts
    assert {MISTRAL.opens, MISTRAL.between, MISTRAL.closes} <= {*MISTRAL.texts}
    assert HARMONY.thought is not None
    assert {HARMONY.call, HARMONY.custom, HARMONY.says, *HARMONY.thought} <= {*HARMONY.texts}
