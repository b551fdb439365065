"""What is stored: it outlives the process, stays within its bounds, and asks for each key anew."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.support.process_state import ProcessState
from tests.support.server_process import ServerProcess, serving, write_script
from tieline.errors import ApiError
from tieline_client import Connection, connect
from tieline_client.errors import ConnectionLost

SCHEMES = ("grpc", "ws", "http")
CONTEXT = {"id": "context", "when": {"user_contains": "context?"}}
RULES = [
    {**CONTEXT, "emit": {"type": "message", "text": "{context}"}},
    {"id": "answer", "emit": {"type": "message", "text": "heard: {user}"}},
]


def url(server: ServerProcess, scheme: str) -> str:
    return f"{scheme}://{server.address if scheme == 'grpc' else server.http}"


async def turn(line: Connection, words: str, **members: Any) -> str:
    """One turn; the id of its response."""
    stream = await line.create(input=words, **members)
    return (await stream.response()).id


@pytest.mark.parametrize("scheme", SCHEMES)
def test_st_05_after_a_restart_a_chain_has_every_fact_once_and_in_order(
    scheme: str, tmp_path: Path
) -> None:
    """ST-05: five turns, then the process is another one."""

    async def first(server: ServerProcess) -> str:
        last: str | None = None
        async with connect(url(server, scheme)) as line:
            for number in range(1, 6):
                last = await turn(line, f"fact {number}.", store=True, previous_response_id=last)
        assert last is not None
        return last

    async def second(server: ServerProcess, last: str) -> str:
        async with connect(url(server, scheme)) as line:
            again = await line.create(input="context?", previous_response_id=last)
            return (await again.result()).text

    store = ("--store", f"sqlite:///{tmp_path}/tieline.db")
    flags = ("--script", write_script(tmp_path, rules=RULES), *store)
    with serving(*flags) as server:
        last = asyncio.run(first(server))
    with serving(*flags) as server:
        context = asyncio.run(second(server, last))
    facts = [f"fact {number}." for number in range(1, 6)]
    said = [words for fact in facts for words in (f'"{fact}"', f"heard: {fact}")]
    assert [context.count(words) for words in said] == [1] * 10
    places = [context.index(words) for words in said]
    assert places == sorted(places)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_sr_02_a_bounded_store_stays_as_large_as_its_bound(
    store: str, tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """SR-02: 20,000 small responses under --soak; RSS is flat once the bound is reached."""
    count = repeats(20_000)
    bound = count // 20

    address = "memory" if store == "memory" else f"sqlite:///{tmp_path}/tieline.db"
    flags = ("--script", write_script(tmp_path, rules=RULES), "--log-level", "warning")
    with serving(*flags, "--store", address, "--store-max-responses", str(bound)) as server:
        first = chain = None
        sizes: list[int] = []
        async with connect(url(server, "ws")) as line:
            for number in range(count):
                made = await turn(line, f"n {number}", store=True, previous_response_id=chain)
                first = first or made
                # One chain is gone on with all the time; everything else is never asked for.
                chain = made if number % 100 == 0 or chain is None else chain
                if number in (count // 2, count - 1):
                    sizes.append(ProcessState(server.process.pid).memory)
            again = await line.create(input="context?", previous_response_id=chain)
            assert "n 0" in (await again.result()).text
            with pytest.raises(ApiError) as gone:
                await turn(line, "more", previous_response_id=first)
            assert gone.value.code == "previous_response_not_found"
        where = f"http://{server.http}/v1/responses/{first}"
        async with ClientSession() as session, session.get(where) as answer:
            assert answer.status == 404
        assert sizes[1] - sizes[0] < 6 * 1024 * 1024


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_sr_02_event_logs_go_with_their_responses_and_what_runs_stays(
    store: str, tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """SR-02: 20,000 responses under --soak, 200 of them in the background."""
    count = repeats(20_000)
    bound = count // 20
    slow = {"when": {"user_contains": "slowly"}, "pace": {"tokens_per_second": 0.2}}
    rules = [{"id": "slow", **slow, "emit": {"type": "message", "text": "it goes on " * 50}}]

    address = "memory" if store == "memory" else f"sqlite:///{tmp_path}/tieline.db"
    flags = ("--script", write_script(tmp_path, rules=rules + RULES), "--resume-window", "1")
    with serving(*flags, "--store", address, "--store-max-responses", str(bound)) as server:
        state = ProcessState(server.process.pid)
        where = f"http://{server.http}/v1/responses"
        sizes: list[int] = []
        begun: list[str] = []
        async with connect(url(server, "ws")) as line, ClientSession() as session:
            runs = await background(session, where, "slowly")
            for number in range(count):
                if number % 100 == 0:
                    begun.append(await background(session, where, f"n {number}"))
                else:
                    await turn(line, f"n {number}", store=True)
                if number in (count // 2, count - 1):
                    sizes.append(state.memory)
            # What has just ended is in memory for a second more, whatever the store keeps.
            await asyncio.sleep(1.5)
            found = [await status(session, f"{where}/{each}") for each in begun]
            events = [await status(session, f"{where}/{each}?stream=true") for each in begun]
            kept = found.count(200)
            assert 0 < kept <= bound // 100 + 1
            assert found == events == [404] * (len(begun) - kept) + [200] * kept
            async with session.get(f"{where}/{runs}") as answer:
                assert (await answer.json())["status"] == "in_progress"
            async with session.post(f"{where}/{runs}/cancel", json={}) as answer:
                assert (await answer.json())["status"] == "cancelled"
        growth = sizes[1] - sizes[0]
        print(f"{store}: {growth / 1024:.0f} KiB more after the second half of {count} responses")
        assert growth < 6 * 1024 * 1024


async def background(session: ClientSession, where: str, words: str) -> str:
    """Begins a response; its id."""
    body = {"model": "scripted", "input": words, "background": True}
    async with session.post(where, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["id"])


async def status(session: ClientSession, where: str) -> int:
    """How the server answers, once it has said everything."""
    async with session.get(where) as answer:
        await answer.read()
        return answer.status


async def test_sr_07_background_is_refused_where_it_could_not_be_read_again(tmp_path: Path) -> None:
    """SR-07: unstored it would be a zombie id, and on a line somebody is always connected."""

    with serving("--script", write_script(tmp_path, rules=RULES)) as server:
        for store in (True, False):
            async with ClientSession() as session:
                body = {"model": "scripted", "input": "x", "background": True, "store": store}
                where = f"http://{server.http}/v1/responses"
                if not store:
                    async with session.post(where, json=body) as answer:
                        error = (await answer.json())["error"]
                        assert (answer.status, error["code"]) == (400, "invalid_value")
                        assert error["param"] == "background"
                async with session.ws_connect(where) as socket:
                    await socket.send_json({"type": "response.create", **body})
                    event = await socket.receive_json()
                    assert (event["type"], event["status"]) == ("error", 400)
                    assert event["error"]["param"] == "background"


def keys(path: Path, **models: list[str]) -> None:
    """A file of keys, each named like its owner, replaced as a whole."""
    rows = [
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\n'
        f'owner = "{name}"\nmodels = {list(allowed)}'
        for name, allowed in models.items()
    ]
    written = path.with_suffix(".new")
    written.write_text("\n".join(rows))
    written.rename(path)


async def turns_for_ever(line: Connection, words: str, **members: Any) -> None:
    """Until one is refused: the file of keys is read again within a second."""
    async with asyncio.timeout(30):
        while True:
            await turn(line, words, **members)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_au_02_a_key_is_asked_at_each_create_and_not_once_a_connection(
    scheme: str, tmp_path: Path
) -> None:
    """AU-02: its models, and that it still exists. Budgets come with quotas."""
    path = tmp_path / "keys.toml"
    keys(path, ann=["small"], bob=["small", "big"])

    script = tmp_path / "script"
    script.mkdir()
    flags = ("--script", write_script(script, models=["small", "big"], rules=RULES))
    with serving(*flags, "--api-keys", str(path)) as server:
        async with connect(url(server, scheme), api_key="ann") as line:
            await turn(line, "one", model="small", store=False)
            with pytest.raises(ApiError) as refused:
                await turn(line, "two", model="big", store=False)
            assert (refused.value.status, refused.value.code) == (403, "model_not_allowed")
            await turn(line, "three", model="small", store=False)
            keys(path, bob=["small", "big"])
            with pytest.raises(ApiError) as refused:
                await turns_for_ever(line, "four", model="small", store=False)
            assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
            if scheme != "http":
                # The line is over with it: 1008 on WebSocket, UNAUTHENTICATED on gRPC.
                with pytest.raises((ConnectionLost, ApiError)):
                    await turns_for_ever(line, "five", model="small", store=False)
                assert not line.alive
        async with connect(url(server, scheme), api_key="bob") as line:
            await turn(line, "five", model="big", store=False)
