"""LB-05 with several workers: caps count over all of them."""

import json
import os
import signal
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.process_state import until
from tests.support.several import Several, several

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a close sends a reset (RFC 9293 3.10.7)."""


def dial(server: Several, stack: ExitStack) -> tuple[socket.socket, bytes]:
    """A WebSocket handshake on a connection of its own, and all of the answer to it."""
    host, _, port = server.http.rpartition(":")
    sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
    sock.sendall(HANDSHAKE)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            while len(body) < int(line.partition(b":")[2]):
                body += sock.recv(65536)
    return sock, head + b"\r\n\r\n" + body


def upgraded(answer: bytes) -> bool:
    """Whether a handshake succeeded."""
    return answer.startswith(b"HTTP/1.1 101 ")


def until_upgraded(server: Several, stack: ExitStack) -> socket.socket:
    """A connection that succeeds, tried until it does."""
    while True:
        sock, answer = dial(server, stack)
        if upgraded(answer):
            return sock
        sock.close()


def reset(sock: socket.socket) -> None:
    """Ends a connection by a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def test_lb_05_the_fifth_of_four_is_refused_and_resets_make_room_at_once(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Within a second, under --soak; else the machine may be full."""
    with several(tmp_path, "--max-connections", "4") as server, ExitStack() as stack:
        for _ in range(10):
            opened = [until_upgraded(server, stack) for _ in range(4)]
            _, answer = dial(server, stack)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: 1" in head.lower().split(b"\r\n")
            assert json.loads(body)["error"]["code"] == "too_many_connections"
            for sock in opened[:2]:
                reset(sock)
            reset_at = time.monotonic()
            new = [until_upgraded(server, stack) for _ in range(2)]
            if pytestconfig.getoption("--soak"):
                assert time.monotonic() - reset_at < 1.0
            assert not upgraded(dial(server, stack)[1])
            for sock in (*new, *opened[2:]):
                reset(sock)


def test_what_a_worker_that_was_killed_had_is_free_again(tmp_path: Path) -> None:
    with several(tmp_path, "--max-connections", "4") as server, ExitStack() as stack:
        opened = [dial(server, stack) for _ in range(4)]
        assert all(upgraded(answer) for _, answer in opened)
        for pid in server.workers.values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(server.lines("worker_died")) == 2)
        server.whole()
        again = [until_upgraded(server, stack) for _ in range(4)]
        assert not upgraded(dial(server, stack)[1])
        del again
