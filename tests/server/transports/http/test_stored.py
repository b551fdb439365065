"""Stored responses over HTTP: read, listed, cancelled, deleted, counted, compacted."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.support.grpc_engine import INPUT_TOKENS, Step
from tests.support.http_client import Connection
from tests.support.http_harness import serve
from tieline_server.core.create.profile import PROFILES
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import EngineError

PATH = "/v1/responses"
KEYS = """
[[keys]]
hash = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
owner = "ann"
[[keys]]
hash = "sha256:ae448ac86c4e8e4dec645729708ef41873ae79c6dff84eff73360989487f08e5"
owner = "bob"
"""
ANN = {"authorization": "Bearer secret"}
BOB = {"authorization": "Bearer another"}


async def stored(client: Connection, **members: Any) -> dict[str, Any]:
    reply = await client.ask("POST", PATH, {"model": "tiny", "input": "hi", **members})
    assert reply.status == 200
    found: dict[str, Any] = reply.json
    return found


async def test_a_stored_response_reads_as_it_was_made_until_it_is_deleted() -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client)
        where = f"{PATH}/{made['id']}"
        assert (await client.ask("GET", where)).json == made
        reply = await client.ask("DELETE", where)
        assert reply.json == {"id": made["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            gone = await client.ask(method, where)
            assert (gone.status, gone.error["code"]) == (404, "response_not_found")
            assert gone.error["message"] == f"Response with id '{made['id']}' not found."


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("engine_unavailable", "server_error"),
        ("content_filter", "server_error"),
        ("of_the_engine", "server_error"),
        ("context_length_exceeded", "context_length_exceeded"),
        ("server_is_overloaded", "server_is_overloaded"),
        ("rate_limit_exceeded", "rate_limit_exceeded"),
    ],
)
async def test_a_stored_failure_says_why_by_a_code_that_clients_know(code: str, seen: str) -> None:
    async def failing(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS), TextDelta("half")]
        raise EngineError.of(code, "No.")

    async with serve(failing) as served, served.connection() as client:
        client.request("POST", PATH, {"model": "tiny", "input": "hi", "stream": True})
        await client.head()
        failed = (await client.events())[-1]["response"]
        assert failed["error"] == {"code": seen, "message": "No."}
        reply = await client.ask("GET", f"{PATH}/{failed['id']}")
        assert (reply.status, reply.json) == (200, failed)
        late = await client.ask("POST", f"{PATH}/{failed['id']}/cancel")
        assert (late.status, late.error["code"]) == (400, "not_cancellable")


async def test_what_was_not_stored_is_not_there() -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client, store=False)
        for tail in ("", "/input_items"):
            assert (await client.ask("GET", f"{PATH}/{made['id']}{tail}")).status == 404
        assert (await client.ask("POST", f"{PATH}/{made['id']}/cancel")).status == 404


async def test_what_is_another_owners_looks_like_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)

    async with serve(api_keys=path) as served, served.connection() as client:
        body = {"model": "tiny", "input": "hi"}
        made = (await client.ask("POST", PATH, body, **ANN)).json
        for method, tail in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
        ):
            foreign = await client.ask(method, f"{PATH}/{made['id']}{tail}", **BOB)
            unknown = await client.ask(method, f"{PATH}/resp_no{tail}", **BOB)
            assert (foreign.status, unknown.status) == (404, 404)
            assert foreign.error["code"] == unknown.error["code"]
            assert (await client.ask(method, f"{PATH}/{made['id']}{tail}")).status == 401
        assert (await client.ask("GET", f"{PATH}/{made['id']}", **ANN)).json == made


async def test_in_05_a_finished_response_cannot_be_cancelled_and_stays_as_it_is() -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client)
        for _ in range(2):
            reply = await client.ask("POST", f"{PATH}/{made['id']}/cancel")
            assert (reply.status, reply.error["code"]) == (400, "not_cancellable")
            assert reply.error["type"] == "invalid_request_error"
            assert "already ended" in reply.error["message"]
        assert (await client.ask("GET", f"{PATH}/{made['id']}")).json == made


async def test_in_05_a_finished_response_of_the_background_takes_a_cancel() -> None:
    async with serve() as served, served.connection() as client:
        body = {"model": "tiny", "input": "hi", "stream": True, "background": True}
        client.request("POST", PATH, body)
        await client.head()
        made = (await client.events())[-1]["response"]
        reply = await client.ask("POST", f"{PATH}/{made['id']}/cancel")
        assert (reply.status, reply.json["status"]) == (200, "completed")


async def test_open_responses_cancels_only_what_is_in_the_background() -> None:
    profile = PROFILES["open-responses"]
    async with serve(profile=profile) as served, served.connection() as client:
        made = await stored(client)
        reply = await client.ask("POST", f"{PATH}/{made['id']}/cancel")
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert (await client.ask("POST", f"{PATH}/resp_x/cancel")).status == 404


async def test_the_events_of_a_plain_response_are_not_kept() -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client)
        reply = await client.ask("GET", f"{PATH}/{made['id']}?stream=true")
        assert (reply.status, reply.error["code"]) == (400, "not_resumable")
        gone = await client.ask("GET", f"{PATH}/resp_no?stream=true")
        assert (gone.status, gone.error["code"]) == (404, "response_not_found")
        head = await client.ask("HEAD", f"{PATH}/{made['id']}?stream=true")
        assert head.status == 200
        plain = await client.ask("GET", f"{PATH}/{made['id']}?stream=false&starting_after=3")
        assert plain.json == made


async def test_include_takes_known_names_in_either_spelling() -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client)
        where = f"{PATH}/{made['id']}"
        for query in (
            "include=reasoning.encrypted_content",
            "include[]=message.output_text.logprobs",
        ):
            assert (await client.ask("GET", f"{where}?{query}")).status == 200
        for tail in ("?include=secrets", "/input_items?include[]=secrets"):
            reply = await client.ask("GET", where + tail)
            assert (reply.status, reply.error["param"]) == (400, "include")


async def test_input_items_have_ids_and_parts_and_come_in_pages() -> None:
    async with serve() as served, served.connection() as client:
        items = [
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": "a", "id": "msg_mine"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "u"}],
            },
        ]
        made = await stored(client, input=items)
        where = f"{PATH}/{made['id']}/input_items"
        newest = (await client.ask("GET", where)).json
        assert (newest["object"], newest["has_more"]) == ("list", False)
        assert [item["role"] for item in newest["data"]] == ["user", "assistant", "developer"]
        for item in newest["data"]:
            assert (item["type"], item["status"]) == ("message", "completed")
            (part,) = item["content"]
            assert part["type"] == ("output_text" if item["role"] == "assistant" else "input_text")
            assert part["text"] == item["role"][0]
        assert newest["data"][1]["id"] == "msg_mine"
        assert newest["first_id"] == newest["data"][0]["id"]
        assert newest["last_id"] == newest["data"][2]["id"]
        page = (await client.ask("GET", f"{where}?order=asc&limit=2")).json
        assert page["has_more"] is True
        rest = (await client.ask("GET", f"{where}?order=asc&after={page['last_id']}")).json
        assert page["data"] + rest["data"] == newest["data"][::-1]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", "integer_below_min_value", "limit"),
        ("limit=101", "integer_above_max_value", "limit"),
        ("limit=many", "invalid_type", "limit"),
        ("order=up", "invalid_value", "order"),
        ("after=msg_no", "item_not_found", "after"),
    ],
)
async def test_a_page_that_cannot_be_is_a_400(query: str, code: str, param: str) -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client)
        reply = await client.ask("GET", f"{PATH}/{made['id']}/input_items?{query}")
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, code, param)


async def test_input_tokens_are_counted_without_sampling() -> None:
    async with serve() as served, served.connection() as client:
        body = {"model": "tiny", "input": "hi"}
        reply = await client.ask("POST", f"{PATH}/input_tokens", body)
        assert reply.json == {"object": "response.input_tokens", "input_tokens": INPUT_TOKENS}
        assert served.engine.started == 0
        wrong = await client.ask("POST", f"{PATH}/input_tokens", {"input": 7})
        assert (wrong.status, wrong.error["param"]) == (400, "input")


async def test_a_compacted_window_is_the_input_of_a_new_chain() -> None:
    async with serve() as served, served.connection() as client:
        made = await stored(client)
        body = {"model": "tiny", "previous_response_id": made["id"]}
        window = (await client.ask("POST", f"{PATH}/compact", body)).json
        assert window["object"] == "response.compaction"
        kept, folded = window["output"]
        assert kept["id"].startswith("msg_")
        assert {**kept, "id": ""} == {
            "id": "",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        }
        assert folded.keys() == {"type", "id", "encrypted_content"}
        assert folded["type"] == "compaction"
        assert window["usage"]["input_tokens"] == INPUT_TOKENS
        new = [*window["output"], {"role": "user", "content": "go on"}]
        assert (await stored(client, input=new))["status"] == "completed"
        missing = await client.ask("POST", f"{PATH}/compact", {"input": "x"})
        assert (missing.status, missing.error["param"]) == (400, "model")
