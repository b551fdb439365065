"""HTTP to an upstream: real connections to servers that answer with given bytes."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Final

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.upstream.http import (
    MOST_HEAD,
    MOST_UNREAD,
    Connection,
    HttpError,
    Late,
    Pool,
    Unreachable,
)

CHUNKED: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n8;name=value\r\n, world!\r\n0\r\nTrailer: x\r\n\r\n"
)
BEGUN: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED: Final = (
    b"HTTP/1.1 429 Too Many\r\ncontent-length: 13\r\nRetry-After:  7 \r\n\r\nhello, world!"
)
CLOSED: Final = b"HTTP/1.1 200 OK\r\n\r\nhello, world!"
CONTINUED: Final = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + SIZED
EMPTY: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


class Upstream:
    """What a server has seen, and how it answers: ``pieces`` for each request, one write each."""

    def __init__(self, *pieces: bytes, closes: bool) -> None:
        self.pieces = pieces
        self.closes = closes
        self.port = 0
        self.connections = 0
        self.requests: list[bytes] = []
        self.lost = asyncio.Event()
        """Set when a client has closed a connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/chat"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    # So that the piece arrives by itself.
                    await asyncio.sleep(0)
                if self.closes:
                    break
        self.lost.set()
        writer.close()


@asynccontextmanager
async def serving(
    *pieces: bytes, closes: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Upstream]:
    upstream = Upstream(*pieces, closes=closes)
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()


def pooled(keep: float = 60.0, connect: float = 5.0) -> Pool:
    return Pool(connect=connect, keep=keep, headers={"User-Agent": "tests"})


async def body_of(connection: Connection) -> bytes:
    pieces = []
    while piece := await connection.read():
        pieces.append(piece)
    return b"".join(pieces)


async def asked(pool: Pool, upstream: Upstream) -> bytes:
    """Posts, reads all and releases."""
    connection = await pool.post(upstream.url, b"{}")
    body = await body_of(connection)
    connection.release()
    return body


async def until(holds: Callable[[], bool]) -> None:
    """Lets the loop turn until something holds."""
    for _ in count():
        if holds():
            return
        await asyncio.sleep(0)


def closed(connection: Connection) -> bool:
    return not connection.usable


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    uvloop.run(bounded())


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (CHUNKED, 200, b"hello, world!"),
        (SIZED, 429, b"hello, world!"),
        (CLOSED, 200, b"hello, world!"),
        (CONTINUED, 429, b"hello, world!"),
        (EMPTY, 204, b""),
    ],
    ids=["chunked", "sized", "until-close", "continued", "empty"],
)
@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_an_answer_is_the_same_however_it_is_cut(
    answer: bytes, status: int, body: bytes, size: int
) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    async with serving(*pieces, closes=answer is CLOSED) as upstream:
        pool = pooled()
        connection = await pool.post(upstream.url, b"{}")
        assert connection.status == status
        assert await body_of(connection) == body
        assert connection.ended
        if status == 429:
            assert connection.headers == {"content-length": "13", "retry-after": "7"}
        pool.close()


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
async def test_chunks_cut_anywhere_are_their_bytes(
    chunks: list[bytes], data: st.DataObject
) -> None:
    coded = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
    answer = BEGUN + coded
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))

    connection = fed()
    for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        connection.data_received(answer[begin:end])
    assert await body_of(connection) == b"".join(chunks)
    assert connection.ended


class Still(asyncio.Transport):
    """A transport that goes nowhere."""

    aborted = False

    def writelines(self, _: object) -> None:
        return

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


def fed() -> Connection:
    """A connection whose request is out, to be fed by hand."""
    connection = Connection(pooled(), None)  # type: ignore[arg-type]
    connection.connection_made(Still())
    connection.send(b"", b"")
    return connection


async def test_the_next_request_goes_over_the_same_connection_and_says_what_it_must() -> None:
    async with serving(CHUNKED) as upstream:
        pool = pooled()
        for _ in range(3):
            assert await asked(pool, upstream) == b"hello, world!"
        assert upstream.connections == 1
        assert upstream.requests[2] == (
            b"POST /v1/chat HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\n"
            b"Content-Type: application/json\r\nUser-Agent: tests\r\n"
            b"Content-Length: 2\r\n\r\n{}" % upstream.port
        )
        pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n"),
        SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        SIZED + b"HTTP/1.1 200 OK\r\n",
    ],
    ids=["close", "1.0", "more"],
)
async def test_a_connection_that_cannot_serve_again_does_not(answer: bytes) -> None:
    async with serving(answer) as upstream:
        pool = pooled()
        for _ in range(2):
            assert await asked(pool, upstream) == b"hello, world!"
        assert upstream.connections == 2
        pool.close()


async def test_one_that_the_upstream_closed_meanwhile_is_not_used() -> None:
    async with serving(SIZED, closes=True) as upstream:
        pool = pooled()
        for _ in range(3):
            connection = await pool.post(upstream.url, b"{}")
            assert await body_of(connection) == b"hello, world!"
            connection.release()
            await until(partial(closed, connection))
        assert upstream.connections == 3
        pool.close()


async def test_one_that_nobody_uses_is_closed_in_time() -> None:
    async with serving(SIZED) as upstream:
        pool = pooled(keep=0.01)
        await asked(pool, upstream)
        await upstream.lost.wait()
        pool.close()


async def test_one_that_is_used_again_is_not_closed_for_having_waited() -> None:
    async with serving(SIZED) as upstream:
        pool = pooled(keep=0.01)
        await asked(pool, upstream)
        connection = await pool.post(upstream.url, b"{}")
        await asyncio.sleep(0.03)
        assert connection.usable
        assert upstream.connections == 1
        pool.close()


async def test_one_that_speaks_unasked_is_not_used() -> None:
    pool = pooled()
    async with serving(SIZED, b"HTTP/1.1 408 Too Late\r\n\r\n") as upstream:
        for _ in range(3):
            connection = await pool.post(upstream.url, b"{}")
            assert await body_of(connection) == b"hello, world!"
            connection.release()
            await until(partial(closed, connection))
        assert upstream.connections == 3
        pool.close()


def test_one_that_is_gone_needs_no_collector() -> None:
    async def main() -> None:
        async with serving(SIZED) as upstream:
            pool = pooled()
            for _ in range(3):
                connection = await pool.post(upstream.url, b"{}")
                connection.close()
                await until(partial(closed, connection))
            pool.close()

    def alive() -> int:
        return sum(type(each) is Connection for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        run(main)
        assert alive() == before
    finally:
        gc.enable()


async def test_closing_an_answer_that_still_comes_ends_the_request() -> None:
    async with serving(CHUNKED[:90]) as upstream:
        pool = pooled()
        connection = await pool.post(upstream.url, b"{}")
        connection.close()
        await upstream.lost.wait()
        # It is as if the upstream had closed it.
        with pytest.raises(ConnectionError):
            await body_of(connection)


async def test_who_gives_up_before_the_head_ends_the_request() -> None:
    async with serving(b"HTTP/1.1 ") as upstream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pooled().post(upstream.url, b"{}")
        await upstream.lost.wait()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 ", b"HTTP/1.1 103 Early\r\n\r\n"])
async def test_an_answer_that_does_not_begin_in_time_ends_the_request(begun: bytes) -> None:
    async with serving(begun) as upstream:
        with pytest.raises(Late):
            await pooled().post(upstream.url, b"{}", within=0.05)
        await upstream.lost.wait()


@pytest.mark.parametrize("keep", [0.01, 60.0])
async def test_who_waits_longer_than_to_the_deadline_hears_so_behind_what_came(keep: float) -> None:
    async with serving(CHUNKED[:-9]) as upstream:
        connection = await pooled(keep).post(upstream.url, b"{}", within=60)
        assert await connection.read()
        connection.deadline = connection.time() + 0.05
        with pytest.raises(Late):
            await body_of(connection)
        assert connection.time() >= connection.deadline
        await upstream.lost.wait()


async def test_a_deadline_is_for_who_waits() -> None:
    async with serving(CHUNKED) as upstream:
        connection = await pooled(keep=0.01).post(upstream.url, b"{}")
        connection.deadline = connection.time()
        await asyncio.sleep(0.03)
        assert await body_of(connection) == b"hello, world!"
        assert connection.usable
        connection.close()
        await upstream.lost.wait()


async def test_closing_the_pool_breaks_what_is_read_and_what_is_asked() -> None:
    async with serving(CHUNKED[:-9]) as upstream:
        pool = pooled()
        connection = await pool.post(upstream.url, b"{}")
        pool.close()
        with pytest.raises(ConnectionError):
            await body_of(connection)
        await upstream.lost.wait()
        with pytest.raises(ConnectionError):
            await pool.post(upstream.url, b"{}")


@pytest.mark.parametrize("cut", [CHUNKED[:-1], CHUNKED[:-30], SIZED[:-1], SIZED[:20], b""])
async def test_an_answer_that_ends_too_early_is_an_error_behind_what_came(cut: bytes) -> None:
    async with serving(cut, closes=True) as upstream:
        pool = pooled()
        with pytest.raises(ConnectionResetError):
            await body_of(await pool.post(upstream.url, b"{}"))


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx",
        b"HTTP/1.1 099 Early\r\n\r\n",
        b"HTTP/1.1 600 Late\r\n\r\n",
        BEGUN + b"-5\r\nhello\r\n",
        BEGUN + b"xyz\r\nhello\r\n",
        BEGUN + b"4\r\nhello\r\n",
        BEGUN + b"0" * (MOST_HEAD + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MOST_HEAD + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * (MOST_HEAD // 6),
        b"HTTP/1.1 103 Early\r\n\r\n" * (MOST_HEAD // 22 + 1),
        BEGUN + b"5;" + b"x" * (MOST_HEAD + 1),
        BEGUN + b"0\r\nX: " + b"x" * MOST_HEAD,
    ],
)
async def test_what_is_no_http_is_an_error_and_ends_the_connection(answer: bytes) -> None:
    async with serving(answer) as upstream:
        with pytest.raises(HttpError):
            await body_of(await pooled().post(upstream.url, b"{}"))
        await upstream.lost.wait()


@pytest.mark.parametrize(
    "line", [b"", b"5;x=", b"0\r\nTrailer: "], ids=["head", "chunk", "trailer"]
)
@pytest.mark.parametrize("size", [7, 100])
async def test_a_line_without_an_end_is_an_error_however_it_is_cut(line: bytes, size: int) -> None:
    connection = fed()
    connection.data_received(BEGUN + b"2\r\nhi\r\n" + line if line else BEGUN[:-2])
    assert connection.take() == (b"hi" if line else None)
    for _ in range((MOST_HEAD - len(BEGUN)) // size):
        connection.data_received(b"x" * size if line else b"x:" + b"y" * (size - 4) + b"\r\n")
    assert connection.take() is None
    connection.data_received(b"x" * (len(BEGUN) + size))
    with pytest.raises(HttpError):
        connection.take()


async def test_chunks_of_a_byte_are_no_line_without_an_end() -> None:
    connection = fed()
    connection.data_received(BEGUN)
    for _ in range(MOST_HEAD // 2):
        connection.data_received(b"1\r\n")
        connection.data_received(b"x\r\n")
        assert connection.take() == b"x"
    assert connection.take() is None


@pytest.mark.parametrize("garbage", [b"x", b"\r\n", SIZED])
@pytest.mark.parametrize("answer", [CHUNKED, SIZED, EMPTY], ids=["chunked", "sized", "empty"])
@pytest.mark.parametrize("apart", [False, True])
async def test_what_follows_an_answer_is_no_part_of_it_and_ends_the_connection(
    garbage: bytes, answer: bytes, apart: bool
) -> None:
    connection = fed()
    for piece in (answer, garbage) if apart else (answer + garbage,):
        connection.data_received(piece)
    assert await body_of(connection) == (b"" if answer is EMPTY else b"hello, world!")
    assert "trailer" not in connection.headers
    assert connection.ended
    # The parser lets an empty line pass.
    assert connection.usable == (garbage == b"\r\n")


async def test_an_upstream_that_says_more_than_is_read_has_to_wait() -> None:
    large = b"x" * (64 * 1024 * 1024)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(large)
    async with serving(head, large) as upstream:
        pool = pooled()
        connection = await pool.post(upstream.url, b"{}")
        await until(lambda: connection.paused)
        first = await connection.read()
        assert len(first) <= MOST_UNREAD + 256 * 1024
        assert first + await body_of(connection) == large
        pool.close()


async def test_a_large_body_is_sent_whole() -> None:
    async with serving(EMPTY) as upstream:
        body = bytes(range(256)) * 40_000
        pool = pooled()
        await pool.post(upstream.url, body)
        assert upstream.requests[0].endswith(b"\r\n\r\n" + body)
        pool.close()


async def test_who_is_not_reached_is_so_in_time_whether_connecting_or_answering_has_less() -> None:
    async with serving() as upstream:
        pass
    with pytest.raises(OSError, match="refused"):
        await pooled().post(upstream.url, b"{}")
    async with serving() as upstream:
        # The connection is there, the handshake is not: this one speaks no TLS.
        url = upstream.url.replace("http:", "https:")
        with pytest.raises(Unreachable):
            await pooled(connect=0.05).post(url, b"{}", within=60)
        with pytest.raises(Unreachable):
            await pooled(connect=60).post(url, b"{}", within=0.05)


async def test_over_tls_the_name_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    made = ssl.create_default_context

    def trusting() -> ssl.SSLContext:
        trusted = made()
        authority.configure_trust(trusted)
        return trusted

    async with serving(CHUNKED, tls=context) as upstream:
        url = upstream.url.replace("http:", "https:")
        with pytest.raises(ssl.SSLCertVerificationError):
            await pooled().post(url, b"{}")
        monkeypatch.setattr(ssl, "create_default_context", trusting)
        pool = pooled()
        for _ in range(2):
            connection = await pool.post(url, b"{}")
            assert await body_of(connection) == b"hello, world!"
            connection.release()
        with pytest.raises(ssl.SSLCertVerificationError):
            await pool.post(url.replace("127.0.0.1", "localhost"), b"{}")
        pool.close()


@pytest.mark.parametrize(
    ("url", "lines"),
    [
        ("http://user:p%40ss@127.0.0.1:{}/v1", ["Authorization: Basic dXNlcjpwQHNz"]),
        ("http://127.0.0.1:{}/a b/ü", ["POST /a%20b/%C3%BC HTTP/1.1"]),
        ("http://localhost:{}", ["POST / HTTP/1.1", "Host: localhost:{}"]),
    ],
)
async def test_a_url_says_where_and_who_asks(url: str, lines: Sequence[str]) -> None:
    async with serving(EMPTY) as upstream:
        pool = pooled()
        await pool.post(url.format(upstream.port), b"{}")
        sent = upstream.requests[0].decode().split("\r\n")
        assert {line.format(upstream.port) for line in lines} <= set(sent)
        pool.close()
