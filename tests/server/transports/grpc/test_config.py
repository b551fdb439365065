"""Settings of the gRPC door and the channel options that they become."""

from pathlib import Path

import pytest

from tests.support.grpc_certificates import Authority
from tieline_server.config import Config
from tieline_server.transports.grpc.config import HEADROOM, INT_MAX, GrpcConfig, Tls


def test_every_option_has_the_name_that_c_core_knows() -> None:
    options = dict(GrpcConfig().options(message_bytes=1024))
    assert options == {
        "grpc.max_receive_message_length": 1024 + HEADROOM,
        "grpc.max_send_message_length": -1,
        "grpc.server_handshake_timeout_ms": 20_000,
        "grpc.http2.min_ping_interval_without_data_ms": 5_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.keepalive_time_ms": 60_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.http2.ping_timeout_ms": 20_000,
        "grpc.max_allowed_incoming_connections": 4096,
        "grpc.max_concurrent_streams": 1024,
        "grpc.so_reuseport": 0,
    }


def test_pings_that_the_network_bunches_are_not_too_early() -> None:
    options = dict(GrpcConfig(ping_interval=3.0).options(message_bytes=1024))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 1_500


def test_the_largest_message_size_stays_a_c_int() -> None:
    options = dict(GrpcConfig().options(message_bytes=INT_MAX))
    assert options["grpc.max_receive_message_length"] == INT_MAX


def test_the_servers_settings_become_the_doors(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    server = authority.sign("server")
    config = Config.load(
        {
            "grpc": "127.0.0.1:7001",
            "engine": "scripted",
            "heartbeat": 3.0,
            "write_timeout": 4.0,
            "merge": "never",
            "reflection": True,
            "grpc_ping_interval": 2.0,
            "tls_cert": server.certificate,
            "tls_key": server.key,
            "tls_client_ca": authority.pem.certificate,
        }
    )
    assert GrpcConfig.of(config) == GrpcConfig(
        addresses=("127.0.0.1:7001",),
        tls=Tls(
            certificate=server.certificate.read_bytes(),
            key=server.key.read_bytes(),
            client_ca=authority.pem.certificate.read_bytes(),
        ),
        reflection=True,
        ping_interval=2.0,
        merge=False,
        heartbeat=3.0,
        write_timeout=4.0,
    )


def test_without_tls_settings_the_door_is_in_the_clear() -> None:
    assert GrpcConfig.of(Config.load({"engine": "scripted"})).tls is None


def test_a_tls_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pem = Authority(tmp_path, "authority").sign("server")
    missing = tmp_path / "missing"
    for files in (
        (missing, pem.key, None),
        (pem.certificate, missing, None),
        (pem.certificate, pem.key, missing),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            Tls.read(*files)
        assert caught.value.filename == str(missing)


def test_tls_files_that_are_no_pem_or_do_not_belong_together_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    one, other = authority.sign("one"), authority.sign("other")
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    for certificate, key, client_ca, blamed in (
        (garbage, garbage, None, garbage),
        (one.certificate, other.key, None, one.certificate),
        (one.certificate, one.key, garbage, garbage),
    ):
        with pytest.raises(OSError, match="PEM") as caught:
            Tls.read(certificate, key, client_ca)
        assert caught.value.filename == str(blamed)
