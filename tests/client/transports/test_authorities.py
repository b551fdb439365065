"""CN-15: whom a client trusts, the same over each transport.

Each case is a process of its own, which finds its environment as a user's would.
"""

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

SCHEMES: Final = ("grpcs", "wss", "https")
VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
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


def ask(
    server: ServerProcess, scheme: str, *flags: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A question by the command, with no other word on whom to trust."""
    door = server.address if scheme == "grpcs" else server.http
    url = f"{scheme}://localhost:{door.rpartition(':')[2]}"
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-m", "tieline_client.cli", "ask", "hello", "--url", url, *flags],
        env={**kept, "NO_PROXY": "localhost", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
    done = ask(server, scheme, SSL_CERT_FILE=str(authority.pem.certificate))
    assert (done.returncode, done.stderr) == (0, "")
    assert "hello" in done.stdout


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
    assert ask(server, scheme, SSL_CERT_DIR=both).returncode == 0
    unhashed = tmp_path / "unhashed"
    unhashed.mkdir()
    shutil.copy(authority.pem.certificate, unhashed / "authority.pem")
    assert ask(server, scheme, SSL_CERT_DIR=str(unhashed)).returncode == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_an_authority_that_is_not_among_them_is_not_trusted(
    server: ServerProcess, stranger: Authority, tmp_path: Path, scheme: str
) -> None:
    strange = str(stranger.pem.certificate)
    done = ask(server, scheme, SSL_CERT_FILE=strange, SSL_CERT_DIR=str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("tieline: ")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_a_file_that_is_given_holds_instead(
    server: ServerProcess, authority: Authority, stranger: Authority, scheme: str
) -> None:
    right, strange = str(authority.pem.certificate), str(stranger.pem.certificate)
    assert ask(server, scheme, "--ca", right, SSL_CERT_FILE=strange).returncode == 0
    assert ask(server, scheme, "--ca", strange, SSL_CERT_FILE=right).returncode == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cn_15_a_file_of_the_environment_that_is_not_there_is_passed_over(
    server: ServerProcess, scheme: str, tmp_path: Path
) -> None:
    """CN-15: as OpenSSL does; no authority is trusted then, and one line says so."""
    done = ask(server, scheme, SSL_CERT_FILE="/no/such", SSL_CERT_DIR=str(tmp_path))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_cn_15_the_variable_of_grpc_itself_still_holds(
    server: ServerProcess, authority: Authority, stranger: Authority
) -> None:
    right, strange = str(authority.pem.certificate), str(stranger.pem.certificate)
    own = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
    assert ask(server, "grpcs", SSL_CERT_FILE=strange, **{own: right}).returncode == 0
    assert ask(server, "grpcs", SSL_CERT_FILE=right, **{own: strange}).returncode == 1
