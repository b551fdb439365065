"""A process without peers."""

import os

from tieline.ids import RESPONSE, IdSource
from tieline_server.peers import NoPeers, Peers


def test_a_process_alone_finds_no_peer_for_any_id() -> None:
    alone: Peers = NoPeers()
    for response_id in (IdSource(os.urandom, b"\1\2").new(RESPONSE), "resp_1", ""):
        assert alone.peer_of(response_id) is None
    assert alone.others() == ()
