"""openai-python, unchanged: responses in the background, their events read again, and keys."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.server_process import serving, write_script

MODEL = "scripted"
SCRIPT = {
    "models": [MODEL],
    "rules": [
        {
            "id": "wait",
            "when": {"user_contains": "wait"},
            "emit": [{"type": "message", "text": "Begun."}, {"type": "stall", "seconds": 3600}],
        },
        {"id": "else", "when": {}, "emit": {"type": "message", "text": "Hello from the server."}},
    ],
}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module", params=["openai", "open-responses"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a real server, in either profile."""
    script = write_script(tmp_path_factory.mktemp("script"), **SCRIPT)
    with serving("--script", script, "--profile", request.param) as server:
        yield f"http://{server.http}/v1"


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    """The blocking client; it retries nothing, so that nothing is hidden."""
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def polled(client: OpenAI, response: Response) -> Response:
    """The response once it has ended, as the SDK's guide has it."""
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    return response


def test_a_background_response_is_polled_to_its_end(client: OpenAI) -> None:
    begun = client.responses.create(model=MODEL, input="Say hello.", background=True)
    assert (begun.status, begun.background) == ("queued", True)
    ended = polled(client, begun)
    Response.model_validate_json(ended.to_json())
    assert (ended.status, ended.output_text) == ("completed", "Hello from the server.")
    assert ended.usage is not None
    assert ended.usage.total_tokens > 0
    again = client.responses.create(model=MODEL, input="and?", previous_response_id=begun.id)
    assert again.status == "completed"


def test_rc_09_the_events_are_read_on_behind_the_last_one_that_was_seen(client: OpenAI) -> None:
    """RC-09: the stream is left after event 3; the SDK reads the others, and the end."""
    first = []
    with client.responses.create(
        model=MODEL, input="Say hello.", background=True, stream=True
    ) as stream:
        for event in stream:
            first.append(event)
            if event.sequence_number == 3:
                break
    created = first[0]
    assert created.type == "response.created"
    made = created.response.id
    rest = list(client.responses.retrieve(made, stream=True, starting_after=3))
    whole = list(client.responses.retrieve(made, stream=True))
    for event in whole:
        EVENT.validate_json(event.to_json(), strict=False)
    assert [event.to_dict() for event in [*first, *rest]] == [event.to_dict() for event in whole]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    (last,) = client.responses.retrieve(made, stream=True, starting_after=1000)
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello from the server."


def test_the_stream_helper_goes_on_from_an_event(client: OpenAI) -> None:
    begun = client.responses.create(model=MODEL, input="Say hello.", background=True)
    with client.responses.stream(response_id=begun.id) as stream:
        said = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
        assert stream.get_final_response().output_text == said == "Hello from the server."


def test_a_background_response_is_cancelled(client: OpenAI) -> None:
    begun = client.responses.create(model=MODEL, input="wait", background=True)
    cut = client.responses.cancel(begun.id)
    assert cut.status == "cancelled"
    assert client.responses.cancel(begun.id).to_dict() == cut.to_dict()
    assert client.responses.retrieve(begun.id).to_dict() == cut.to_dict()
    last = list(client.responses.retrieve(begun.id, stream=True))[-1]
    assert last.type == "response.incomplete"


def test_a_key_in_the_headers_makes_one_response(client: OpenAI) -> None:
    key = {"Idempotency-Key": "order-7"}
    first = client.responses.create(model=MODEL, input="Say hello.", extra_headers=key)
    again = client.responses.create(model=MODEL, input="Say hello.", extra_headers=key)
    assert again.to_dict() == first.to_dict()
    with client.responses.create(
        model=MODEL, input="Say hello.", stream=True, extra_headers=key
    ) as stream:
        last = list(stream)[-1]
    assert last.type == "response.completed"
    assert last.response.to_dict() == first.to_dict()
    with pytest.raises(openai.ConflictError) as conflict:
        client.responses.create(model=MODEL, input="Say more.", extra_headers=key)
    assert conflict.value.code == "idempotency_conflict"


def test_what_cannot_be_read_again_is_the_sdks_own_error(client: OpenAI) -> None:
    plain = client.responses.create(model=MODEL, input="Say hello.")
    with pytest.raises(openai.BadRequestError) as kept:
        client.responses.retrieve(plain.id, stream=True)
    assert kept.value.code == "not_resumable"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_no", stream=True)
    with pytest.raises(openai.BadRequestError) as unstored:
        client.responses.create(model=MODEL, input="x", background=True, store=False)
    assert unstored.value.param == "background"
