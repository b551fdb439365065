"""The scenarios by the Python client, and by its generated stubs where they are of single calls.

Run as ``python -m tests.interop.python_runner SCENARIOS.json TARGETS.json [SCENARIO]``, as the
runners of the other languages are.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tieline import events
from tieline.v1 import requests_pb2, responses_pb2, service_pb2, service_pb2_grpc
from tieline_client import ApiError, ConnectionLost, connect, tool_output
from tieline_client.transports import Options

LIMIT: Final = 180.0
"""Seconds after which a scenario has failed: a busy machine takes its time."""

Targets = Mapping[str, str]
Scenario = Mapping[str, Any]


def url(address: str) -> str:
    """The address as the client takes it."""
    return f"grpc://{address}"


def equal(found: object, expected: object) -> None:
    """Raises where a scenario has found something else."""
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


async def said(connection: Any, text: str, **settings: Any) -> str:
    """The text of one turn."""
    found: str = (await (await connection.create(input=text, **settings)).result()).text
    return found


async def turn(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["address"])) as connection:
        result = await (await connection.create(input=scenario["input"])).result()
    equal((result.text, result.response.status), (scenario["text"], "completed"))
    assert result.usage is not None
    assert result.usage.output_tokens > 0


async def append(scenario: Scenario, targets: Targets) -> None:
    told = dict(scenario["tool"])
    output = told.pop("output")
    async with connect(url(targets["address"])) as connection:
        stream = await connection.create(
            scenario["input"], tools=[{"type": "function", **told}], append=True
        )
        held = await stream.result()
        (call,) = held.calls
        equal(json.loads(call.arguments), scenario["arguments"])
        await stream.append([tool_output(call, output)])
        ended = await stream.result()
    equal((ended.text, ended.response.id), (scenario["text"], held.response.id))


async def chain(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["address"])) as connection:
        first = await (await connection.create(input=scenario["input"])).result()
        link = first.response.id
        then = await said(connection, scenario["then"], previous_response_id=link)
    equal(then, scenario["text"])


async def lanes(scenario: Scenario, targets: Targets) -> None:
    ended: list[str] = []

    async def one(name: str, text: str) -> None:
        equal(await said(connection.lane(name), text), scenario["texts"][name])
        ended.append(name)

    async with connect(url(targets["address"])) as connection, asyncio.TaskGroup() as group:
        for name, text in scenario["lanes"].items():
            group.create_task(one(name, text))
    equal(ended[0], scenario["first"])


async def cancel(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["address"])) as connection:
        stream = await connection.create(input=scenario["input"])
        async for event in stream:
            if isinstance(event, events.OutputTextDelta):
                await stream.cancel()
        equal((await stream.response()).status, "cancelled")
        equal(await said(connection, scenario["then"]), scenario["text"])


async def error(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["address"])) as connection:
        for refused in scenario["refused"]:
            try:
                await said(connection, refused["input"], model=refused.get("model"))
            except ApiError as found:
                equal(found.code, refused["code"])
                equal(found.param, refused.get("param", found.param))
            else:
                raise AssertionError(f"{refused['code']} was not told")
        equal(await said(connection, scenario["then"]), scenario["text"])


async def resume(scenario: Scenario, targets: Targets) -> None:
    numbers: list[int] = []
    text = ""

    async def read(stream: Any) -> None:
        nonlocal text
        async for event in stream:
            numbers.append(event.sequence_number)
            if isinstance(event, events.OutputTextDelta):
                text += event.delta

    async with connect(url(targets["cut"])) as connection:
        stream = await connection.create(input=scenario["input"], resumable=True)
        try:
            await read(stream)
        except ConnectionLost:
            pass
        else:
            raise AssertionError("the connection was not cut")
    assert stream.response_id is not None
    assert 0 < len(text) < len(scenario["text"])
    async with connect(url(targets["address"])) as connection:
        await read(await connection.resume(stream.response_id, after=numbers[-1]))
    equal(text, scenario["text"])
    equal(numbers, list(range(len(numbers))))


async def key(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["keyed"]), api_key=targets["key"]) as connection:
        equal(await said(connection, scenario["input"]), scenario["text"])


async def wrong_key(scenario: Scenario, targets: Targets) -> None:
    try:
        async with connect(url(targets["keyed"]), api_key=scenario["key"]) as connection:
            await said(connection, "hello")
    except ApiError as found:
        status = grpc.StatusCode[scenario["status"]].value[0]
        equal((found.code, found.grpc), (scenario["code"], status))
    else:
        raise AssertionError("a wrong key was taken")


async def health(scenario: Scenario, targets: Targets) -> None:
    async with grpc.aio.insecure_channel(targets["address"]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in scenario["services"]:
            request = health_pb2.HealthCheckRequest(service=service)
            equal((await stub.Check(request)).status, health_pb2.HealthCheckResponse.SERVING)
            watch = stub.Watch(request)
            equal((await watch.read()).status, health_pb2.HealthCheckResponse.SERVING)
            watch.cancel()
        try:
            await stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
        except grpc.aio.AioRpcError as refused:
            equal(refused.code(), grpc.StatusCode.NOT_FOUND)
        else:
            raise AssertionError("an unknown service was known")


async def reflection(scenario: Scenario, targets: Targets) -> None:
    async with grpc.aio.insecure_channel(targets["address"]) as channel:
        for revision in ("v1", "v1alpha"):
            call: Any = channel.stream_stream(
                f"/grpc.reflection.{revision}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            await call.done_writing()
            listed = {each.name for each in (await call.read()).list_services_response.service}
            assert listed >= set(scenario["services"]), (revision, listed)


async def deadline(scenario: Scenario, targets: Targets) -> None:
    milliseconds = scenario["milliseconds"]
    async with grpc.aio.insecure_channel(targets["address"]) as channel:
        create = requests_pb2.ResponseCreate(input_text=scenario["input"])
        call = service_pb2_grpc.ResponsesServiceStub(channel).Create
        try:
            await call(
                service_pb2.CreateRequest(response_create=create), timeout=milliseconds / 1000
            )
        except grpc.aio.AioRpcError as late:
            equal(late.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        else:
            raise AssertionError("the deadline of the call was not kept")
    async with connect(url(targets["address"])) as connection:
        stream = await connection.create(input=scenario["input"], timeout_ms=milliseconds)
        details = (await stream.response()).incomplete_details
        equal(details and details.reason, scenario["reason"])
        equal(await said(connection, scenario["then"]), scenario["text"])


async def keepalive(scenario: Scenario, targets: Targets) -> None:
    options = Options(keepalive=10.0)
    async with connect(url(targets["address"]), options=options) as connection:
        await asyncio.sleep(scenario["seconds"])
        equal(await said(connection, scenario["input"]), scenario["text"])


async def large(scenario: Scenario, targets: Targets) -> None:
    options = Options(max_receive_bytes=scenario["limit"])
    async with connect(url(targets["address"]), options=options) as connection:
        equal(len(await said(connection, scenario["input"])), scenario["bytes"])
    create = requests_pb2.ResponseCreate(input_text=scenario["input"])
    limit = ("grpc.max_receive_message_length", scenario["limit"])
    async with grpc.aio.insecure_channel(targets["address"], options=[limit]) as channel:
        call = service_pb2_grpc.ResponsesServiceStub(channel).Create
        whole = await call(
            service_pb2.CreateRequest(response_create=create, max_receive_bytes=scenario["limit"])
        )
        equal(len(text_of(whole.response)), scenario["bytes"])
        cut = await call(service_pb2.CreateRequest(response_create=create))
        equal((cut.output_omitted, text_of(cut.response)), (True, ""))


def text_of(response: responses_pb2.Response) -> str:
    """The text of the messages of a response."""
    messages = [item.message.parts.parts for item in response.output if item.HasField("message")]
    return "".join(part.text.text for parts in messages for part in parts)


async def unicode(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["address"])) as connection:
        stream = await connection.create(input=scenario["input"])
        deltas = [each.delta async for each in stream if isinstance(each, events.OutputTextDelta)]
        equal(("".join(deltas), stream.text), (scenario["text"], scenario["text"]))


async def newer(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["newer"])) as connection:
        equal(await said(connection, scenario["input"]), scenario["text"])


async def goaway(scenario: Scenario, targets: Targets) -> None:
    async with connect(url(targets["drains"])) as connection:
        equal(await said(connection, scenario["input"]), scenario["text"])
        assert connection.going_away is not None
        try:
            await said(connection, "hello")
        except ApiError as refused:
            equal(refused.code, scenario["code"])
        except ConnectionLost:
            pass
        else:
            raise AssertionError("a draining server took a create")


RUNS: Final[Mapping[str, Callable[[Scenario, Targets], Awaitable[None]]]] = {
    each.__name__: each
    for each in (
        turn, append, chain, lanes, cancel, error, resume, key, wrong_key, health, reflection,
        deadline, keepalive, large, unicode, newer, goaway,
    )
}  # fmt: skip


async def run(scenario: Scenario, targets: Targets) -> None:
    """Runs one scenario and prints its line."""
    name = scenario["name"]
    line: dict[str, Any] = {"scenario": name, "ok": True}
    try:
        async with asyncio.timeout(LIMIT):
            await RUNS[name](scenario, targets)
    except KeyError:
        line |= {"ok": None, "why": "the runner does not know it"}
    except Exception as found:
        line |= {"ok": False, "why": f"{type(found).__name__}: {found}"[:400]}
    print(json.dumps(line), flush=True)


async def main(scenarios: Sequence[Scenario], targets: Targets) -> None:
    """Runs the scenarios side by side."""
    await asyncio.gather(*(run(scenario, targets) for scenario in scenarios))


if __name__ == "__main__":
    listed, given, *only = sys.argv[1:]
    read = json.loads(Path(listed).read_text())
    chosen = [
        {**each, "tool": read["tool"]}
        for each in read["scenarios"]
        if not only or each["name"] in only
    ]
    asyncio.run(main(chosen, json.loads(Path(given).read_text())))
