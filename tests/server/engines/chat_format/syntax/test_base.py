"""What is around the value of a call."""

import pytest

from tests.support import chat_templates
from tests.support.chat_syntaxes import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, syntax_of
from tieline_server.engines.chat_format.syntax import PLAIN, Syntax
from tieline_server.engines.chat_format.syntax.base import (
    DIGIT,
    ID_LETTERS,
    LETTER,
    may_start,
    starts,
)
from tieline_server.engines.chat_format.syntax.harmony import HARMONY

EACH = [PLAIN, HARMONY, HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS]


@pytest.mark.parametrize("syntax", EACH, ids=str)
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


def test_what_tells_one_call_from_another_is_a_place_in_what_is_sampled() -> None:
    listed, numbered = map(syntax_of, (chat_templates.LIST, chat_templates.NUMBERED))
    assert listed.frame("look")[1] == f', "id": "{LETTER * ID_LETTERS}"}}'
    assert numbered.frame("look")[0] == f"functions.look:{DIGIT}<|args|>"
    form = f"a{LETTER}{DIGIT}b"
    assert starts("aZ1b and more", form)
    assert not starts("aZZb", form)
    assert may_start("aZ", form)
    assert not may_start("a-", form)
    assert not may_start("aZ1b", form)


def test_all_that_may_stand_around_what_is_said_is_in_its_texts() -> None:
    assert LLAMA3.may_open in LLAMA3.texts
    assert {MISTRAL.opens, MISTRAL.between, MISTRAL.closes} <= {*MISTRAL.texts}
    assert HARMONY.thought is not None
    assert {HARMONY.call, HARMONY.custom, HARMONY.says, *HARMONY.thought} <= {*HARMONY.texts}
    assert {"<parameter=", ">\n"} <= {*syntax_of(chat_templates.PARAMETERS).texts}
