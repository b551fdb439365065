"""A process without neighbours."""

import os

from tieline.ids import RESPONSE, IdSource
from tieline_server.homes import Alone, Homes


def test_a_process_alone_finds_no_home_for_any_id_and_nobody_else() -> None:
    alone: Homes = Alone()
    for response_id in (IdSource(os.urandom, b"\1\2").new(RESPONSE), "resp_1", ""):
        assert alone.home_of(response_id) is None
    assert alone.others() == ()
