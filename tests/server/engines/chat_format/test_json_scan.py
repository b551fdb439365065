"""JSON that comes piece by piece."""

import pytest

from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.json_scan import JsonScan, StringText, check_json, quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [('"\\ud800"', "\ufffd"), ('"\\ud800x"', "\ufffdx"), ('"\\udc00"', "\ufffd"), ('""', "")],
)
def test_half_a_surrogate_pair_becomes_the_replacement_character(value: str, text: str) -> None:
    for pieces in ([value], list(value)):
        reader = StringText()
        assert "".join(reader.feed(piece) for piece in pieces) == text


@pytest.mark.parametrize(
    ("text", "rest"),
    [("{}x", "x"), ('"a\\""]', "]"), ("[[]]", ""), ("12", None), ("nul", None), ('{"}"', None)],
)
def test_the_end_of_a_value_is_where_its_last_bracket_closes(text: str, rest: str | None) -> None:
    assert JsonScan().feed(text) == rest


def test_text_as_json_is_read_back_as_it_was() -> None:
    assert quoted('a"\n🦊') == '"a\\"\\n🦊"'
    check_json(quoted("\0"))
    with pytest.raises(EngineError):
        check_json("[" * 100_000)
