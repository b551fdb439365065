"""What a web page cannot do to a server without keys."""

from pathlib import Path

import pytest

from tests.support.http_harness import serve
from tieline_server.transports.http.safety import is_own

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi", "store": False}
PAGE = "https://app.example"
LISTED = frozenset({PAGE})


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.8.8.8", "[::1]:80", "[::1]"]
)
def test_the_names_of_loopback_are_our_own(host: str) -> None:
    assert is_own(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.example",
        "192.0.2.1:80",
        "",
        "[::2]",
        # What follows a name is a port and nothing else (RFC 9110 7.2).
        "[::1].evil.example",
        "[::1",
        "localhost:80@evil.example",
        "127.0.0.1:evil.example",
        "localhost@evil.example",
        "localhost/",
        "0x7f000001",
        "2130706433",
        "[127.0.0.1%25eth0]",
    ],
)
def test_any_other_name_is_not(host: str) -> None:
    assert not is_own(host)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8080"},
        {"Host": "evil.example"},
        {"Host": "192.0.2.7:8080"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", PATH), ("GET", "/v1/models"), ("DELETE", f"{PATH}/x")]
)
async def test_without_keys_a_foreign_origin_or_host_is_403(
    headers: dict[str, str], method: str, path: str
) -> None:
    async with serve(origins=LISTED) as served, served.connection() as client:
        client.request(method, path, CREATE if method == "POST" else None, headers=headers)
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (403, "permission_denied")
        assert "access-control-allow-origin" not in reply.headers
        assert not served.records


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "a/b"])
async def test_without_keys_a_body_that_is_not_sent_as_json_is_415(kind: str) -> None:
    async with serve() as served, served.connection() as client:
        client.request("POST", PATH, CREATE, headers={"Content-Type": kind})
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


async def test_a_post_without_a_body_needs_no_content_type() -> None:
    async with serve() as served, served.connection() as client:
        assert (await client.ask("POST", f"{PATH}/resp_x/cancel")).status == 404


async def test_json_with_a_charset_is_json() -> None:
    async with serve() as served, served.connection() as client:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        client.request("POST", PATH, CREATE, headers=headers)
        assert (await client.reply()).status == 200


async def test_a_listed_origin_may_ask_and_read_answers_errors_and_streams() -> None:
    async with serve(origins=LISTED) as served, served.connection() as client:
        for body in (CREATE, {**CREATE, "stream": True}, {"input": 7}):
            client.request("POST", PATH, body, headers={"Origin": PAGE})
            reply = await client.reply()
            assert reply.headers["access-control-allow-origin"] == PAGE
            assert "x-request-id" in reply.headers["access-control-expose-headers"]
            assert reply.headers["vary"] == "Origin"


async def test_a_preflight_of_a_listed_origin_is_answered_without_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("keys = []\n")
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Access-Control-Request-Private-Network": "true",
    }

    async with serve(api_keys=keys, origins=LISTED) as served, served.connection() as client:
        client.request("OPTIONS", PATH, headers=asked)
        reply = await client.reply()
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
        assert reply.headers["access-control-allow-private-network"] == "true"
        client.request("OPTIONS", PATH, headers={**asked, "Origin": "https://evil.example"})
        assert (await client.reply()).status == 405


async def test_with_keys_other_pages_and_names_may_ask_but_not_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("keys = []\n")

    async with serve(api_keys=keys) as served, served.connection() as client:
        headers = {"Origin": "https://evil.example", "Host": "api.example"}
        client.request("POST", PATH, CREATE, headers=headers)
        reply = await client.reply()
        assert reply.status == 401
        assert "access-control-allow-origin" not in reply.headers
