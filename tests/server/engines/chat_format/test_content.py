"""The text of messages and tool outputs."""

import pytest
from msgspec import Raw

from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.content import text_of


def test_parts_are_one_text_whatever_their_type() -> None:
    parts = [Raw(b'{"type":"input_text","text":"a"}'), Raw(b'{"type":"refusal","refusal":"b"}')]
    assert text_of(parts) == "ab"
    assert text_of("as it is") == "as it is"


def test_a_part_that_is_no_text_is_refused_by_its_type() -> None:
    with pytest.raises(EngineError, match="content of type 'input_image'") as caught:
        text_of([Raw(b'{"type":"input_image","image_url":"x"}')])
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "input")
