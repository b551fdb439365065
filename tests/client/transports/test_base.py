"""URLs and what they name."""

import pytest

from tieline_client.errors import UnsupportedUrl
from tieline_client.transports import Options, endpoint


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://localhost:1234", "localhost:1234"),
        ("grpc://10.0.0.1", "10.0.0.1:50051"),
        ("grpcs://example.com", "example.com:443"),
        ("grpcs://example.com:8443/", "example.com:8443"),
        ("grpc://[::1]:1234", "[::1]:1234"),
        ("ws://h", "h:80"),
        ("wss://h/", "h:443"),
        ("http://[::1]:8080/v1", "[::1]:8080"),
        ("https://h/base/", "h:443"),
        ("GRPC://Example.com:1", "example.com:1"),
    ],
)
def test_a_url_names_a_scheme_and_an_address(url: str, address: str) -> None:
    found = endpoint(url, api_key="k", tls=None, options=Options())
    assert found.address == address
    assert found.scheme == url.partition(":")[0].lower()
    assert found.api_key == "k"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://h:1", "grpc://, grpcs://, ws://, wss://, http://, https://"),
        ("localhost:50051", "grpc://, grpcs://"),
        ("", "grpc://, grpcs://"),
        ("grpc://", "HOST:PORT"),
        ("grpc://h:port", "HOST:PORT"),
        ("grpc://h:70000", "HOST:PORT"),
        ("grpc://h:0", "HOST:PORT"),
        ("grpc://h/path", "HOST:PORT"),
        ("grpc://h?query", "HOST:PORT"),
        ("http://", r"HOST:PORT\[/PATH\]"),
        ("ws://h/v1?query", r"HOST:PORT\[/PATH\]"),
        ("grpc://key@h", "api_key"),
    ],
)
def test_another_url_is_refused_with_what_it_should_be(url: str, why: str) -> None:
    with pytest.raises(UnsupportedUrl, match=why):
        endpoint(url, api_key=None, tls=None, options=Options())


def test_a_base_path_is_kept_without_its_last_slash() -> None:
    paths = [
        endpoint(url, api_key=None, tls=None, options=Options()).path
        for url in ("ws://h", "ws://h/", "http://h/a/b/", "https://h:1/v1")
    ]
    assert paths == ["", "", "/a/b", "/v1"]
