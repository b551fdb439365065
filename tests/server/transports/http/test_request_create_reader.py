"""What a connection remembers: that settings came before, and nothing of whose they were."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_harness import serve
from tieline.errors import ApiError
from tieline_server.transports.http.request import MOST, CreateReader

PATH = "/v1/responses"
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": f"tool_{number}", "description": "d" * 500, "parameters": {}}
    for number in range(20)
]
CREATE = {"model": "tiny", "input": "hi", "instructions": "Be brief.", "tools": TOOLS}
SIZE = len(json.dumps(TOOLS))


def body(**members: Any) -> bytes:
    """A create of these members."""
    return json.dumps({**CREATE, **members}).encode()


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_that_come_again_on_a_connection_are_not_read_again(stream: bool) -> None:
    async with serve() as served:
        for _ in range(2):
            async with served.connection() as client:
                for _ in range(2):
                    reply = await client.ask("POST", PATH, {**CREATE, "stream": stream})
                    assert reply.status == 200
        await served.until(lambda: len(served.records) == 4)
        validated = [record.work.validate for record in served.records]
        # Each connection for itself; what is left is the input.
        assert min(validated[0], validated[2]) >= SIZE
        assert max(validated[1], validated[3]) < 200


async def test_what_differs_is_read_and_the_response_says_it() -> None:
    async with serve() as served, served.connection() as client:
        for count in (1, 2, 1):
            reply = await client.ask("POST", PATH, {**CREATE, "tools": TOOLS[:count]})
            assert [tool["name"] for tool in reply.json["tools"]] == [
                tool["name"] for tool in TOOLS[:count]
            ]
        wrong = {**CREATE, "tools": [{"type": "function"}]}
        assert (await client.ask("POST", PATH, wrong)).error["param"].startswith("tools[0]")
        assert len((await client.ask("POST", PATH, CREATE)).json["tools"]) == len(TOOLS)


async def test_owners_that_share_a_connection_share_nothing_else(tmp_path: Path) -> None:
    """A proxy sends requests of many callers over one connection."""
    keys = tmp_path / "keys.toml"
    rows = (
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\nowner = "{name}"\n'
        for name in ("ann", "bob")
    )
    keys.write_text("".join(rows))

    async with serve(api_keys=keys) as served, served.connection() as client:
        said = {**CREATE, "store": True}
        made = await client.ask("POST", PATH, said, authorization="Bearer ann")
        goes_on = {**said, "previous_response_id": made.json["id"]}
        refused = await client.ask("POST", PATH, goes_on, authorization="Bearer bob")
        assert refused.error["code"] == "previous_response_not_found"
        assert (await client.ask("POST", PATH, goes_on, authorization="Bearer ann")).status == 200
        owners = [record.owner for record in served.records]
        assert owners == ["ann", "bob", "ann"]


def test_equal_bytes_are_read_once() -> None:
    create_reader = CreateReader()
    first, second = create_reader.read(body()), create_reader.read(body(input="other"))
    assert second.tools is first.tools
    assert second.input != first.input


def test_a_body_that_is_large_is_not_remembered_and_has_the_rest_forgotten() -> None:
    create_reader = CreateReader()
    first = create_reader.read(body())
    assert create_reader.recall is not None
    large = create_reader.read(body(input="x" * MOST))
    assert create_reader.recall is None
    assert bytes(large.tools) == bytes(first.tools)
    assert create_reader.read(body()).tools is not first.tools


def test_what_is_no_create_is_refused_each_time_and_harms_nothing() -> None:
    create_reader = CreateReader()
    for wrong in (b"[]", b'{"model": 5}', b'{"tools": [1e999]}', b"{"):
        for _ in range(2):
            with pytest.raises(ApiError):
                create_reader.read(wrong)
    assert create_reader.read(body()).model == "tiny"
