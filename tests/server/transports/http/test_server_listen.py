"""Listening sockets."""

import socket
from contextlib import closing

import pytest

from tieline_server.transports.http.server import listen


def test_every_address_of_a_name_listens_on_one_port() -> None:
    sockets = listen("localhost:0")
    try:
        assert len({made.getsockname()[1] for made in sockets}) == 1
        assert {made.getsockname()[0] for made in sockets} <= {"127.0.0.1", "::1"}
    finally:
        for made in sockets:
            made.close()


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            listen(f"127.0.0.1:{port}")


def test_a_name_that_does_not_exist_is_said_in_one_line() -> None:
    with pytest.raises(OSError, match=r"cannot listen on nobody\.invalid:1"):
        listen("nobody.invalid:1")


def test_processes_may_share_a_port() -> None:
    (first,) = listen("127.0.0.1:0", reuse_port=True)
    with closing(first):
        port = first.getsockname()[1]
        (second,) = listen(f"127.0.0.1:{port}", reuse_port=True)
        second.close()
