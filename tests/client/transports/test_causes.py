"""OP-06: a connection that cannot be made says why, by its likely cause.

The causes are made on real servers: the words that are looked for are the libraries' own, and
another version of these may choose others.
"""

import asyncio
import datetime
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.client import web
from tests.support.server_process import ServerProcess, serving
from tieline_client.aio import connect
from tieline_client.errors import ConnectionLost
from tieline_client.transports import Options, Tls, causes
from tieline_client.transports.base import Endpoint


class Authority:
    """An authority, and a server with each of its certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.path = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def flags(self, name: str, *hosts: str, days: int = 30) -> tuple[str, ...]:
        """How a server is told of a certificate for these hosts, which ends in so many days."""
        today = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        year_ago = today - datetime.timedelta(days=365)
        last = today + datetime.timedelta(days=days)
        signed = self._ca.issue_cert(*hosts, not_before=year_ago, not_after=last)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed.cert_chain_pems[0].write_to_path(cert)
        signed.private_key_pem.write_to_path(key)
        return ("--tls-cert", str(cert), "--tls-key", str(key))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def plain() -> Iterator[ServerProcess]:
    with serving() as process:
        yield process


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[ServerProcess]:
    with serving(*authority.flags("right", "localhost")) as process:
        yield process


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, and no authorities but the system's."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")


def at(scheme: str, server: ServerProcess, *, transport: str) -> str:
    address = server.address if transport == "grpc" else server.http
    return f"{scheme}://localhost:{address.rpartition(':')[2]}"


def why(url: str, ca: str | None = None) -> str:
    """What a connection says that cannot be opened, or on which nothing can be asked."""

    async def main() -> None:
        options = Options(connect_timeout=5)
        async with connect(url, tls=Tls(ca=ca) if ca else None, options=options) as connection:
            await (await connection.create(input="a")).response()

    with pytest.raises(ConnectionLost) as caught:
        asyncio.run(main())
    head, _, cause = str(caught.value).partition(": ")
    assert head == f"cannot connect to {url.partition('://')[2]}"
    assert "\n" not in cause
    return cause


HTTP_2: Final = "it speaks HTTP/2 there, as gRPC does: use grpc://"
HTTP_1: Final = "it speaks HTTP/1 there, and not gRPC: use {}://"
SILENT: Final = "it closed the connection and said nothing, perhaps because it {}: use {}://"


@pytest.mark.parametrize(
    ("scheme", "transport", "says"),
    [
        ("http", "grpc", HTTP_2),
        ("ws", "grpc", HTTP_2),
        ("grpc", "http", HTTP_1.format("http")),
        ("https", "http", "it does not speak TLS there: use http://"),
        ("wss", "http", "it does not speak TLS there: use ws://"),
        ("grpcs", "grpc", "it does not speak TLS there: use grpc://"),
        ("grpcs", "http", "it does not speak TLS there: use grpc://"),
        ("https", "grpc", "it does not speak TLS there: use http://"),
    ],
)
def test_op_06_a_plain_port_of_another_kind(
    plain: ServerProcess, authority: Authority, scheme: str, transport: str, says: str
) -> None:
    tls = authority.path if scheme in ("https", "wss", "grpcs") else None
    assert why(at(scheme, plain, transport=transport), tls) == says


@pytest.mark.parametrize(
    ("scheme", "transport", "says"),
    [
        ("http", "http", SILENT.format("wants TLS", "https")),
        ("ws", "http", SILENT.format("wants TLS", "wss")),
        ("grpc", "grpc", SILENT.format("wants TLS", "grpcs")),
        ("http", "grpc", SILENT.format("wants TLS", "https")),
        ("grpc", "http", SILENT.format("wants TLS", "grpcs")),
        ("https", "grpc", SILENT.format("is gRPC's port", "grpcs")),
        ("wss", "grpc", SILENT.format("is gRPC's port", "grpcs")),
        ("grpcs", "http", HTTP_1.format("https")),
    ],
)
def test_op_06_a_port_with_tls_of_another_kind(
    secure: ServerProcess, authority: Authority, scheme: str, transport: str, says: str
) -> None:
    tls = authority.path if scheme in ("https", "wss", "grpcs") else None
    assert why(at(scheme, secure, transport=transport), tls) == says


SECURE: Final = (("https", "http"), ("wss", "http"), ("grpcs", "grpc"))


def test_op_06_a_certificate_that_is_not_right(
    secure: ServerProcess, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    expired, named = authority.flags("expired", "localhost", days=-1), authority.flags("x", "x.org")
    with serving(*expired) as old, serving(*named) as other:
        for scheme, transport in SECURE:
            untrusted = why(at(scheme, secure, transport=transport), stranger.path)
            assert untrusted.startswith("its certificate is of an authority that is not trusted")
            assert (
                why(at(scheme, old, transport=transport), authority.path)
                == "its certificate has expired"
            )
            elsewhere = why(at(scheme, other, transport=transport), authority.path)
            assert elsewhere == "its certificate is for another name than localhost"


@pytest.mark.parametrize("scheme", ["http", "ws", "grpc", "https", "wss", "grpcs"])
def test_op_06_no_server_and_no_host(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused = why(f"{scheme}://127.0.0.1:{port}")
    assert refused == "Connection refused: no server listens there"
    assert why(f"{scheme}://no-such-host.invalid:80") == "there is no such host"


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP there"),
        (b"\x15\x03\x01\x00\x02\x02\x16\r\n", "it wants TLS there: use "),
    ],
)
def test_op_06_what_is_no_http_at_all(scheme: str, answer: bytes, says: str) -> None:
    async def main() -> str:
        async with web.speaking(answer) as address:
            return await asyncio.to_thread(why, f"{scheme}://{address}")

    assert asyncio.run(main()).startswith(says)


async def test_op_06_a_line_that_was_heard_of_says_nothing_of_ports() -> None:
    """OP-06: the guess is for a connection on which nothing ever came."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n"

    async with web.speaking(head) as address, connect(f"http://{address}") as connection:
        with pytest.raises(ConnectionLost, match="the server ended the stream"):
            await (await connection.create(input="a")).response()


def test_op_06_what_no_row_knows_is_told_on_one_line() -> None:
    at = Endpoint(scheme="grpc", host="h", port=1)
    said = "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: odd\n  thing"
    assert causes.likely(said, at) == "odd thing"
