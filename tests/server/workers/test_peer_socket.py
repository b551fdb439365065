"""A peer as its peers ask it: one connection and another, none, too many, or no messages."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.event_samples import NUMBERED
from tests.support.scripted_peer import ScriptedPeer
from tieline.codecs.json import encode
from tieline.requests import Resume as ResumeRequest
from tieline_server.workers import peer_socket as socket_module
from tieline_server.workers.framing import pack
from tieline_server.workers.peer_messages import (
    ANSWERED,
    Answer,
    Batch,
    Cancel,
    ClientEvent,
    Ended,
    Follow,
    Forget,
    Heartbeat,
    Look,
    Metrics,
    Moved,
    Refused,
    Resume,
    answer_of,
)
from tieline_server.workers.peer_socket import PeerSocket

TAKE_OVER = Resume(ClientEvent(encode(ResumeRequest(response_id="resp_1")), "ann", None), "grpc")


class Served:
    """A scripted peer behind its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.peer = ScriptedPeer()
        self.socket = PeerSocket(self.peer, path)

    @asynccontextmanager
    async def dialled(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection to it."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        try:
            yield reader, writer
        finally:
            writer.close()


@asynccontextmanager
async def served_in(folder: Path) -> AsyncIterator[Served]:
    """A peer that is served."""
    served = Served(folder / "s.sock")
    await served.socket.open()
    try:
        yield served
    finally:
        await served.socket.close()


async def test_a_connection_takes_one_call_after_another(tmp_path: Path) -> None:
    async with served_in(tmp_path) as served:
        turn = served.peer.turn("resp_1")
        async with served.dialled() as (reader, writer):
            for call, answer in (
                (Look("ann", "resp_1"), answer_of(turn.snapshot())),
                (Look("bob", "resp_1"), Answer()),
                (Metrics(), Answer(b"turns 1\n")),
                (Forget("ann", "resp_1"), Answer()),
                (Cancel("ann", "resp_1"), Answer()),
            ):
                writer.write(pack(call))
                assert await ANSWERED.read(reader) == answer


async def test_a_stream_takes_the_connection_to_its_end(tmp_path: Path) -> None:
    async with served_in(tmp_path) as served:
        served.peer.turn("resp_1").add(NUMBERED[:2], over=True)
        async with served.dialled() as (reader, writer):
            writer.write(pack(Follow("ann", "resp_1", None)))
            heard = [await ANSWERED.read(reader) for _ in range(4)]
            batches = [Batch([encode(event)]) for event in NUMBERED[:2]]
            assert heard == [*batches, Ended(), None]


async def test_a_stream_that_is_refused_leaves_the_connection_for_the_next_call(
    tmp_path: Path,
) -> None:
    async with served_in(tmp_path) as served, served.dialled() as (reader, writer):
        for asked in (Follow("ann", "resp_1", None), TAKE_OVER):
            writer.write(pack(asked))
            said = await ANSWERED.read(reader)
            assert isinstance(said, Refused)
            assert (said.code, said.status) == ("response_not_found", 404)


async def test_what_is_no_message_ends_its_connection_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        served_in(tmp_path) as served,
        served.dialled() as (reader, writer),
        served.dialled() as (other, asking),
    ):
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        asking.write(pack(Metrics()))
        assert await ANSWERED.read(other) == Answer(b"turns 0\n")
    assert caplog.messages == []


async def test_a_fault_is_logged_and_says_nothing_to_who_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served_in(tmp_path) as served:
        served.peer.broken = True
        async with served.dialled() as (reader, writer):
            writer.write(pack(Look("ann", "resp_1")))
            said = await ANSWERED.read(reader)
            assert isinstance(said, Refused)
            assert (said.code, "secret" in said.message) == ("server_error", False)
            served.peer.broken = False
            writer.write(pack(Look("ann", "resp_1")))
            assert await ANSWERED.read(reader) == Answer()
    assert "a secret" in caplog.text


@pytest.mark.parametrize("resumed", [False, True], ids=["followed", "resumed"])
async def test_a_silent_stream_says_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    monkeypatch.setattr(socket_module, "HEARTBEAT", 0.01)

    async with served_in(tmp_path) as served:
        served.peer.turn("resp_1")
        async with served.dialled() as (reader, writer):
            writer.write(pack(TAKE_OVER if resumed else Follow("ann", "resp_1", None)))
            heard = [await ANSWERED.read(reader) for _ in range(3)]
            assert heard == [Moved(), Heartbeat(), Heartbeat()] if resumed else [Heartbeat()] * 3


async def test_a_reader_that_goes_ends_its_stream_and_closes_its_lane(tmp_path: Path) -> None:
    async with served_in(tmp_path) as served:
        turn = served.peer.turn("resp_1")
        turn.add(NUMBERED[:1])
        async with served.dialled() as (reader, writer):
            writer.write(pack(TAKE_OVER))
            assert await ANSWERED.read(reader) == Moved()
            await ANSWERED.read(reader)
            assert turn.followers == 1
        while not served.peer.closed:
            served.peer.news.clear()
            await served.peer.news.wait()
        assert turn.followers == 0


async def test_when_it_drains_no_other_finds_it_and_what_is_read_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_in(tmp_path) as served:
        turn = served.peer.turn("resp_1")
        turn.add(NUMBERED[:1])
        monkeypatch.setattr(served.peer, "drain", lambda seconds: asyncio.sleep(0))
        async with served.dialled() as (reader, writer):
            writer.write(pack(Follow("ann", "resp_1", None)))
            await ANSWERED.read(reader)
            draining = asyncio.create_task(served.socket.drain(60.0))
            await asyncio.sleep(0)
            with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
                await asyncio.open_unix_connection(served.path)
            assert not draining.done()
            turn.add(NUMBERED[1:2], over=True)
            await draining
            assert await ANSWERED.read(reader) == Batch([encode(NUMBERED[1])])
            assert await ANSWERED.read(reader) == Ended()


async def test_what_is_still_read_when_its_time_is_over_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_module, "FAREWELL", 0.01)

    async with served_in(tmp_path) as served:
        turn = served.peer.turn("resp_1")
        turn.add(NUMBERED[:1])
        # A peer whose turns do not end when they should.
        monkeypatch.setattr(served.peer, "drain", lambda seconds: asyncio.sleep(0))
        async with served.dialled() as (reader, writer):
            writer.write(pack(Follow("ann", "resp_1", None)))
            await ANSWERED.read(reader)
            await served.socket.drain(0.0)
            assert turn.followers == 1
            await served.socket.close()
            assert turn.followers == 0
            assert await reader.read() == b""


async def test_it_is_closed_more_than_once_and_can_be_opened_again_by_another(
    tmp_path: Path,
) -> None:
    async with served_in(tmp_path) as served:
        async with served.dialled() as (reader, _):
            await served.socket.close()
            assert await reader.read() == b""
        await served.socket.close()
        assert not served.path.exists()
        other = PeerSocket(ScriptedPeer(), served.path)
        await other.open()
        await served.socket.close()
        assert served.path.exists()
        await other.close()


ASKS = """
import os, socket, sys
os.setuid(65534)
dialled = socket.socket(socket.AF_UNIX)
dialled.connect(sys.argv[1])
print(dialled.recv(1))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_is_told_nothing() -> None:
    # No folder of pytest's, which are for their user alone.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        async with served_in(Path(folder)) as served:
            served.path.chmod(0o777)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ASKS, str(served.path), stdout=subprocess.PIPE
            )
            assert (await process.communicate())[0] == b"b''\n"
