"""Tools with effects run at most once, and each way of not running has words of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.client.aio.sessions import LINES, QUICK, Peer, Server, items_of, session_with
from tests.client.servicer import Speaker
from tieline import requests
from tieline.events import Event
from tieline_client._replay import Policy
from tieline_client.agent import Agent, Outcome, RepeatedCall, Tool
from tieline_client.aio import Call
from tieline_client.errors import IncompleteStream

SHAPES = ("create", "append")
ARGUMENTS = '{"to":"a","text":"b"}'


class Mail:
    """A tool that must not run twice; ``sent`` is the ledger of what it did."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    @property
    def tool(self) -> Tool:
        async def send(to: str, text: str) -> str:
            """Sends a mail."""
            self.sent.append(f"{to}: {text}")
            return f"sent {len(self.sent)}"

        return Tool.of(send, side_effect=True)


def outputs(request: requests.Create | requests.Append) -> list[tuple[str, str]]:
    return [
        (item["call_id"], item["output"])
        for item in items_of(request)
        if item.get("type") == "function_call_output"
    ]


class Server07:
    """A model that calls once and answers; the first line is cut after ``cut_after`` events."""

    def __init__(self, *, append: bool, cut_after: int, again: str = "call_5") -> None:
        self.append, self.cut_after, self.again = append, cut_after, again
        self.server = Server(self.first, self.second)
        self.answers: list[requests.Create | requests.Append] = []
        self.said: list[Event] = []
        self.speaker: Speaker | None = None

    def turn(self, create: requests.Create, call_id: str, response_id: str) -> list[Event]:
        self.speaker = speaker = Speaker(create, response_id)
        end = speaker.done if self.append else speaker.completed
        return [speaker.created(), *speaker.call("send", ARGUMENTS, call_id), end()]

    async def first(self, peer: Peer) -> None:
        self.said = self.turn(await self.server.create(peer), "call_5", "r1")
        await peer.send(*self.said[: self.cut_after])

    async def first_and_cut(self, peer: Peer) -> None:
        """A whole turn, and the first event of the next one."""
        await self.first(peer)
        await peer.send(Speaker(await self.server.create(peer), "r9").created())

    async def second(self, peer: Peer) -> None:
        """Resumes, or samples the same call again (under the id ``again``)."""
        request = await peer.receive()
        if isinstance(request, requests.Resume):
            assert request.after is not None
            await peer.send(*self.said[request.after + 1 :])
        else:
            assert isinstance(request, requests.Create)
            self.server.creates.append(request)
            await peer.send(*self.turn(request, self.again, "r2"))
        answer = await peer.receive()
        if not isinstance(answer, requests.Create | requests.Append):
            return
        self.answers.append(answer)
        if self.append:
            assert self.speaker is not None
            await peer.send(*self.speaker.text("done"), self.speaker.completed())
        else:
            await peer.send(*Speaker(answer, "r3").answer("done"))
        await peer.gone()


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut_after", [1, 3, 5, 6])
async def test_tl_07_a_resumed_call_runs_once(kind: str, shape: Any, cut_after: int) -> None:
    """TL-07: cut before, in and after call_5, and after the end of its turn."""
    script, mail = Server07(append=shape == "append", cut_after=cut_after), Mail()
    if cut_after == 6 and shape == "create":
        # The turn has ended: the next create finds a new connection.
        async def second(peer: Peer) -> None:
            answer = await script.server.create(peer)
            script.answers.append(answer)
            await peer.send(*Speaker(answer, "r3").answer("done"))
            await peer.gone()

        script.server.scripts = (script.first, second)

    async with session_with(script.server, kind=kind) as session:
        result = await Agent(session, tools=[mail.tool], shape=shape).run("go")
        assert result.text == "done"
        assert [turn.outcomes for turn in result.turns] == [(Outcome.COMPLETED,), ()]
    assert mail.sent == ["a: b"]
    assert [outputs(answer) for answer in script.answers] == [[("call_5", "sent 1")]]


BARE = Policy(idempotent=False, backoff=QUICK.backoff)


@pytest.mark.parametrize("kind", LINES)
async def test_tl_07_a_call_that_comes_again_under_its_id_gets_its_first_output(kind: str) -> None:
    """TL-07: a turn that was lost after its call had run is replayed under the same ids."""
    script, mail = Server07(append=False, cut_after=6), Mail()

    script.server.scripts = (script.first_and_cut, script.second)

    async with session_with(script.server, kind=kind, policy=BARE) as session:
        agent = Agent(session, tools=[mail.tool])
        with pytest.raises(IncompleteStream):
            await agent.run("go")
        assert (await agent.run("go")).text == "done"
    assert mail.sent == ["a: b"]
    assert outputs(script.answers[0]) == [("call_5", "sent 1")]


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("cut_after", [5, 6])
async def test_tl_07_an_identical_call_under_a_new_id_is_surfaced_and_not_run(
    kind: str, cut_after: int
) -> None:
    """TL-07: the turn was cut after call_5, or after its output had gone; the model asks again."""
    script = Server07(append=False, cut_after=cut_after, again="call_6")
    mail = Mail()

    first = script.first_and_cut if cut_after == 6 else script.first
    script.server.scripts = (first, script.second)
    runs = 1 if cut_after == 6 else 0

    async with session_with(script.server, kind=kind, policy=BARE) as session:
        agent = Agent(session, tools=[mail.tool])
        with pytest.raises(IncompleteStream):
            await agent.run("go")
        with pytest.raises(RepeatedCall) as caught:
            await agent.run("go")
        assert (caught.value.call.call_id, caught.value.of.call_id) == ("call_6", "call_5")
        assert caught.value.ran == bool(runs)
    assert len(mail.sent) == runs
    assert script.answers == []


async def test_tl_07_a_lost_turn_can_be_sampled_again_and_the_caller_decides_on_repeats() -> None:
    script, mail = Server07(append=False, cut_after=5, again="call_6"), Mail()
    asked: list[tuple[str, bool]] = []

    def approve(call: Call, repeated: bool) -> bool:
        asked.append((call.call_id, repeated))
        return True

    async with session_with(script.server, kind="grpc", policy=BARE) as session:
        agent = Agent(session, tools=[mail.tool], approve=approve, resample=1)
        assert (await agent.run("go")).text == "done"
    assert asked == [("call_6", True)]
    assert mail.sent == ["a: b"]
    assert [len(items_of(create)) for create in script.server.creates] == [1, 1]


class Model:
    """Makes these calls in one turn, then answers; keeps what it is told."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.server = Server(self)
        self.told: dict[str, str] = {}

    async def __call__(self, peer: Peer) -> None:
        speaker = Speaker(await self.server.create(peer), "r1")
        calls = [event for name in self.names for event in speaker.call(name, "{}", f"c_{name}")]
        await peer.send(speaker.created(), *calls, speaker.completed())
        while (answer := await peer.receive()) is not None:
            if isinstance(answer, requests.Create):
                self.told |= dict(outputs(answer))
                await peer.send(*Speaker(answer, "r2").answer("done"))


class Tools:
    """One tool that runs until it is stopped, one that waits behind it, one that is quick."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.ran: list[str] = []

    async def slow(self) -> str:
        self.ran.append("slow")
        self.running.set()
        await asyncio.Event().wait()
        return "never"

    async def behind(self) -> str:
        self.ran.append("behind")
        return "late"

    async def killed(self) -> str:
        self.ran.append("killed")
        raise asyncio.CancelledError

    async def quick(self) -> str:
        self.ran.append("quick")
        return "quick"


@pytest.fixture
def spans() -> Any:
    """Spans of this test, by call id."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider

    def found() -> dict[str, tuple[str, str | None]]:
        return {
            str(span.attributes["gen_ai.tool.call.id"]): (
                str(span.attributes["tieline.tool.outcome"]),
                span.status.description,
            )
            for span in exporter.get_finished_spans()
            if span.attributes is not None
        }

    yield found
    trace._TRACER_PROVIDER = before


async def test_tl_08_denied_not_started_and_interrupted_are_three_things(
    spans: Callable[[], dict[str, tuple[str, str | None]]],
) -> None:
    """TL-08: to the model, in the run and as the status of the span."""
    model, tools = Model("quick", "slow", "behind", "mail"), Tools()

    async def mail() -> str:
        tools.ran.append("mail")
        return "sent"

    async with session_with(model.server, kind="grpc") as session:
        agent = Agent(
            session,
            tools=[tools.quick, tools.slow, tools.behind, Tool.of(mail, side_effect=True)],
            concurrency=1,
            approve=lambda call, repeated: False,
        )
        running = asyncio.create_task(agent.run("go"))
        await tools.running.wait()
        agent.stop_tools()
        result = await running
        assert result.text == "done"
        assert result.turns[0].outcomes == (
            Outcome.COMPLETED,
            Outcome.INTERRUPTED,
            Outcome.NOT_STARTED,
            Outcome.NOT_STARTED,
        )
    assert tools.ran == ["quick", "slow"]
    assert spans()["c_slow"] == ("interrupted_may_have_effects",) * 2
    assert spans()["c_behind"] == ("not_started",) * 2
    assert spans()["c_quick"] == ("completed", None)
    assert len(set(model.told.values())) == 3


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("mail", "denied"), ("killed", "interrupted_may_have_effects"), ("quick", "completed")],
)
async def test_tl_08_each_outcome_has_words_of_its_own(
    name: str, outcome: str, spans: Callable[[], dict[str, tuple[str, str | None]]]
) -> None:
    model, tools = Model(name), Tools()

    async def mail() -> str:
        tools.ran.append("mail")
        return "sent"

    async with session_with(model.server, kind="grpc") as session:
        agent = Agent(
            session,
            tools=[tools.killed, tools.quick, Tool.of(mail, side_effect=True)],
            approve=lambda call, repeated: False,
        )
        result = await agent.run("go")
        assert [each.value for each in result.turns[0].outcomes] == [outcome]
    assert tools.ran == ([] if name == "mail" else [name])
    assert spans()[f"c_{name}"][0] == outcome
    told = model.told[f"c_{name}"]
    assert told == "quick" if name == "quick" else told.startswith(f"Error: {outcome}: ")


async def test_tl_08_a_conversation_is_told_what_became_of_the_calls_of_a_cancelled_run() -> None:
    """The run is given up in the middle; whoever goes on need not guess."""
    model, tools = Model("quick", "slow", "behind"), Tools()

    async with session_with(model.server, kind="grpc") as session:
        conversation = session.conversation()
        agent = Agent(conversation, tools=[tools.quick, tools.slow, tools.behind], concurrency=1)
        running = asyncio.create_task(agent.run("go"))
        await tools.running.wait()
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()
        await (await conversation.create(input="and now?")).response()
    told = {call_id: said.removeprefix("Error: ") for call_id, said in model.told.items()}
    assert {call_id: said.partition(":")[0] for call_id, said in told.items()} == {
        "c_quick": "quick",
        "c_slow": "interrupted_may_have_effects",
        "c_behind": "not_started",
    }


async def test_plain_functions_that_are_stopped_may_have_had_effects() -> None:
    """A thread cannot be stopped: the run does not wait for it."""
    import threading

    model, release = Model("block"), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    started = asyncio.Event()

    def block() -> str:
        loops[0].call_soon_threadsafe(started.set)
        release.wait(20)
        return "late"

    async with session_with(model.server, kind="grpc") as session:
        loops.append(asyncio.get_running_loop())
        agent = Agent(session, tools=[block])
        running = asyncio.create_task(agent.run("go"))
        await started.wait()
        agent.stop_tools()
        result = await running
        release.set()
        assert result.turns[0].outcomes == (Outcome.INTERRUPTED,)
