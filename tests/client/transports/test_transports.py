"""The table of transports, and each entry against the real server."""

import asyncio
import inspect
from pathlib import Path

import pytest

from tests.support.grpc_certificates import Authority
from tests.support.server_process import serving
from tieline_client.aio import connect
from tieline_client.errors import ConnectionLost
from tieline_client.transports import TRANSPORTS, Tls, opener


@pytest.mark.parametrize("scheme", list(TRANSPORTS))
def test_every_entry_is_an_opener(scheme: str) -> None:
    assert inspect.iscoroutinefunction(opener(scheme))


def say(url: str, tls: Tls | None = None) -> str:
    async def main() -> str:
        async with connect(url, tls=tls) as line:
            return (await (await line.create(input="hello")).result()).text

    return asyncio.run(main())


def test_plain_text() -> None:
    with serving() as server:
        assert "hello" in say(f"grpc://{server.address}")


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    other = Authority(tmp_path, "other")
    ours, mine, theirs = authority.sign("server"), authority.sign("client"), other.sign("stranger")
    flags = ("--tls-cert", str(ours.certificate), "--tls-key", str(ours.key))
    ca = str(authority.pem.certificate)
    with serving(*flags, "--tls-client-ca", ca) as server:
        port = server.address.rpartition(":")[2]
        url = f"grpcs://localhost:{port}"
        assert "hello" in say(url, Tls(ca=ca, cert=str(mine.certificate), key=str(mine.key)))
        # As a name that the certificate holds, whatever the address is called.
        named = Tls(ca=ca, cert=str(mine.certificate), key=str(mine.key), server_name="localhost")
        assert "hello" in say(f"grpcs://127.0.0.1:{port}", named)
        for refused in (
            Tls(ca=ca),
            Tls(ca=ca, cert=str(theirs.certificate), key=str(theirs.key)),
            Tls(cert=str(mine.certificate), key=str(mine.key)),
        ):
            with pytest.raises(ConnectionLost):
                say(url, refused)
        with pytest.raises(ConnectionLost):
            say(f"grpc://localhost:{port}")
