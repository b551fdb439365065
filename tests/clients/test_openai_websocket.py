"""openai-python over WebSocket, unchanged: only its ``base_url`` says where we are."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.support.server_process import ServerProcess, serving, write_script

EVENT: Final = TypeAdapter[Any](ResponsesServerEvent)

TERMINAL: Final = ("response.completed", "response.failed", "response.incomplete", "error")

LIMITS: Final = ResponsesWebSocketLimits(
    max_lanes=16,
    max_events_per_lane=1024,
    max_events=8192,
    max_bytes_per_lane=16 * 1024 * 1024,
    max_bytes=64 * 1024 * 1024,
)

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "name": "write_file",
    "description": "Writes a file.",
    "parameters": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "text": {"type": "string"}},
    },
    "strict": False,
}

RULES: Final[list[dict[str, Any]]] = [
    {
        "id": "write",
        "when": {"last": "message", "tool": ["function", "write_file"], "user_contains": "write"},
        "emit": [
            {"type": "reasoning", "summary": "A file is asked for."},
            {
                "type": "function_call",
                "name": "write_file",
                "arguments": {"name": "note.txt", "text": "{user}"},
            },
        ],
    },
    {
        "id": "written",
        "when": {"last": "tool_output"},
        "emit": {"type": "message", "text": "Done: {output}"},
    },
    {
        "id": "slow",
        "when": {"user_contains": "slowly"},
        "pace": {"tokens_per_second": 50},
        "emit": [
            {"type": "reasoning", "text": "hm hm hm hm hm hm hm hm"},
            {"type": "message", "text": "never reached " * 50},
        ],
    },
    {
        "id": "break",
        "when": {"user_contains": "break"},
        "emit": [
            {"type": "message", "text": "so far so good"},
            {
                "type": "error",
                "status": 503,
                "code": "engine_unavailable",
                "message": "It is gone.",
                "after_tokens": 2,
            },
        ],
    },
    {"id": "echo", "emit": {"type": "message", "text": "You said: {user}"}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = write_script(tmp_path_factory.mktemp("script"), rules=RULES)
    with serving("--script", script, "--merge", "never", "--http", "127.0.0.1:0") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as client:
        yield client


def async_client(server: ServerProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://{server.http}/v1", api_key="none")


def turn(connection: ResponsesConnection) -> list[Any]:
    """Events up to a turn's end, each one checked against the SDK's own types."""
    events: list[Any] = []
    while not events or events[-1].type not in TERMINAL:
        raw = connection.recv_bytes()
        EVENT.validate_json(raw)
        events.append(connection.parse_event(raw))
    return events


def run_tool(call: Any, folder: Path) -> Any:
    """Does what the model asked for, in the file system, and answers the call."""
    arguments = json.loads(call.arguments)
    (folder / arguments["name"]).write_text(arguments["text"])
    written = f"{len(arguments['text'])} characters"
    return {"type": "function_call_output", "call_id": call.call_id, "output": written}


def test_a_turn_has_the_events_and_types_of_the_sdk(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model="scripted", input="hello", store=False)
        events = turn(connection)
        assert events[0].type == "response.created"
        final = events[-1].response
        assert isinstance(final, openai.types.responses.Response)
        assert final.output_text == "You said: hello"
        assert final.usage is not None
        assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens
        assert [event.sequence_number for event in events] == list(range(len(events)))
        deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
        assert "".join(deltas) == final.output_text


@pytest.mark.parametrize("store", [False, True])
def test_a_tool_loop_of_several_turns_runs_on_one_connection(
    client: openai.OpenAI, store: bool, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"model": "scripted", "store": store, "tools": [TOOL]}
    with client.responses.connect() as connection:
        previous: str | None = None
        for number in range(3):
            text = f"write number {number}"
            connection.response.create(input=text, previous_response_id=previous, **settings)
            asked = turn(connection)[-1].response
            (call,) = [item for item in asked.output if item.type == "function_call"]
            output = run_tool(call, tmp_path)
            connection.response.create(input=[output], previous_response_id=asked.id, **settings)
            told = turn(connection)[-1].response
            assert (tmp_path / "note.txt").read_text() == text
            assert told.output_text == f"Done: {len(text)} characters"
            assert told.previous_response_id == asked.id
            previous = told.id
    assert previous is not None
    if store:
        kept = client.responses.retrieve(previous)
        assert kept.output_text.startswith("Done: ")
    else:
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(previous)


def test_a_warm_up_is_continued(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(
            model="scripted", input="x", store=False, generate=False, instructions="Be brief."
        )
        warm = turn(connection)[-1].response
        assert (warm.status, warm.output, warm.usage.output_tokens) == ("completed", [], 0)
        connection.response.create(
            model="scripted", input="hello", store=False, previous_response_id=warm.id
        )
        assert turn(connection)[-1].response.output_text == "You said: hello"


def test_an_error_is_an_event_of_the_sdk_and_the_connection_lives(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        for members, code, status in (
            ({"model": "no-such-model"}, "model_not_found", 404),
            ({"previous_response_id": "resp_unknown"}, "previous_response_not_found", 400),
        ):
            create: dict[str, Any] = {"model": "scripted", "input": "x", "store": False, **members}
            connection.response.create(**create)
            (error,) = turn(connection)
            assert isinstance(error, openai.types.responses.responses_server_event.ResponseWsError)
            assert (error.error.code, error.status) == (code, status)
        connection.response.create(model="scripted", input="still here", store=False)
        assert turn(connection)[-1].response.output_text == "You said: still here"


def test_a_failed_response_has_a_code_of_the_sdks_list(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model="scripted", input="break it", store=False)
        failed = turn(connection)[-1]
        assert failed.type == "response.failed"
        assert failed.response.error.code == "server_error"
        assert failed.response.error.message == "It is gone."


def test_a_steer_ends_the_response_and_a_successor_follows(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model="scripted", input="slowly", store=False)
        first = connection.recv()
        assert first.type == "response.created"
        connection.response.steer(input="be brief", previous_response_id=first.response.id)
        events = turn(connection)
        assert "response.steer.accepted" in [event.type for event in events]
        assert events[-1].response.incomplete_details.reason == "steered"
        successor = turn(connection)
        assert successor[0].type == "response.created"
        assert successor[-1].response.output_text == "You said: be brief"
        assert successor[-1].response.previous_response_id == first.response.id


def test_lanes_of_a_session_run_side_by_side(client: openai.OpenAI) -> None:
    with (
        client.responses.connect() as connection,
        ResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        lanes = {name: session.lane(name) for name in ("a", "b", "c")}
        for name, lane in lanes.items():
            lane.send(
                {"type": "response.create", "model": "scripted", "input": name, "store": False}
            )
        finals = {name: lane.get_final_response(timeout=20.0) for name, lane in lanes.items()}
        assert {name: final.output_text for name, final in finals.items()} == {
            name: f"You said: {name}" for name in lanes
        }
        lanes["a"].send(
            {
                "type": "response.create",
                "model": "scripted",
                "input": "fork",
                "store": False,
                "previous_response_id": finals["b"].id,
            }
        )
        fork = lanes["a"].get_final_response(timeout=20.0)
        assert fork.previous_response_id == finals["b"].id


def test_an_error_on_a_lane_of_a_session_reaches_that_lane(client: openai.OpenAI) -> None:
    with (
        client.responses.connect() as connection,
        ResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        lane = session.lane("a")
        lane.send({"type": "response.create", "model": "nope", "input": "x", "store": False})
        with pytest.raises(ResponsesWebSocketError) as caught:
            lane.get_final_response(timeout=20.0)
        event: Any = caught.value.event
        assert event.error.code == "model_not_found"


async def test_the_async_sdk_loops_over_tools_on_lanes(
    server: ServerProcess, tmp_path: Path
) -> None:
    async def agent(session: AsyncResponsesWebSocketSession, name: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        lane = session.lane(name)
        create: dict[str, Any] = {
            "type": "response.create",
            "model": "scripted",
            "store": False,
            "tools": [TOOL],
        }
        await lane.send({**create, "input": f"write {name}"})  # type: ignore[arg-type]
        asked = await lane.get_final_response()
        (call,) = [item for item in asked.output if item.type == "function_call"]
        answer = {"input": [run_tool(call, folder)], "previous_response_id": asked.id}
        await lane.send({**create, **answer})  # type: ignore[arg-type]
        told = await lane.get_final_response()
        assert (folder / "note.txt").read_text() == f"write {name}"
        return told.output_text

    async with (
        async_client(server) as client,
        client.responses.connect(websocket_connection_options={"max_size": None}) as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        names = [f"agent{number}" for number in range(8)]
        told = await asyncio.gather(*(agent(session, name) for name in names))
        assert told == [f"Done: {len(name) + 6} characters" for name in names]


async def test_the_async_sdk_iterates_over_a_connection(server: ServerProcess) -> None:
    async with (
        async_client(server) as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model="scripted", input="hello", store=False)
        types = []
        async for event in connection:
            types.append(event.type)
            if event.type == "response.completed":
                break
        assert types[0] == "response.created"
        assert types.count("response.output_item.done") == 1
