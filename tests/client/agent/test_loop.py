"""The agent loop, in both shapes of a turn, against a scripted server."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.client.aio.connections import connected
from tests.client.servicer import Peer, Script, Speaker
from tieline import events, requests
from tieline.errors import ServerError
from tieline_client.agent import Agent, Run, Tool, Turn, TurnLimitReached
from tieline_client.aio import Call, Connection

Calls = list[tuple[str, str, str]]
"""call_id, name, arguments."""

SHAPES = ("create", "append")


def outputs_of(request: requests.Create | requests.Append) -> list[tuple[str, str]]:
    """call_id and output of every item of a request's input."""
    assert isinstance(request.input, Raw)
    given: list[dict[str, Any]] = msgspec.json.decode(request.input)
    assert {item["type"] for item in given} == {"function_call_output"}
    return [(item["call_id"], item["output"]) for item in given]


class Model:
    """A server that makes these calls, turn after turn, then answers; keeps what it is sent."""

    def __init__(self, *turns: Calls, answer: str = "done") -> None:
        self.turns = turns
        self.answer = answer
        self.creates: list[requests.Create] = []
        self.outputs: list[list[tuple[str, str]]] = []

    async def __call__(self, peer: Peer) -> None:
        request: requests.Create | requests.Append | None = None
        speaker = None
        for number, calls in enumerate((*self.turns, []), 1):
            request = await self._request(peer)
            if isinstance(request, requests.Create):
                self.creates.append(request)
                speaker = Speaker(request, f"r{number}")
                await peer.send(speaker.created())
            assert speaker is not None
            if number > 1:
                self.outputs.append(outputs_of(request))
            if not calls:
                await peer.send(*speaker.text(self.answer), speaker.completed())
                break
            for call_id, name, arguments in calls:
                await peer.send(*speaker.call(name, arguments, call_id))
            held = bool(speaker.create.append)  # type: ignore[union-attr]
            await peer.send(speaker.done() if held else speaker.completed())
        await peer.gone()

    async def _request(self, peer: Peer) -> requests.Create | requests.Append:
        while True:
            request = await peer.receive()
            if isinstance(request, requests.Create | requests.Append):
                return request
            assert request is not None


async def drive(script: Script, agent: Callable[[Connection], Agent]) -> Run:
    """Runs an agent to its answer."""
    async with connected(script) as connection:
        return await agent(connection).run("go")


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.mark.parametrize("shape", SHAPES)
async def test_tools_are_run_until_there_is_an_answer(shape: Any) -> None:
    model = Model([("c1", "add", '{"a":1,"b":2}')], [("c2", "add", '{"a":3,"b":4}')], answer="ten")
    result = await drive(
        model, lambda connection: Agent(connection, tools=[add], shape=shape, model="m")
    )
    assert result.text == "ten"
    assert model.outputs == [[("c1", "3")], [("c2", "7")]]
    assert [turn.outputs for turn in result.turns] == [("3",), ("7",), ()]
    assert [[call.call_id for call in turn.calls] for turn in result.turns] == [["c1"], ["c2"], []]
    expected = 1 if shape == "append" else 3
    assert len(model.creates) == expected
    if shape == "create":
        ids = [create.previous_response_id for create in model.creates]
        assert ids == [None, "r1", "r2"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("concurrency", [8, 1])
async def test_tl_06_each_output_goes_under_its_own_call_and_one_failure_costs_no_other(
    shape: Any, concurrency: int
) -> None:
    """TL-06: c1 is the slowest and c2 raises; outputs are in call order, all three there."""
    started: list[str] = []
    finished: list[str] = []
    release = asyncio.Event()

    async def slow() -> str:
        started.append("slow")
        if concurrency > 1:
            # Ends only after the other two have: completion order is not call order.
            await release.wait()
        finished.append("slow")
        return "one"

    async def broken() -> str:
        started.append("broken")
        finished.append("broken")
        raise ValueError("no such thing")

    async def quick() -> str:
        started.append("quick")
        finished.append("quick")
        release.set()
        return "three"

    calls = [("c1", "slow", "{}"), ("c2", "broken", "{}"), ("c3", "quick", "{}")]
    model = Model(calls)
    tools = [slow, broken, quick]
    result = await drive(
        model,
        lambda connection: Agent(connection, tools=tools, shape=shape, concurrency=concurrency),
    )
    assert model.outputs == [
        [
            ("c1", "one"),
            ("c2", "Error: broken raised ValueError: no such thing"),
            ("c3", "three"),
        ]
    ]
    assert started == ["slow", "broken", "quick"]
    expected = ["broken", "quick", "slow"] if concurrency > 1 else started
    assert finished == expected
    assert result.text == "done"


async def test_plain_functions_run_side_by_side_in_threads() -> None:
    import threading

    barrier = threading.Barrier(3, timeout=10)

    def meet() -> str:
        barrier.wait()
        return "met"

    model = Model([(f"c{number}", "meet", "{}") for number in range(3)])
    await drive(model, lambda connection: Agent(connection, tools=[meet]))
    assert model.outputs == [[("c0", "met"), ("c1", "met"), ("c2", "met")]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("c1", "add", '{"a":"x","b":1}'), "`$.a`"),
        (("c1", "add", "{"), "do not match"),
        (("c1", "add", '{"a":1}'), "`b`"),
        (("c1", "subtract", "{}"), "no tool 'subtract'"),
    ],
)
async def test_a_call_that_cannot_be_run_is_told_to_the_model(
    call: tuple[str, str, str], says: str
) -> None:
    model = Model([call])
    assert (await drive(model, lambda connection: Agent(connection, tools=[add]))).text == "done"
    ((_, output),) = model.outputs[0]
    assert output.startswith("Error: ")
    assert says in output


async def test_the_tools_are_offered_in_the_same_bytes_every_turn() -> None:
    """Equal bytes cost the server nothing (docs/protocol.md#what-is-remembered)."""
    model = Model([("c1", "add", '{"a":1,"b":2}')], [("c2", "add", '{"a":1,"b":2}')])
    await drive(
        model,
        lambda connection: Agent(
            connection, tools=[add], instructions="be brief", max_output_tokens=50
        ),
    )
    first, *others = model.creates
    (offered,) = msgspec.json.decode(first.tools)
    assert (offered["name"], offered["description"]) == ("add", "Adds two numbers.")
    for create in others:
        assert create.tools == first.tools
        assert create.instructions == Raw(b'"be brief"')
        assert create.max_output_tokens == 50


async def test_tool_choice_can_be_a_function_of_the_turn() -> None:
    model = Model([("c1", "add", '{"a":1,"b":2}')], [("c2", "add", '{"a":1,"b":2}')])
    await drive(
        model,
        lambda connection: Agent(
            connection, tools=[add], tool_choice=lambda turn: "required" if turn < 3 else "none"
        ),
    )
    choices = [bytes(create.tool_choice) for create in model.creates]
    assert choices == [b'"required"', b'"required"', b'"none"']


@pytest.mark.parametrize(("second", "sent"), [("none", b'"none"'), (None, b'"auto"')])
async def test_in_append_shape_another_tool_choice_goes_with_the_append(
    second: str | None, sent: bytes
) -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.call("add", '{"a":1,"b":2}', "c1"))
        await peer.send(speaker.done())
        append = await peer.read(requests.Append)
        assert bytes(append.tool_choice) == sent
        assert outputs_of(append) == [("c1", "3")]
        await peer.send(*speaker.text("three"), speaker.completed())
        await peer.gone()

    choice = {1: "required", 2: second}
    result = await drive(
        script,
        lambda connection: Agent(connection, tools=[add], shape="append", tool_choice=choice.get),
    )
    assert result.text == "three"
    assert [turn.response.id for turn in result.turns] == ["r1", "r1"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_loop_ends_at_max_turns_with_what_was_done(shape: Any) -> None:
    model = Model(*[[(f"c{number}", "add", '{"a":1,"b":2}')] for number in range(9)])
    with pytest.raises(TurnLimitReached, match="3 turns") as caught:
        await drive(
            model, lambda connection: Agent(connection, tools=[add], shape=shape, max_turns=3)
        )
    assert len(caught.value.run.turns) == 3
    assert len(model.outputs) == 2


async def test_a_run_continues_an_earlier_conversation() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.create()
        assert create.previous_response_id == "resp_1"
        await peer.send(*Speaker(create).answer("again"))
        await peer.gone()

    async with connected(script) as connection:
        result = await Agent(connection).run("more", previous_response_id="resp_1")
        assert (result.text, result.response.id) == ("again", "r1")


async def test_an_agent_can_work_on_a_lane() -> None:
    model = Model([("c1", "add", '{"a":1,"b":2}')])
    await drive(model, lambda connection: Agent(connection.lane("side"), tools=[add]))
    assert [create.stream_id for create in model.creates] == ["side", "side"]


async def test_a_response_that_was_cut_ends_the_run() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.text("par"), speaker.incomplete())
        await peer.gone()

    result = await drive(script, lambda connection: Agent(connection, tools=[add]))
    assert (result.text, result.response.status) == ("par", "incomplete")


async def test_a_failed_turn_is_raised() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), speaker.failed("server_error", "It broke."))
        await peer.gone()

    with pytest.raises(ServerError, match="It broke"):
        await drive(script, lambda connection: Agent(connection))


async def test_hooks_see_every_event_output_and_turn_and_may_be_asynchronous() -> None:
    seen: list[str] = []

    async def on_event(event: events.Event) -> None:
        seen.append(event.type)

    def on_output(call: Call, output: str) -> None:
        seen.append(f"{call.call_id}={output}")

    def on_turn(turn: Turn) -> None:
        seen.append(f"turn {turn.number} {turn.outputs}")

    model = Model([("c1", "add", '{"a":1,"b":2}')])
    await drive(
        model,
        lambda connection: Agent(
            connection, tools=[add], on_event=on_event, on_output=on_output, on_turn=on_turn
        ),
    )
    assert [entry for entry in seen if not entry.startswith("response.")] == [
        "c1=3",
        "turn 1 ('3',)",
        "turn 2 ()",
    ]
    assert seen.count("response.completed") == 2


async def test_a_hook_that_raises_ends_the_run_and_its_turn() -> None:
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created())
        await peer.read(requests.Cancel)
        cancelled.set()
        await peer.send(speaker.incomplete("cancelled"))
        await peer.gone()

    def on_event(event: events.Event) -> None:
        raise RuntimeError("stop here")

    async with connected(script) as connection:
        with pytest.raises(RuntimeError, match="stop here"):
            await Agent(connection, on_event=on_event).run("go")
        await cancelled.wait()


async def test_a_run_that_is_cancelled_stops_its_tools_and_its_turn() -> None:
    running, stopped = asyncio.Event(), asyncio.Event()

    async def endless() -> str:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with connected(Model([("c1", "endless", "{}")])) as connection:
        work = Agent(connection, tools=[endless], shape="append").run("go")
        task = asyncio.create_task(work)
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stopped.is_set()


async def test_two_tools_of_one_name_and_bounds_below_one_are_refused() -> None:
    async with connected(Model()) as connection:
        with pytest.raises(ValueError, match="same name"):
            Agent(connection, tools=[add, Tool.of(add)])
        with pytest.raises(ValueError, match="at least 1"):
            Agent(connection, max_turns=0)
        with pytest.raises(ValueError, match="at least 1"):
            Agent(connection, concurrency=0)


async def test_the_time_of_each_turn_is_split() -> None:
    phases = itertools.chain(
        [{"overhead": 1000, "prefill": 2000, "decode": 3000, "render": 500}],
        [{"overhead": 1500, "prefill": 2000, "decode": 9000, "render": 500}],
    )

    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        timing = events.Timing(response_id="r1", phases=next(phases))
        await peer.send(speaker.created(), *speaker.call("add", '{"a":1,"b":2}', "c1"))
        await peer.send(timing, speaker.done())
        await peer.read(requests.Append)
        timing = events.Timing(response_id="r1", phases=next(phases))
        await peer.send(*speaker.text("x"), timing, speaker.completed())
        await peer.gone()

    result = await drive(script, lambda connection: Agent(connection, tools=[add], shape="append"))
    split = [(turn.timing.service, turn.timing.engine) for turn in result.turns]
    assert split == [(0.001, 0.0045), (0.0005, 0.006)]
    assert result.turns[0].timing.client > 0
    assert result.turns[1].timing.client == 0
    assert all(turn.timing.wall > 0 for turn in result.turns)
    assert result.timing_table().splitlines()[0].split() == [
        "turn",
        "service",
        "engine",
        "client",
        "wall",
    ]
