"""Addresses that are held for several processes."""

import socket

import pytest

from tieline_server.config import ConfigError
from tieline_server.transports.http.server import listen
from tieline_server.workers.ports import reserved


def test_port_0_becomes_a_port_that_each_worker_can_listen_on() -> None:
    with reserved({"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}) as addresses:
        assert len(set(addresses.values())) == 2
        for address in addresses.values():
            listening = [each for _ in range(3) for each in listen(address, reuse_port=True)]
            assert {f"127.0.0.1:{each.getsockname()[1]}" for each in listening} == {address}
            for each in listening:
                each.close()


def test_a_name_of_several_addresses_has_one_port() -> None:
    with reserved({"http": "localhost:0"}) as addresses:
        for each in listen(addresses["http"], reuse_port=True):
            assert each.getsockname()[1] == int(addresses["http"].rpartition(":")[2])
            each.close()


def test_a_port_that_another_process_has_is_refused_even_where_both_would_share_it() -> None:
    with reserved({"grpc": "127.0.0.1:0"}) as addresses:
        with pytest.raises(ConfigError, match="cannot listen on"), reserved(addresses):
            pass
        (listening,) = listen(addresses["grpc"], reuse_port=True)
    with listening, pytest.raises(ConfigError, match="cannot listen on"), reserved(addresses):
        pass


def test_no_client_connects_to_what_is_only_held() -> None:
    with reserved({"grpc": "127.0.0.1:0"}) as addresses:
        host, _, port = addresses["grpc"].rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def test_it_is_free_again_at_the_end() -> None:
    with reserved({"grpc": "127.0.0.1:0"}) as addresses:
        pass
    with reserved(addresses) as again:
        assert again == addresses
