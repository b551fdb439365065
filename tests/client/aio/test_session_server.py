"""Sessions with the real server, over lines that are cut."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.aio.connections import ours
from tests.client.aio.sessions import LINES, QUICK
from tests.client.relay import Relay
from tests.support.server_process import ServerProcess, serving, write_script
from tieline import events
from tieline.errors import Conflict, NotFound
from tieline_client import sync
from tieline_client._replay import Backoff, Policy
from tieline_client.agent import Agent, Tool
from tieline_client.aio import Session, connect, connect_session
from tieline_client.errors import IncompleteStream

KINDS = (*LINES, "http")
SHAPES = ("create", "append")
ROLLOUTS = [*itertools.product(LINES, SHAPES), ("http", "create")]
"""Over HTTP nothing can be held open."""
WORDS = "one two three four five six seven eight nine ten"
RULES: list[dict[str, Any]] = [
    {"id": "output", "when": {"last": "tool_output"}, "emit": {"type": "message", "text": WORDS}},
    {
        "id": "call",
        "when": {"tool": ["function", "press"]},
        "emit": {"type": "function_call", "name": "press", "arguments": {"button": "red"}},
    },
    {"id": "echo", "emit": {"type": "message", "text": f"{{user}} {WORDS}"}},
]

PATIENT = Policy(backoff=Backoff(max_retries=20, first=0.01, longest=0.1))
"""The server notices a lost line when it does: until then its lane may be busy."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    pace = {"tokens_per_second": 100}
    script = write_script(tmp_path_factory.mktemp("script"), rules=RULES, pace=pace)
    with serving("--script", script) as process:
        yield process


def address_of(server: ServerProcess, kind: str) -> str:
    return server.address if kind == "grpc" else server.http


class Cut:
    """A session whose line can be cut."""

    def __init__(self, server: ServerProcess, kind: str, policy: Policy = PATIENT) -> None:
        self.relay = Relay(address_of(server, kind))
        self.kind = kind
        self.policy = policy

    async def __aenter__(self) -> tuple[Session, Relay]:
        await self.relay.__aenter__()
        url = f"{self.kind}://{self.relay.address}"
        self.session = Session(url, policy=self.policy)
        return self.session, self.relay

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.relay.__aexit__()
        assert ours() == []


def rows(server: ServerProcess, response_id: str | None) -> list[str]:
    """How the turns of this response ended, as the ledger has them."""
    lines = server.lines("turn")
    return [line["outcome"] for line in lines if line["response_id"] == response_id]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut_at", [1, 4, 9])
async def test_rc_04_a_response_survives_its_line_event_by_event(
    server: ServerProcess, kind: str, cut_at: int
) -> None:
    async with Cut(server, kind) as (session, relay):
        conversation = session.conversation(store=False)
        stream = await conversation.create(input="go")
        got: list[Any] = []
        async for event in stream:
            got.append(event.sequence_number)
            if len(got) == cut_at:
                relay.reset()
        assert got == list(range(len(got)))
        assert stream.text == f"go {WORDS}"
        assert (await stream.response()).status == "completed"
        assert rows(server, stream.response_id) == ["completed"]
        # The chain has come to the new line with its response; over HTTP there is none.
        again = await (await conversation.create(input="on")).response()
        parent = None if kind == "http" else stream.response_id
        assert again.previous_response_id == parent


@pytest.mark.parametrize("kind", KINDS)
async def test_rc_04_a_create_whose_answer_is_lost_is_made_once(
    server: ServerProcess, kind: str
) -> None:
    """The line breaks right behind the request, whether it has arrived or not."""

    for _ in range(5):
        async with Cut(server, kind) as (session, relay):
            await session.ready()
            before = len(server.lines("turn"))
            stream = await session.create(input="go")
            relay.reset()
            assert (await stream.result()).text == f"go {WORDS}"
            assert len(server.lines("turn")) == before + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_rc_10_without_a_key_the_part_is_raised_and_the_server_gives_up(
    server: ServerProcess, kind: str
) -> None:
    policy = Policy(idempotent=False, backoff=QUICK.backoff)
    async with Cut(server, kind, policy) as (session, relay):
        stream = await session.create(input="go")
        async for event in stream:
            if isinstance(event, events.OutputTextDelta):
                break
        relay.reset()
        with pytest.raises(IncompleteStream) as caught:
            await stream.response()
        assert caught.value.response_id == stream.response_id
        assert f"go {WORDS}".startswith(caught.value.text)


@pytest.mark.parametrize(("kind", "shape"), ROLLOUTS)
@pytest.mark.parametrize("when", ["calling", "in the tool", "answering"])
async def test_tl_07_a_rollout_goes_on_over_a_cut_line_and_its_tool_runs_once(
    server: ServerProcess, kind: str, shape: Any, when: str
) -> None:
    pressed: list[str] = []

    async with Cut(server, kind) as (session, relay):

        async def press(button: str) -> str:
            """Presses a button."""
            pressed.append(button)
            if when == "in the tool":
                relay.reset()
            return "pressed"

        def watch(event: events.Event) -> None:
            calling = isinstance(event, events.FunctionCallArgumentsDelta)
            answering = isinstance(event, events.OutputTextDelta)
            if calling if when == "calling" else answering and when == "answering":
                relay.reset()

        agent = Agent(
            session, tools=[Tool.of(press, side_effect=True)], shape=shape, on_event=watch
        )
        run = await agent.run("go")
        assert run.text == WORDS
        assert [turn.outputs for turn in run.turns] == [("pressed",), ()]
        ids = {turn.response.id for turn in run.turns}
        assert len(ids) == (1 if shape == "append" else 2)
        for response_id in ids:
            assert rows(server, response_id) == ["completed"]
    assert pressed == ["red"]


@pytest.mark.parametrize("kind", LINES)
async def test_a_line_resumes_what_another_line_began(server: ServerProcess, kind: str) -> None:
    """The earlier reader is told; what is beyond the end is the end; the unknown is refused."""

    url = f"{kind}://{address_of(server, kind)}"
    async with connect(url) as first, connect(url) as second:
        stream = await first.create(input="go", resumable=True, store=False)
        async for event in stream:
            if isinstance(event, events.OutputTextDelta):
                break
        assert stream.response_id is not None
        moved = await second.resume(stream.response_id, after=stream.cursor)
        with pytest.raises(Conflict) as caught:
            await stream.response()
        assert caught.value.code == "resumed_elsewhere"
        whole = await moved.response()
        assert whole.status == "completed"
        end = await first.resume(stream.response_id, after=10_000)
        assert [event.type async for event in end] == ["response.completed"]
        with pytest.raises(NotFound):
            await (await second.resume("resp_unknown")).response()
        lane = second.lane("side")
        everything = await lane.resume(stream.response_id)
        numbers = [event.sequence_number async for event in everything]
        assert numbers == list(range(len(numbers)))
        assert everything.text == f"go {WORDS}"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_create_sent_again_by_hand_under_its_key_is_answered_on_any_line(
    server: ServerProcess, kind: str
) -> None:
    """On the first connection, on another lane while it runs, and on a connection made later."""

    url = f"{kind}://{address_of(server, kind)}"
    asked: dict[str, Any] = {"input": "go", "idempotency_key": kind}
    async with connect(url) as line:
        first = await line.create(**asked)
        beside = await line.lane("side").create(**asked) if kind in LINES else first
        whole = await first.response()
        assert (await beside.response()).id == whole.id
        assert (await (await line.create(**asked)).response()).id == whole.id
        assert (await (await line.create(input="on")).response()).status == "completed"
    async with connect(url) as line:
        assert (await (await line.create(**asked)).response()).id == whole.id


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_response_is_cancelled_and_says_so(server: ServerProcess, kind: str) -> None:
    async with Cut(server, kind) as (session, relay):
        stream = await session.create(input="go")
        async for event in stream:
            if isinstance(event, events.OutputTextDelta):
                break
        line = session.connection
        assert line is not None
        relay.reset()
        if kind != "http":
            await asyncio.wait((line._reader,))
        await stream.cancel()
        assert (await stream.response()).status == "cancelled"


async def test_the_extensions_that_a_session_rests_on_are_offered(server: ServerProcess) -> None:
    for kind in LINES:
        async with connect_session(f"{kind}://{address_of(server, kind)}") as session:
            offered = await (await session.ready()).extensions()
            assert {"idempotency_key", "resume"} <= offered


@pytest.mark.parametrize("kind", ["ws"])
@pytest.mark.parametrize("store", [False, True])
def test_rc_01_four_turns_over_lines_that_live_a_second(
    tmp_path: Path, kind: str, store: bool
) -> None:
    """RC-01: the third turn meets the limit while it runs, and the fourth after it."""
    pace = {"tokens_per_second": 40}
    script = write_script(tmp_path, rules=RULES, pace=pace)
    with serving("--script", script, "--max-age", "1") as server:

        async def main() -> list[str]:
            url = f"{kind}://{address_of(server, kind)}"
            async with connect_session(url, policy=PATIENT) as session:
                conversation = session.conversation(store=store)
                return [
                    (await (await conversation.create(input=str(number))).result()).text
                    for number in range(4)
                ]

        assert asyncio.run(main()) == [f"{number} {WORDS}" for number in range(4)]
        assert [line["outcome"] for line in server.lines("turn")].count("completed") == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_may_stand_alone_and_the_text_has_the_name_of_openai_s_client(
    server: ServerProcess, kind: str
) -> None:
    url = f"{kind}://{address_of(server, kind)}"
    with sync.connect(url) as connection, sync.connect_session(url) as session:
        streams: list[Any] = [
            connection.create("a"),
            connection.lane("b").create("b"),
            session.create("c"),
            session.conversation().create("d"),
        ]
        said = [stream.result().output_text for stream in streams]
    assert said == [f"{word} {WORDS}" for word in "abcd"]
