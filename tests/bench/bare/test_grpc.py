"""The bare server of gRPC: exactly the bytes that it was given, turn after turn, token by token."""

from pathlib import Path

import pytest

from tests.bench.bare.floor import turns
from tieline import events
from tieline.codecs import proto
from tieline_bench.bare.base import TOKENS, TURNS
from tieline_bench.clients import GrpcConnection


def encode(event: events.Event) -> bytes:
    """A message of its own: joined, such messages parse as one."""
    return proto.encode_event(event)


def test_each_request_is_answered_by_the_whole_turn(tmp_path: Path) -> None:
    taken = turns("grpc", tmp_path, connect=GrpcConnection, encode=encode, mode=TURNS, count=3)
    assert [(turn.events, turn.response_id, turn.text) for turn in taken] == [
        (3, "resp_1", "go ")
    ] * 3


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_a_stream_has_all_its_tokens_and_one_end(tmp_path: Path, tokens: int) -> None:
    taken = turns(
        "grpc", tmp_path, connect=GrpcConnection, encode=encode, mode=TOKENS, count=2, tokens=tokens
    )
    assert [(turn.events, turn.text) for turn in taken] == [(tokens + 1, "go " * tokens)] * 2
