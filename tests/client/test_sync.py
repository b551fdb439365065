"""The blocking face against the real server."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server_process import ServerProcess, serving, write_script
from tieline import events
from tieline.errors import NotFound
from tieline_client._replay import Policy
from tieline_client.agent import Agent
from tieline_client.aio import tool_output
from tieline_client.errors import ConnectionClosed, ConnectionLost, IncompleteStream
from tieline_client.sync import connect, connect_session

RULES: list[dict[str, Any]] = [
    {
        "id": "output",
        "when": {"last": "tool_output"},
        "emit": {"type": "message", "text": "It is {output}"},
    },
    {
        "id": "call",
        "when": {"tool": ["function", "add"]},
        "emit": {"type": "function_call", "name": "add", "arguments": {"a": 1, "b": 2}},
    },
    {
        "id": "stall",
        "when": {"user_contains": "stall"},
        "emit": [{"type": "message", "text": "before"}, {"type": "stall", "seconds": 600}],
    },
    {"id": "echo", "emit": {"type": "message", "text": "You said: {user}"}},
]

TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = write_script(tmp_path_factory.mktemp("script"), rules=RULES)
    with serving("--script", script) as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> Iterator[str]:
    yield f"grpc://{server.address}"
    assert [each.name for each in threading.enumerate() if each.name == "tieline-loop"] == []


def test_a_turn_is_read_event_by_event(url: str) -> None:
    with connect(url) as connection:
        stream = connection.create(input="hello")
        types = [event.type for event in stream]
        assert (types[0], types[-1]) == ("response.created", "response.completed")
        assert stream.text == "You said: hello"
        assert (stream.ended, stream.held, stream.lane) == (True, False, None)
        assert stream.response().id == stream.response_id
        assert stream.timing is not None
        assert stream.wall is not None
        assert connection.session is not None
        assert connection.alive
        assert connection.going_away is None


def test_a_chain_remembers_and_lanes_are_named(url: str) -> None:
    with connect(url) as connection:
        lane = connection.lane("side")
        first = lane.create(input="one").response()
        second = lane.create(input="two", previous_response_id=first.id).response()
        assert second.previous_response_id == first.id
        assert lane.append("three").result().text == "You said: three"
        assert connection.create(input="four", store=False).result().text == "You said: four"
        assert connection.append("five").result().text == "You said: five"
        assert lane.name == "side"


def test_a_held_turn_is_answered(url: str) -> None:
    with connect(url) as connection:
        stream = connection.create(input="add", tools=TOOLS, append=True)
        (call,) = stream.result().calls
        assert (stream.held, stream.calls) == (True, (call,))
        stream.append([tool_output(call, "3")])
        assert stream.result().text == "It is 3"


def test_a_running_turn_is_cancelled(url: str) -> None:
    with connect(url) as connection:
        stream = connection.create(input="stall")
        for event in stream:
            if isinstance(event, events.OutputTextDelta):
                stream.cancel()
        assert stream.response().status == "cancelled"


def test_a_running_turn_is_steered(url: str) -> None:
    with connect(url) as connection:
        stream = connection.create(input="stall")
        seen: list[str] = []
        for event in stream:
            seen.append(event.type)
            if isinstance(event, events.OutputTextDone) and "response.steer.accepted" not in seen:
                stream.steer("other")
        assert seen.index("response.steer.accepted") < seen.index("response.incomplete")
        # The stream goes on with the successor, which answers the steer.
        assert stream.response().status == "completed"


def test_leaving_the_block_cancels_what_runs(url: str) -> None:
    with connect(url) as connection, connection.create(input="stall") as stream:
        next(iter(stream))
    with pytest.raises(ConnectionClosed):
        connection.create(input="late")


def test_a_thread_that_waits_when_the_line_is_closed_is_let_go(url: str) -> None:
    caught: list[Exception] = []
    waiting = threading.Event()

    with connect(url) as connection:

        async def forever() -> None:
            waiting.set()
            await asyncio.Event().wait()

        def work() -> None:
            try:
                connection.wait(forever())
            except ConnectionClosed as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        waiting.wait()
    thread.join()
    assert len(caught) == 1


def test_errors_are_raised_in_the_calling_thread(url: str) -> None:
    with connect(url) as connection:
        with pytest.raises(NotFound):
            connection.create(input="x", model="nope").response()
        with pytest.raises(ValueError, match="lane"):
            connection.lane("a b")
    with pytest.raises(ConnectionLost), connect("grpc://127.0.0.1:1"):
        pass


def test_several_threads_may_use_one_line(url: str) -> None:
    with connect(url) as connection:
        said: dict[str, str] = {}

        def work(name: str) -> None:
            said[name] = connection.lane(name).create(input=name).result().text

        threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert said == {f"t{number}": f"You said: t{number}" for number in range(8)}


def test_an_agent_runs_on_a_blocking_line(url: str) -> None:
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    with connect(url) as connection:
        run = connection.wait(Agent(connection.aio, tools=[add], shape="append").run("add"))
        assert run.text == "It is 3"


def test_a_killed_server_ends_what_is_read(tmp_path: Any) -> None:
    script = write_script(tmp_path, rules=RULES)
    with serving("--script", script) as server, connect(f"grpc://{server.address}") as connection:
        stream = connection.create(input="stall")
        assert "response.output_text.done" in {next(iter(stream)).type for _ in range(6)}
        server.process.kill()
        with pytest.raises(IncompleteStream, match="incomplete") as caught:
            stream.response()
        assert caught.value.text == "before"
        assert not connection.alive


def test_a_session_and_its_conversation_block_as_well(server: ServerProcess) -> None:
    with connect_session(f"ws://{server.http}", policy=Policy(max_age=600.0)) as session:
        conversation = session.conversation(store=False)
        stream = conversation.create(input="one")
        assert [event.type for event in stream][-1] == "response.completed"
        assert (stream.text, stream.over, stream.ended) == ("You said: one", True, True)
        assert conversation.create(input="two").result().text == "You said: two"
        assert conversation.latest is not None
        conversation.add("three")
        assert (len(conversation.items), conversation.lane) == (5, None)
        assert session.policy.max_age == 600.0
        assert session.connection is not None
        assert session.connection.transport == "websocket"
        assert "append" in session.connection.extensions()
        assert session.create(input="other").result().text == "You said: other"
        assert session.wait(Agent(session.aio).run("agent")).text == "You said: agent"
