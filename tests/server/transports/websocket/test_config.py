"""The endpoint's part of the server's settings."""

from tieline_server.config import MIB, Config
from tieline_server.transports.websocket import WebSocketConfig


def test_the_defaults_are_those_of_the_settings() -> None:
    assert WebSocketConfig.of(Config.load({})) == WebSocketConfig()


def test_settings_reach_the_endpoint() -> None:
    config = Config.load(
        {
            "merge": "never",
            "heartbeat": 1.0,
            "write_timeout": 2.0,
            "max_age": 3.0,
            "max_connections": 4,
            "max_message_bytes": 4096,
            "deflate": True,
        }
    )
    assert WebSocketConfig.of(config) == WebSocketConfig(
        merge=False,
        heartbeat=1.0,
        write_timeout=2.0,
        max_age=3.0,
        max_connections=4,
        max_message_bytes=4096,
        deflate=True,
    )


def test_a_larger_limit_for_the_other_transports_is_not_ours() -> None:
    config = Config.load({"max_message_bytes": 64 * MIB})
    assert WebSocketConfig.of(config).max_message_bytes == 16 * MIB
