"""What the server says of itself."""

from pathlib import Path

from tests.support.http_harness import serve
from tieline_server.core.create.profile import PROFILES

KEYS = """
[[keys]]
hash = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
owner = "ann"
models = ["other"]
"""


async def test_models_are_listed_and_found_by_name() -> None:
    async with serve() as served, served.connection() as client:
        listed = (await client.ask("GET", "/v1/models")).json
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["tiny", "other"]
        assert (await client.ask("GET", "/v1/models/tiny")).json == listed["data"][0]
        reply = await client.ask("GET", "/v1/models/org/none")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert "org/none" in reply.error["message"]


async def test_a_key_sees_the_models_that_it_may_use(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)

    async with serve(api_keys=path) as served, served.connection() as client:
        mine = {"authorization": "Bearer secret"}
        listed = (await client.ask("GET", "/v1/models", **mine)).json
        assert [model["id"] for model in listed["data"]] == ["other"]
        assert (await client.ask("GET", "/v1/models/tiny", **mine)).status == 404
        assert (await client.ask("GET", "/v1/capabilities")).status == 401


async def test_codex_gets_its_own_shape_and_may_keep_it() -> None:
    async with serve() as served, served.connection() as client:
        where = "/v1/models?client_version=0.99.0"
        reply = await client.ask("GET", where)
        assert [model["slug"] for model in reply.json["models"]] == ["tiny", "other"]
        assert all(model["display_name"] for model in reply.json["models"])
        kept = await client.ask("GET", where, if_none_match=reply.headers["etag"])
        assert (kept.status, kept.headers["etag"]) == (304, reply.headers["etag"])
        assert (await client.ask("GET", where, if_none_match='"old"')).status == 200


async def test_capabilities_say_what_is_offered_where() -> None:
    async with serve() as served, served.connection() as client:
        said = (await client.ask("GET", "/v1/capabilities")).json
        assert said["profile"] == "openai"
        assert "append" not in said["extensions"]["http"]
        assert {"resume", "idempotency_key"} <= set(said["extensions"]["http"])
        assert said["background"] == ["grpc", "http"]
        assert said["limits"]["resume_window_ms"] == 120_000
        assert "websocket" not in said["extensions"]
        assert said["limits"]["active_responses"] == 16
        (engine,) = said["engines"]
        assert [model["id"] for model in engine["models"]] == ["tiny", "other"]
    async with (
        serve(profile=PROFILES["open-responses"]) as served,
        served.connection() as client,
    ):
        said = (await client.ask("GET", "/v1/capabilities")).json
        assert (said["profile"], said["extensions"]["http"]) == ("open-responses", [])
