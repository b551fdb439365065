"""In front of a server that keeps responses, the model sees the whole history and nothing twice."""

from collections.abc import Iterator

import pytest

from tests.conformance.server import BEHIND, ECHO_CONTEXT
from tests.conformance.server import serve as serve_behind
from tests.conformance.wire import Wire, ask, context, output, response, said
from tests.support.engine_contract import WEATHER

CALLS = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "call",
            "when": {"last": "message", "user_contains": "weather"},
            "emit": {"type": "function_call", "name": "get_weather", "arguments": "{}"},
        },
        *ECHO_CONTEXT["rules"],
    ],
}


@pytest.fixture(autouse=True)
def behind() -> Iterator[None]:
    token = BEHIND.set("state")
    yield
    BEHIND.reset(token)


@pytest.mark.needs("connection")
async def test_a_conversation_goes_on_from_what_is_kept(wire: Wire) -> None:
    async with serve_behind(ECHO_CONTEXT) as served, wire(served) as peer:
        first = await ask(peer, input="one", store=True)
        answers = [first]
        for text in ("two", "three"):
            before = response(answers[-1])["id"]
            answers.append(await ask(peer, input=text, previous_response_id=before))
        heard = [said(context(events)) for events in answers]
        assert heard[0] == [("user", "one")]
        assert [who for who, _ in heard[2]] == ["user", "assistant"] * 2 + ["user"]
        assert [text for who, text in heard[2] if who == "user"] == ["one", "two", "three"]

        # From the store, whose chain no answer hangs on: all of it goes.
        fork = await ask(peer, input="else", previous_response_id=response(first)["id"])
        assert [text for who, text in said(context(fork)) if who == "user"] == ["one", "else"]


@pytest.mark.needs("connection")
async def test_a_tools_output_follows_its_call(wire: Wire) -> None:
    async with serve_behind(CALLS) as served, wire(served) as peer:
        first = response(await ask(peer, input="weather", tools=[WEATHER]))
        (call,) = first["output"]
        second = await ask(
            peer,
            input=[output(call["call_id"], "sun"), {"role": "user", "content": "and?"}],
            previous_response_id=first["id"],
            tools=[WEATHER],
        )
        kinds = [who for who, _ in said(context(second))]
        assert kinds == ["user", "function_call", "function_call_output", "user"]
