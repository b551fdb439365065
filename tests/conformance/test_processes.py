"""Responses that run with nobody connected, and the processes that come and go around them.

Real servers with one database: one after the other, and two at once that cannot ask each other.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession

from tests.support.server_process import ServerProcess, serving, write_script

Json = dict[str, Any]

RULES = [
    {
        "id": "wait",
        "when": {"user_contains": "wait"},
        "emit": [{"type": "message", "text": "Begun."}, {"type": "stall", "seconds": 3600}],
    },
    {"id": "answer", "emit": {"type": "message", "text": "So be it, and so on."}},
]
PATIENCE = 60.0
WAITING = frozenset({"queued", "in_progress"})


class Caller:
    """Asks one server over HTTP."""

    def __init__(self, server: ServerProcess, session: ClientSession) -> None:
        self._base = f"http://{server.http}/v1/responses"
        self._session = session

    async def create(self, status: int = 200, key: str | None = None, **members: Any) -> Json:
        """A create, and its answer."""
        headers = {} if key is None else {"Idempotency-Key": key}
        async with self._session.post(self._base, json=members, headers=headers) as answer:
            made: Json = await answer.json()
            assert answer.status == status, made
            return made

    async def get(self, response_id: str) -> Json:
        """How a response stands."""
        async with self._session.get(f"{self._base}/{response_id}") as answer:
            found: Json = await answer.json()
            assert answer.status == 200, found
            return found

    async def until(self, response_id: str, *, said: int = 0) -> Json:
        """The response once it has ended, or has used so many output tokens."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self.get(response_id)
                used = (found["usage"] or {}).get("output_tokens", 0)
                if found["status"] not in WAITING or 0 < said <= used:
                    return found
                await asyncio.sleep(0.02)

    async def cancel(self, response_id: str) -> Json:
        """Ends a response."""
        async with self._session.post(f"{self._base}/{response_id}/cancel", json={}) as answer:
            cut: Json = await answer.json()
            assert answer.status == 200, cut
            return cut

    async def events(self, response_id: str, after: int | None = None) -> list[Json]:
        """A response's events behind one."""
        query = {"stream": "true", **({} if after is None else {"starting_after": str(after)})}
        async with self._session.get(f"{self._base}/{response_id}", params=query) as answer:
            assert answer.status == 200, await answer.text()
            *frames, last = (await answer.text()).rstrip("\n").split("\n\n")
        assert last == "data: [DONE]"
        shown = (frame for frame in frames if not frame.startswith(":"))
        return [msgspec.json.decode(frame.partition("\ndata: ")[2]) for frame in shown]


def flags(folder: Path) -> tuple[str, ...]:
    """A server with a database."""
    script = write_script(folder, rules=RULES)
    return ("--script", script, "--store", f"sqlite:///{folder}/tieline.db")


def test_rc_09_the_events_of_a_stored_response_outlive_its_process(tmp_path: Path) -> None:
    """RC-09: read on after completion, until retention ends; and its key is still its own."""

    async def first(server: ServerProcess) -> tuple[Json, list[Json], Json]:
        async with ClientSession() as session:
            caller = Caller(server, session)
            begun = await caller.create(input="hi", background=True)
            whole = await caller.until(begun["id"])
            keyed = await caller.create(input="hi", key="k")
            return whole, await caller.events(begun["id"]), keyed

    async def second(server: ServerProcess, whole: Json, events: list[Json], keyed: Json) -> None:
        async with ClientSession() as session:
            caller = Caller(server, session)
            made = whole["id"]
            assert await caller.get(made) == whole
            assert await caller.events(made) == events
            assert await caller.events(made, 3) == events[4:]
            assert await caller.events(made, len(events) + 5) == events[-1:]
            assert await caller.create(input="hi", key="k") == keyed
            conflict = await caller.create(409, input="ho", key="k")
            assert conflict["error"]["code"] == "idempotency_conflict"
            again = await caller.create(input="and?", previous_response_id=made)
            assert again["status"] == "completed"

    with serving(*flags(tmp_path)) as server:
        seen = asyncio.run(first(server))
    with serving(*flags(tmp_path)) as server:
        asyncio.run(second(server, *seen))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_background_response_whose_process_ends_is_no_zombie(
    end: signal.Signals, tmp_path: Path
) -> None:
    """Killed: failed, with what it had used. Asked to end: incomplete, after its time to drain."""

    drain = ("--drain-timeout", "0.5")
    with serving(*flags(tmp_path), *drain) as one, serving(*flags(tmp_path)) as two:
        async with ClientSession() as session:
            made = (await Caller(one, session).create(input="wait", background=True))["id"]
            caller = Caller(two, session)
            # Seen from there, it has been written down.
            await caller.until(made, said=2)
            one.signal(end)
            found = await caller.until(made)
            assert found["usage"]["output_tokens"] >= 2
            assert await caller.get(made) == found
            assert await caller.cancel(made) == found
            events = await caller.events(made)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[-1]["response"] == found
            if end is signal.SIGKILL:
                assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
            else:
                assert (found["status"], found["error"]) == ("incomplete", None)


async def test_processes_that_cannot_ask_each_other_meet_in_the_store(tmp_path: Path) -> None:
    """How it stands, its events, its end: by a server in which it does not run."""

    with serving(*flags(tmp_path)) as one, serving(*flags(tmp_path)) as two:
        async with ClientSession() as session:
            here, there = Caller(one, session), Caller(two, session)
            begun = await here.create(input="wait", background=True)
            made = begun["id"]
            standing = await there.until(made, said=2)
            assert standing["status"] == "in_progress"
            reading = asyncio.create_task(there.events(made))
            attached = asyncio.create_task(there.create(input="wait", background=True, key="k"))
            cut = await there.cancel(made)
            assert cut["status"] == "cancelled"
            assert cut["usage"]["output_tokens"] >= 2
            assert await here.get(made) == await there.get(made) == cut
            events = await reading
            assert events == await here.events(made)
            assert events[-1]["response"] == cut
            other = (await attached)["id"]
            assert (await here.create(input="wait", background=True, key="k"))["id"] == other
            assert (await here.cancel(other))["status"] == "cancelled"
