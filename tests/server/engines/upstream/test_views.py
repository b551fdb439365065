"""What is read of items: the members that go upstream, as they came."""

import msgspec
import pytest

from tieline_server.engines.upstream import views


def test_free_members_keep_their_bytes() -> None:
    message = views.MESSAGE.decode(b'{"role":"user","content":[ {"type":"x"} ],"status":"new"}')
    assert (message.role, bytes(message.content)) == ("user", b'[ {"type":"x"} ]')
    output = views.OUTPUT.decode(b'{"call_id":"c","output":"a\\u00e9"}')
    assert bytes(output.output) == b'"a\\u00e9"'


def test_one_view_serves_both_kinds_of_call() -> None:
    function = views.CALL.decode(b'{"call_id":"c","name":"f","arguments":"{}"}')
    custom = views.CALL.decode(b'{"call_id":"c","name":"f","input":"go","namespace":"n"}')
    assert (bytes(function.arguments), function.input) == (b'"{}"', "")
    assert (custom.input, custom.namespace) == ("go", "n")


def test_a_call_has_an_id_and_a_name() -> None:
    with pytest.raises(msgspec.ValidationError):
        views.CALL.decode(b'{"call_id":"c"}')
