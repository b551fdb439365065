"""The client's public types, for a type checker: never run."""

from typing import assert_type

from tieline.events import Event
from tieline.responses import Response
from tieline_client import (
    Agent,
    Backoff,
    Call,
    Connection,
    Conversation,
    Lane,
    Options,
    Policy,
    ResponseStream,
    Result,
    Run,
    Session,
    SessionStream,
    Tls,
    Tool,
    Turn,
    connect,
    connect_session,
    connect_session_sync,
    connect_sync,
    sync,
    tool_output,
)


async def asynchronous() -> None:
    tls = Tls(ca="ca.pem")
    async with connect("grpcs://h", api_key="k", tls=tls, options=Options(heartbeat=5)) as line:
        assert_type(line, Connection)
        assert_type(line.lane("a"), Lane)
        stream = await line.create(
            input=[{"role": "user", "content": "hi"}],
            model="m",
            tools=[{"type": "function", "name": "f"}],
            tool_choice={"type": "function", "name": "f"},
            temperature=0.5,
            metadata={"k": "v"},
            append=True,
            timeout_ms=1000,
        )
        assert_type(stream, ResponseStream)
        async for event in stream:
            assert_type(event, Event)
        result = await stream.result()
        assert_type(result, Result)
        assert_type(result.calls, tuple[Call, ...])
        assert_type(await stream.response(), Response)
        await stream.append([tool_output(call, "x") for call in result.calls])
        await stream.steer("other")
        await stream.cancel()
        assert_type(stream.timing, dict[str, int] | None)


async def wrong(line: Connection) -> None:
    await line.create(input=3)  # type: ignore[arg-type]
    await line.create(input="a", temprature=0.5)  # type: ignore[call-arg]
    await line.create(input="a", max_output_tokens="many")  # type: ignore[arg-type]
    await line.create("a", "m")  # type: ignore[call-arg]


def blocking() -> None:
    with connect_sync("grpc://h") as line:
        assert_type(line, sync.Connection)
        stream = line.create(input="a", store=False)
        assert_type(stream, sync.ResponseStream)
        for event in stream:
            assert_type(event, Event)
        assert_type(stream.result(), Result)


async def agents(line: Connection) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    async def fetch(path: str) -> str:
        return path

    agent = Agent(
        line.lane("a"),
        tools=[add, fetch, Tool.of(add)],
        shape="append",
        tool_choice=lambda turn: "required" if turn < 3 else None,
        on_event=lambda event: print(event.type),
        instructions="be brief",
        max_output_tokens=64,
    )
    run = await agent.run("go", previous_response_id="resp_1")
    assert_type(run, Run)
    assert_type(run.turns, tuple[Turn, ...])
    assert_type(run.text, str)
    Agent(line, shape="other")  # type: ignore[arg-type]
    Agent(line, append=True)  # type: ignore[call-arg]


async def sessions() -> None:
    policy = Policy(idempotent=True, backoff=Backoff(max_retries=2))
    async with connect_session("ws://h", api_key="k", policy=policy) as session:
        assert_type(session, Session)
        conversation = session.conversation(lane="a", instructions="be brief")
        assert_type(conversation, Conversation)
        stream = await conversation.create(input="a", store=False)
        assert_type(stream, SessionStream)
        async for event in stream:
            assert_type(event, Event)
        assert_type(stream.cursor, int | None)
        assert_type(await stream.result(), Result)
        marked = Tool.of(print, side_effect=True)
        Agent(session, tools=[marked], approve=lambda call, repeated: not repeated, resample=1)
        Agent(conversation, tools=[marked])
        session.conversation(temprature=0.5)  # type: ignore[call-arg]


def blocking_sessions() -> None:
    with connect_session_sync("ws://h") as session:
        assert_type(session, sync.Session)
        stream = session.conversation().create(input="a")
        assert_type(stream, sync.SessionStream)
        for event in stream:
            assert_type(event, Event)
        assert_type(stream.result(), Result)
