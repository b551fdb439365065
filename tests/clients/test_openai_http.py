"""openai-python, unchanged, pointed at a server: HTTP and server-sent events.

Whatever an answer or an event carries is a type of the SDK's own, checked by its strict models.
"""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.server_process import serving, write_script

MODEL = "scripted"
LOOK: FunctionToolParam = {
    "type": "function",
    "name": "look",
    "description": "Looks somewhere.",
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "required": ["at"],
        "additionalProperties": False,
    },
    "strict": True,
}
SCRIPT = {
    "models": [MODEL],
    "rules": [
        {
            "id": "call",
            "when": {"last": "message", "tool": ["function", "look"]},
            "emit": {"type": "function_call", "name": "look", "arguments": {"at": "the sky"}},
        },
        {
            "id": "seen",
            "when": {"last": "tool_output"},
            "emit": {"type": "message", "text": "Blue."},
        },
        {
            "id": "think",
            "when": {"user_contains": "think"},
            "emit": [
                {"type": "reasoning", "summary": "Why not.", "text": "Hm."},
                {"type": "message", "text": "Done."},
            ],
        },
        {
            "id": "wait",
            "when": {"user_contains": "wait"},
            "emit": [{"type": "message", "text": "Begun."}, {"type": "stall", "seconds": 3600}],
        },
        {
            "id": "break",
            "when": {"user_contains": "break"},
            "emit": {
                "type": "error",
                "status": 503,
                "code": "server_is_overloaded",
                "message": "Too much.",
                "after_tokens": 1,
            },
        },
        {
            "id": "json",
            "when": {"user_contains": "json"},
            "emit": {"type": "message", "text": '{"city": "Oslo"}'},
        },
        {"id": "else", "when": {}, "emit": {"type": "message", "text": "Hello from the server."}},
    ],
}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


class City(BaseModel):
    """What a structured answer holds."""

    city: str


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a real server."""
    script = write_script(tmp_path_factory.mktemp("script"), **SCRIPT)
    with serving("--script", script) as server:
        yield f"http://{server.http}/v1"


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    """The blocking client; it retries nothing, so that nothing is hidden."""
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_create_retrieve_list_and_delete(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Say hello.")
    Response.model_validate_json(response.to_json())
    assert (response.status, response.output_text) == ("completed", "Hello from the server.")
    assert response.usage is not None
    assert response.usage.total_tokens > 0
    assert (response._request_id or "").startswith("req_")
    again = client.responses.retrieve(response.id, include=["reasoning.encrypted_content"])
    assert again.to_dict() == response.to_dict()
    (item,) = client.responses.input_items.list(response.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "Say hello."}]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(response.id)
    assert (caught.value.code, caught.value.type) == ("response_not_found", "invalid_request_error")


def test_the_events_of_a_stream_are_the_sdks_own(client: OpenAI) -> None:
    with client.responses.create(model=MODEL, input="think", stream=True) as stream:
        events = list(stream)
    for event in events:
        EVENT.validate_json(event.to_json(), strict=False)
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Done."


def test_the_stream_helper_builds_the_response(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Say hello.") as stream:
        said = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
        final = stream.get_final_response()
    assert said == final.output_text == "Hello from the server."


def test_a_structured_answer_is_parsed(client: OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="json please", text_format=City)
    assert parsed.output_parsed == City(city="Oslo")


@pytest.mark.parametrize("stored", [True, False])
def test_a_tool_loop_runs_to_its_end(client: OpenAI, stored: bool) -> None:
    first = client.responses.create(model=MODEL, input="look", tools=[LOOK], store=stored)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("look", '{"at":"the sky"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "blue"}
    if stored:
        second = client.responses.create(
            model=MODEL,
            tools=[LOOK],
            previous_response_id=first.id,
            input=[output],  # type: ignore[list-item]
        )
    else:
        history = [{"role": "user", "content": "look"}, call.to_dict(), output]
        second = client.responses.create(
            model=MODEL,
            tools=[LOOK],
            store=False,
            input=history,  # type: ignore[arg-type]
        )
    assert second.output_text == "Blue."


def test_input_items_come_in_pages_that_the_sdk_follows(client: OpenAI) -> None:
    said = [{"role": "user", "content": str(number)} for number in range(7)]
    response = client.responses.create(model=MODEL, input=said)  # type: ignore[arg-type]
    listed = client.responses.input_items.list(response.id, limit=3, order="asc")
    texts = [item.to_dict()["content"][0]["text"] for item in listed]  # type: ignore[index]
    assert texts == [str(number) for number in range(7)]


def test_a_running_response_is_cancelled_by_its_id(client: OpenAI) -> None:
    with client.responses.create(model=MODEL, input="wait", stream=True) as stream:
        created = next(iter(stream))
        assert created.type == "response.created"
        cut = client.responses.cancel(created.response.id)
        assert cut.status == "cancelled"
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert client.responses.retrieve(created.response.id).status == "cancelled"


def test_a_failure_after_the_start_is_an_event_or_an_error(client: OpenAI) -> None:
    with client.responses.create(model=MODEL, input="break", stream=True) as stream:
        last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "Too much."
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(model=MODEL, input="break")
    assert (caught.value.status_code, caught.value.code) == (503, "server_is_overloaded")


def test_a_refusal_is_the_sdks_own_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="no-such", input="x", stream=True)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert (caught.value.request_id or "").startswith("req_")
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_no")
    assert bad.value.code == "previous_response_not_found"


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by


def test_tokens_are_counted_and_windows_compacted(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="Say hello.")
    made = client.responses.create(model=MODEL, input="Say hello.")
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    window = client.responses.compact(model=MODEL, previous_response_id=made.id)
    assert [item.type for item in window.output] == ["message", "compaction"]


def test_a_long_history_is_folded_inside_a_turn(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="word " * 1200)
    with client.responses.create(
        model=MODEL,
        input="go on",
        previous_response_id=first.id,
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
        stream=True,
    ) as stream:
        events = list(stream)
    for event in events:
        EVENT.validate_json(event.to_json(), strict=False)
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["compaction", "message"]
    assert last.response.usage is not None
    assert last.response.usage.input_tokens < 100


def test_reasoning_that_is_not_stored_is_sent_back(client: OpenAI) -> None:
    made = client.responses.create(
        model=MODEL, input="think", store=False, include=["reasoning.encrypted_content"]
    )
    thought = made.output[0]
    assert thought.type == "reasoning"
    assert thought.encrypted_content
    history = [{"role": "user", "content": "think"}, *(item.to_dict() for item in made.output)]
    again = client.responses.create(
        model=MODEL,
        input=[*history, {"role": "user", "content": "and?"}],  # type: ignore[list-item]
        store=False,
    )
    assert again.status == "completed"


def test_a_wrong_key_is_the_sdks_own_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text("keys = []\n")
    with (
        serving("--api-keys", str(keys)) as server,
        OpenAI(base_url=f"http://{server.http}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


async def test_the_asynchronous_client_does_the_same(url: str) -> None:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        many = await asyncio.gather(
            *(client.responses.create(model=MODEL, input="Say hello.") for _ in range(8))
        )
        assert {each.output_text for each in many} == {"Hello from the server."}
        assert len({each.id for each in many}) == 8
        async with client.responses.stream(model=MODEL, input="think") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert final.output_text == "Done."
        running = await client.responses.create(model=MODEL, input="wait", stream=True)
        created = await anext(aiter(running))
        assert created.type == "response.created"
        assert (await client.responses.cancel(created.response.id)).status == "cancelled"
        await running.close()
        items = [item async for item in client.responses.input_items.list(many[0].id)]
        assert len(items) == 1
        await client.responses.delete(many[0].id)
        assert [model.id async for model in client.models.list()] == [MODEL]
