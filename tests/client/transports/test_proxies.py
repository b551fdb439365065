"""CN-14: the proxy that the environment names, over each transport and before a real server."""

import asyncio
import base64
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.aio.connections import ours
from tests.support.grpc_certificates import Authority
from tests.support.http_proxy import HttpProxy
from tests.support.server_process import ServerProcess, serving
from tieline.errors import TielineError
from tieline_client import connect_session
from tieline_client._replay import Backoff, Policy
from tieline_client.agent import Agent
from tieline_client.aio import connect
from tieline_client.errors import ConnectionLost, ConnectTimeout, NotSent, UnsupportedUrl
from tieline_client.transports import Options, Tls

VARIABLES = ("http", "https", "all", "no", "ws", "wss", "grpc", "no_grpc")
SECURE = ("grpcs", "wss", "https")
SECRET = "s3cr%t:wörd"
BASIC = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of the machine's own."""
    for name in VARIABLES:
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)


@pytest.fixture(scope="module")
def plain() -> Iterator[ServerProcess]:
    with serving() as process:
        yield process


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[ServerProcess]:
    pem = authority.sign("server")
    with serving("--tls-cert", str(pem.certificate), "--tls-key", str(pem.key)) as process:
        yield process


def url_of(server: ServerProcess, scheme: str) -> str:
    address = server.address if scheme.startswith("grpc") else server.http
    return f"{scheme}://localhost:{address.rpartition(':')[2]}"


async def say(url: str, tls: Tls | None = None) -> str:
    """One turn on one line; then no task of ours may be left."""
    async with connect(url, tls=tls, options=Options(connect_timeout=2)) as line:
        said = (await (await line.create(input="hello")).result()).text
    assert ours() == []
    return said


@pytest.mark.parametrize("scheme", SECURE)
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_cn_14_tls_goes_through_a_tunnel(
    secure: ServerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    variable: str,
) -> None:
    """CN-14: on all three transports; the proxy sees where it goes and nothing else."""
    url = url_of(secure, scheme)

    async def main() -> list[str]:
        async with HttpProxy() as proxy:
            monkeypatch.setenv(variable, f"http://{proxy.address}")
            assert "hello" in await say(url, Tls(ca=str(authority.pem.certificate)))
            return proxy.asked

    asked = asyncio.run(main())
    assert {line.split()[0] for line in asked} == {"CONNECT"}
    assert asked[0].split()[1].endswith(f":{url.rpartition(':')[2]}")


@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_cn_14_plain_http_is_forwarded(
    plain: ServerProcess, monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str
) -> None:
    """CN-14: the handshake of a WebSocket is a request as well."""
    url = url_of(plain, scheme)

    async with HttpProxy() as proxy:
        monkeypatch.setenv(variable, proxy.address)
        async with connect(url) as line:
            assert line.transport == ("websocket" if scheme == "ws" else "sse")
            assert "hello" in (await (await line.create(input="hello")).result()).text
        method = "GET" if scheme == "ws" else "POST"
        at = url.partition("://")[2]
        assert proxy.asked == [f"{method} http://{at}/v1/responses HTTP/1.1"]


async def test_cn_14_a_proxy_that_knows_no_upgrade_leaves_http(
    plain: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CN-14: the server sees a GET, and says that it wants an upgrade (RFC 9110 15.5.22)."""

    async with HttpProxy(upgrades=False) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        async with connect(url_of(plain, "ws")) as line:
            assert line.transport == "sse"
            assert "hello" in (await (await line.create(input="hello")).result()).text


@pytest.mark.parametrize("scheme", ["ws", "http", "wss", "https", "grpcs"])
@pytest.mark.parametrize("listed", ["localhost", "*", "{}", "elsewhere, localhost"])
async def test_cn_14_no_proxy_names_what_is_reached_directly(
    plain: ServerProcess,
    secure: ServerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    listed: str,
) -> None:
    tls = Tls(ca=str(authority.pem.certificate)) if scheme in SECURE else None
    url = url_of(plain if tls is None else secure, scheme)

    async with HttpProxy() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        monkeypatch.setenv("NO_PROXY", listed.format(url.partition("://")[2]))
        assert "hello" in await say(url, tls)
        assert proxy.asked == []


async def test_cn_14_the_variable_of_the_other_kind_is_none_of_ours(
    plain: ServerProcess,
    secure: ServerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls = Tls(ca=str(authority.pem.certificate))

    async with HttpProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        for scheme in ("ws", "http"):
            assert "hello" in await say(url_of(plain, scheme))
        monkeypatch.delenv("HTTPS_PROXY")
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        for scheme in ("wss", "https"):
            assert "hello" in await say(url_of(secure, scheme), tls)
        assert proxy.asked == []


@pytest.mark.parametrize("scheme", ["ws", "http", "wss", "https", "grpcs"])
async def test_cn_14_a_proxy_that_wants_to_know_who_asks_is_told(
    plain: ServerProcess,
    secure: ServerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    """CN-14: the server is not."""
    tls = Tls(ca=str(authority.pem.certificate)) if scheme in SECURE else None
    url = url_of(plain if tls is None else secure, scheme)

    async with HttpProxy(wants=BASIC) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://me:s3cr%25t:w%C3%B6rd@{proxy.address}")
        assert "hello" in await say(url, tls)
        assert proxy.asked


def shown(error: BaseException) -> str:
    """All that a program may print of an error."""
    chain = [error]
    while (cause := _cause(chain[-1])) is not None:
        chain.append(cause)
    told = [f"{each!s} {each!r}" for each in chain]
    return "\n".join([*told, *traceback.format_exception(error)])


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


REFUSED = ("ws", "http", "wss", "https", "grpcs")


@pytest.mark.parametrize("scheme", REFUSED)
@pytest.mark.parametrize("status", [407, 502, 403])
def test_cn_14_a_proxy_that_refuses_is_a_typed_error_without_the_password(
    plain: ServerProcess,
    secure: ServerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    status: int,
) -> None:
    """CN-14: not even where the proxy repeats it."""
    tls = Tls(ca=str(authority.pem.certificate)) if scheme in SECURE else None
    url = url_of(plain if tls is None else secure, scheme)

    async def main() -> TielineError:
        async with HttpProxy(answers=status) as proxy:
            for name in ("HTTP_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(name, f"http://me:s3cret@{proxy.address}")
            with pytest.raises(TielineError) as caught:
                await say(url, tls)
            return caught.value

    error = asyncio.run(main())
    assert str(status) in str(error)
    # What it forwards, it may answer like a server.
    if scheme in SECURE or status == 407:
        assert isinstance(error, ConnectionLost)
    if scheme in ("wss", "https") or (status == 407 and scheme != "grpcs"):
        assert isinstance(error, NotSent)
        assert "the proxy answered" in str(error)
    secrets = ("s3cret", base64.b64encode(b"me:s3cret").decode())
    assert [secret for secret in secrets if secret in shown(error)] == []


@pytest.mark.parametrize("scheme", [*REFUSED, "grpc"])
def test_cn_14_a_proxy_that_is_dead_is_a_typed_error(
    plain: ServerProcess, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
        # grpcio reads those in small letters for grpc://, by itself.
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://me:s3cret@{dead}")
        with pytest.raises(ConnectionLost) as caught:
            asyncio.run(say(url_of(plain, scheme)))
    assert "s3cret" not in shown(caught.value)
    assert f"cannot connect to the proxy {dead}: Connection refused" in str(caught.value)
    if scheme not in ("grpc", "grpcs"):
        assert isinstance(caught.value, NotSent)


@pytest.mark.parametrize("scheme", ["ws", "http", "wss", "https"])
def test_cn_14_a_proxy_that_is_nowhere_is_named_as_one(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.invalid:3128")
    with pytest.raises(NotSent, match=r"cannot connect to the proxy proxy\.invalid:3128: "):
        asyncio.run(say(f"{scheme}://127.0.0.1:1"))


@pytest.mark.parametrize("scheme", SECURE)
async def test_cn_14_a_proxy_that_says_nothing_is_given_up_in_time(
    secure: ServerProcess, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    async with HttpProxy(silent=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@{proxy.address}")
        with pytest.raises(ConnectTimeout) as caught:
            await say(url_of(secure, scheme))
        assert "s3cret" not in shown(caught.value)


@pytest.mark.parametrize("scheme", ["ws", "wss", "http", "https"])
@pytest.mark.parametrize(
    "given", ["socks5://me:s3cret@h:1080", "http://me:s3cret@h:99999", "http://:s3cret@", "http://"]
)
def test_cn_14_a_proxy_that_cannot_be_used_is_said_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, scheme: str, given: str
) -> None:
    """CN-14: to go directly would be against what was asked for."""
    monkeypatch.setenv("ALL_PROXY", given)
    with pytest.raises(UnsupportedUrl, match="ALL_PROXY is not http://") as caught:
        asyncio.run(say(f"{scheme}://127.0.0.1:1"))
    assert "s3cret" not in shown(caught.value)


@pytest.mark.parametrize("scheme", ["wss", "https", "ws", "http"])
async def test_cn_14_a_session_and_its_agent_go_through_as_well(
    plain: ServerProcess,
    secure: ServerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    """CN-14: several turns, the question for capabilities, and a cancel by id."""
    tls = Tls(ca=str(authority.pem.certificate)) if scheme in SECURE else None
    url = url_of(plain if tls is None else secure, scheme)

    async with HttpProxy(wants=BASIC) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://me:s3cr%25t:w%C3%B6rd@{proxy.address}")
        policy = Policy(backoff=Backoff(max_retries=0))
        async with connect_session(url, tls=tls, policy=policy) as session:
            line = await session.ready()
            assert await line.extensions()
            await line.cancel("resp_nothing")
            for _ in range(2):
                assert "hello" in (await Agent(session).run("hello")).text
        assert proxy.asked


async def test_cn_14_a_certificate_is_checked_behind_a_proxy_as_well(
    secure: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stranger = Tls(ca=str(Authority(tmp_path, "stranger").pem.certificate))

    async with HttpProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        for scheme in ("wss", "https", "grpcs"):
            with pytest.raises(ConnectionLost):
                await say(url_of(secure, scheme), stranger)
