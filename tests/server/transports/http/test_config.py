"""The server's settings, and TLS files that cannot be used."""

import ssl
from pathlib import Path

import pytest

from tests.support.grpc_certificates import Authority
from tieline_server.config import Config
from tieline_server.transports.http.config import HttpConfig, tls_context


def test_the_settings_are_those_of_the_server(tmp_path: Path) -> None:
    flags = {
        "http": "127.0.0.1:1",
        "allowed_origins": "https://a.example, http://b.example:3000",
        "merge": "never",
        "heartbeat": 1,
        "write_timeout": 2,
        "max_connections": 3,
    }
    config = HttpConfig.of(Config.load(flags))
    assert (config.address, config.keyless, config.tls) == ("127.0.0.1:1", True, None)
    assert config.origins == {"https://a.example", "http://b.example:3000"}
    assert (config.merge, config.heartbeat, config.write_timeout) == (False, 1.0, 2.0)
    assert config.max_connections == 3
    assert not HttpConfig.of(Config.load({"api_keys": tmp_path})).keyless


def test_a_client_ca_asks_every_client_for_a_certificate(tmp_path: Path) -> None:
    pem = Authority(tmp_path, "root").sign("server")
    plain = tls_context(pem.certificate, pem.key)
    mutual = tls_context(pem.certificate, pem.key, tmp_path / "root.pem")
    assert (plain.verify_mode, mutual.verify_mode) == (ssl.CERT_NONE, ssl.CERT_REQUIRED)


@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize("content", [None, "no PEM"])
def test_a_file_that_is_unusable_is_named(which: str, content: str | None, tmp_path: Path) -> None:
    pem = Authority(tmp_path, "root").sign("server")
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_text(content)
    files = {"certificate": pem.certificate, "key": pem.key, which: bad}
    with pytest.raises(OSError, match=r".") as caught:
        tls_context(**files)
    named = pem.certificate if which == "key" else bad
    assert caught.value.filename == str(named)
    assert caught.value.strerror
