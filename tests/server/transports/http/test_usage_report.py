"""What a caller is told of its own use."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.grpc_engine import INPUT_TOKENS
from tests.support.http_client import Connection
from tests.support.http_harness import serve
from tests.support.ledger_contract import DAY, NOON, usage_record
from tieline_server.core.create.profile import PROFILES, Profile
from tieline_server.storage.memory import MemoryLedger

PATH = "/v1/usage"
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


def filled() -> MemoryLedger:
    """Rows of three days and two models, all of the owner of a server without keys."""
    ledger = MemoryLedger()
    for number in range(3):
        at = NOON + number * DAY
        ledger.add(usage_record(f"resp_{number}", owner="local", ended_at=at, model="small"))
    ledger.add(usage_record("resp_3", owner="local", model="large"))
    return ledger


async def groups(client: Connection, query: str = "", **headers: str) -> list[tuple[str, int]]:
    reply = await client.ask("GET", PATH + query, **headers)
    assert reply.status == 200, reply.body
    return [(each["group"], each["responses"]) for each in reply.json["data"]]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
async def test_a_response_is_in_the_answer_as_soon_as_it_has_ended(profile: Profile) -> None:
    async with serve(profile=profile) as served, served.connection() as client:
        assert (await client.ask("GET", PATH)).json == {"object": "list", "data": []}
        usages: list[dict[str, Any]] = []
        for store in (True, False):
            body = {"model": "tiny", "input": "hi", "store": store}
            usages.append((await client.ask("POST", "/v1/responses", body)).json["usage"])
        reply = await client.ask("GET", f"{PATH}?by=model")
        assert reply.headers["content-type"].startswith("application/json")
        assert reply.json == {
            "object": "list",
            "data": [
                {
                    "group": "tiny",
                    "responses": 2,
                    "input_tokens": 2 * INPUT_TOKENS,
                    "cached_tokens": 0,
                    "output_tokens": sum(each["output_tokens"] for each in usages),
                    "reasoning_tokens": 0,
                }
            ],
        }
        assert reply.json["data"][0]["output_tokens"] > 0


async def test_sums_are_by_day_unless_by_model_and_between_two_moments() -> None:
    async with serve(ledger=filled()) as served, served.connection() as client:
        days = [("2026-11-01", 2), ("2026-11-02", 1), ("2026-11-03", 1)]
        assert await groups(client) == await groups(client, "?by=day") == days
        assert await groups(client, "?by=model") == [("large", 1), ("small", 3)]
        assert await groups(client, "?since=2026-11-02") == days[1:]
        assert await groups(client, "?until=2026-11-02") == days[:1]
        assert await groups(client, "?since=2026-11-02&until=2026-11-03") == days[1:2]
        assert await groups(client, "?since=2026-11-03T12:00:00Z") == days[2:]
        assert await groups(client, "?since=2026-11-03T12:00:00%2B00:00") == days[2:]
        assert await groups(client, "?since=2026-11-03T12:00:01Z") == []
        assert await groups(client, "?since=200000d") == days
        assert await groups(client, "?until=200000d") == []


async def test_a_caller_is_told_of_its_own_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)

    async with serve(api_keys=path) as served, served.connection() as client:
        body = {"model": "tiny", "input": "hi"}
        assert (await client.ask("POST", "/v1/responses", body, **ANN)).status == 200
        assert await groups(client, "?by=model", **ANN) == [("tiny", 1)]
        assert await groups(client, "?by=model", **BOB) == []
        assert await groups(client, "?by=model&owner=ann&key=ann", **BOB) == []


async def test_it_needs_a_key_like_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)

    async with serve(api_keys=path) as served, served.connection() as client:
        for wrong in ({}, {"authorization": "Bearer nobody"}):
            reply = await client.ask("GET", f"{PATH}?by=nonsense", **wrong)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("query", "param", "said"),
    [
        ("since=yesterday", "since", "Invalid value for 'since': expected a date, an ISO"),
        ("since=", "since", "Invalid value for 'since'"),
        ("since=2026-02-30", "since", "Invalid value for 'since'"),
        ("since=7d&until=soon", "until", "Invalid value for 'until'"),
        ("since=1d&until=2d", "until", "Invalid value for 'until': it is not after 'since'."),
        ("by=key", "by", "Invalid value for 'by': expected one of model, day."),
        ("by=", "by", "Invalid value for 'by'"),
        ("by=day&since=%00", "since", "Invalid value for 'since'"),
    ],
)
async def test_a_question_that_cannot_be_answered_is_a_400_that_names_the_parameter(
    query: str, param: str, said: str
) -> None:
    async with serve() as served, served.connection() as client:
        reply = await client.ask("GET", f"{PATH}?{query}")
        error = reply.error
        assert reply.status == 400
        assert (error["code"], error["type"]) == ("invalid_value", "invalid_request_error")
        assert error["param"] == param
        assert error["message"].startswith(said)
        assert (await client.ask("GET", PATH)).status == 200, "the connection lives on"


async def test_a_ledger_that_cannot_be_asked_is_a_server_error_without_a_word_of_it() -> None:
    class Broken(MemoryLedger):
        async def usage(self, question: object) -> list[Any]:
            raise OSError("secret path")

    async with serve(ledger=Broken()) as served, served.connection() as client:
        reply = await client.ask("GET", PATH)
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert b"secret" not in reply.body


async def test_only_get_and_head_are_allowed() -> None:
    async with serve() as served, served.connection() as client:
        for method in ("POST", "DELETE"):
            reply = await client.ask(method, PATH, {})
            assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
            assert "GET" in reply.headers["allow"]
        assert (await client.ask("HEAD", PATH)).status == 200
