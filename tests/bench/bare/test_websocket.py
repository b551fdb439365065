"""The bare server of WebSocket: exactly the bytes it was given, turn by turn, token by token."""

from pathlib import Path

import pytest

from tests.bench.bare.floor import turns
from tieline import events
from tieline.codecs import json
from tieline_bench.bare.base import TOKENS, TURNS
from tieline_bench.clients import WebSocketConnection


def encode(event: events.Event) -> bytes:
    """A text frame of a server (RFC 6455 5.2)."""
    text = json.encode(event)
    if len(text) < 126:
        return bytes((0x81, len(text))) + text
    return b"\x81\x7e" + len(text).to_bytes(2, "big") + text


def test_each_request_is_answered_by_the_whole_turn(tmp_path: Path) -> None:
    taken = turns(
        "websocket", tmp_path, connect=WebSocketConnection, encode=encode, mode=TURNS, count=3
    )
    assert [(turn.events, turn.response_id, turn.text) for turn in taken] == [
        (3, "resp_1", "go ")
    ] * 3


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_a_stream_has_all_its_tokens_and_one_end(tmp_path: Path, tokens: int) -> None:
    taken = turns(
        "websocket",
        tmp_path,
        connect=WebSocketConnection,
        encode=encode,
        mode=TOKENS,
        count=2,
        tokens=tokens,
    )
    assert [(turn.events, turn.text) for turn in taken] == [(tokens + 1, "go " * tokens)] * 2
