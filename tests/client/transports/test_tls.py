"""CN-15: whom a client trusts, the same over each transport; and files that are not right.

Each case of CN-15 is a process of its own, which finds its environment as a user's would.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.grpc_certificates import Authority
from tests.support.server_process import ServerProcess, serving
from tieline_client.aio import connect
from tieline_client.transports import Tls
from tieline_client.transports.tls import context

SCHEMES: Final = ("grpcs", "wss", "https")
VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
UNTRUSTED: Final = "is of an authority that is not trusted"
OPENSSL: Final = shutil.which("openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[ServerProcess]:
    pem = authority.sign("server")
    with serving("--tls-cert", str(pem.certificate), "--tls-key", str(pem.key)) as process:
        yield process


ASK: Final = """
import asyncio, sys
from tieline_client import ConnectionLost, Tls, connect

async def main(url: str, *ca: str) -> None:
    async with connect(url, tls=Tls(ca=ca[0]) if ca else None) as line:
        print((await (await line.create(input="hello")).result()).text)

try:
    asyncio.run(main(*sys.argv[1:]))
except ConnectionLost as error:
    print(error)
"""


def ask(server: ServerProcess, scheme: str, *ca: str, **variables: str) -> str:
    """What is answered to a process with these variables, or why nothing is."""
    address = server.address if scheme == "grpcs" else server.http
    url = f"{scheme}://localhost:{address.rpartition(':')[2]}"
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", ASK, url, *ca],
        env={**kept, "NO_PROXY": "localhost", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def hashed(folder: Path, authority: Authority) -> Path:
    """A folder that has the authority under the name by which OpenSSL looks for it."""
    assert OPENSSL is not None
    command = [OPENSSL, "x509", "-noout", "-hash", "-in", str(authority.pem.certificate)]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(authority.pem.certificate, folder / f"{name}.0")
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_the_file_of_the_environment_is_trusted(
    server: ServerProcess, authority: Authority, scheme: str
) -> None:
    assert "hello" in ask(server, scheme, SSL_CERT_FILE=str(authority.pem.certificate))


@pytest.mark.skipif(OPENSSL is None, reason="openssl names what is in such a folder")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_the_folders_of_the_environment_are_trusted(
    server: ServerProcess, authority: Authority, stranger: Authority, tmp_path: Path, scheme: str
) -> None:
    """CN-15: several, as OpenSSL has them; what is not hashed there is not looked at."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = hashed(tmp_path / "first", stranger)
    second = hashed(tmp_path / "second", authority)
    both = f"{first}{os.pathsep}{second}"
    assert "hello" in ask(server, scheme, SSL_CERT_DIR=both)
    unhashed = tmp_path / "unhashed"
    unhashed.mkdir()
    shutil.copy(authority.pem.certificate, unhashed / "authority.pem")
    assert UNTRUSTED in ask(server, scheme, SSL_CERT_DIR=str(unhashed))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_an_authority_that_is_not_among_them_is_not_trusted(
    server: ServerProcess, stranger: Authority, tmp_path: Path, scheme: str
) -> None:
    strange = str(stranger.pem.certificate)
    assert UNTRUSTED in ask(server, scheme, SSL_CERT_FILE=strange, SSL_CERT_DIR=str(tmp_path))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_a_file_that_is_given_holds_instead(
    server: ServerProcess, authority: Authority, stranger: Authority, scheme: str
) -> None:
    right, strange = str(authority.pem.certificate), str(stranger.pem.certificate)
    assert "hello" in ask(server, scheme, right, SSL_CERT_FILE=strange)
    assert UNTRUSTED in ask(server, scheme, strange, SSL_CERT_FILE=right)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_a_file_of_the_environment_that_is_not_there_is_passed_over(
    server: ServerProcess, scheme: str, tmp_path: Path
) -> None:
    """CN-15: as OpenSSL does; no authority is trusted then."""
    assert UNTRUSTED in ask(server, scheme, SSL_CERT_FILE="/no/such", SSL_CERT_DIR=str(tmp_path))


def test_cn_15_the_variable_of_grpc_itself_still_holds(
    server: ServerProcess, authority: Authority, stranger: Authority
) -> None:
    right, strange = str(authority.pem.certificate), str(stranger.pem.certificate)
    own = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
    assert "hello" in ask(server, "grpcs", SSL_CERT_FILE=strange, **{own: right})
    assert UNTRUSTED in ask(server, "grpcs", SSL_CERT_FILE=right, **{own: strange})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("given", "named", "says"),
    [
        (("none.pem", None, None), "none.pem", "No such file"),
        (("rubbish.pem", None, None), "rubbish.pem", "no PEM of a certificate"),
        (("broken.pem", None, None), "broken.pem", "is broken"),
        (("other.key", None, None), "other.key", "no PEM of a certificate"),
        ((None, "rubbish.pem", "right.key"), "rubbish.pem", "no PEM of a certificate"),
        ((None, "right.pem", "rubbish.pem"), "rubbish.pem", "no PEM of the key"),
        ((None, "right.pem", "other.key"), "other.key", "no PEM of the key"),
        ((None, "right.pem", None), "right.pem", "no PEM of the key"),
        ((None, None, "right.key"), "right.key", "its certificate"),
        ((None, "none.pem", "right.key"), "none.pem", "No such file"),
        ((None, "right.pem", "none.pem"), "none.pem", "No such file"),
    ],
)
def test_op_06_a_file_that_is_not_right_is_named(
    authority: Authority,
    tmp_path: Path,
    scheme: str,
    given: tuple[str | None, ...],
    named: str,
    says: str,
) -> None:
    """OP-06: on all transports; with some of these grpcio would end the process."""
    right, other = authority.sign("right"), authority.sign("other")
    shutil.copy(right.certificate, tmp_path / "right.pem")
    shutil.copy(right.key, tmp_path / "right.key")
    shutil.copy(other.key, tmp_path / "other.key")
    (tmp_path / "rubbish.pem").write_text("rubbish")
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (tmp_path / "broken.pem").write_text(broken)
    ca, cert, key = (str(tmp_path / name) if name else None for name in given)

    async def main() -> None:
        async with connect(f"{scheme}://localhost:1", tls=Tls(ca=ca, cert=cert, key=key)):
            pass

    with pytest.raises(OSError, match=says) as caught:
        asyncio.run(main())
    assert caught.value.filename == str(tmp_path / named)


def test_op_06_a_key_may_be_in_the_file_of_its_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    pem = authority.sign("both")
    both = tmp_path / "both.pem"
    both.write_bytes(pem.certificate.read_bytes() + pem.key.read_bytes())
    context(Tls(cert=str(both)))
