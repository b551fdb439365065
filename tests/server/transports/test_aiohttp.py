"""The private names of aiohttp are there, and mean what they meant."""

import inspect

import pytest
from aiohttp import web

from tieline_server.transports._aiohttp import JoinedResponse, RequestHandler


def test_a_streamed_answer_has_a_switch_for_when_its_head_leaves() -> None:
    assert web.StreamResponse._send_headers_immediately is True
    assert web.Response._send_headers_immediately is False
    assert JoinedResponse._send_headers_immediately is False


@pytest.mark.parametrize(
    "name",
    ["_loop", "_max_msg_queue_size", "_msg_queue_resume_size", "_parser", "_read_bufsize",
     "_reading_paused", "max_field_size", "max_line_size"],
)  # fmt: skip
def test_a_connection_has_its_slots(name: str) -> None:
    slots = {each for kind in web.RequestHandler.__mro__ for each in getattr(kind, "__slots__", ())}
    assert name in slots


def test_an_upgrade_hands_its_reader_over_first() -> None:
    _, first, *_ = inspect.signature(web.RequestHandler.set_parser).parameters
    assert first == "parser"
    assert "set_parser" in vars(RequestHandler)
