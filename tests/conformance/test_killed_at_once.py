"""A worker is killed after it has taken a create and before the first token of the answer.

The response that was acknowledged is there by its id, as failed, and cost nothing. Whoever asks
again with the same key gets an answer, at the worker that lives; it is sampled once, however
often it is asked for.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance import generated
from tests.conformance.placed import events, placed
from tests.support.process_state import until
from tests.support.server_process import write_script
from tests.support.several import Several, alive, several

Json = dict[str, Any]

RULES: Final = [
    {"id": "hi", "when": {"user_contains": "hi"}, "emit": {"type": "message", "text": "hi"}},
    {
        "id": "slow",
        "emit": {"type": "message", "text": "well then"},
        "pace": {"ttft_ms": 1_500},
    },
]

CREATE: Final = {
    "type": "response.create",
    "model": "scripted",
    "input": "wait",
    "store": True,
    "idempotency_key": "once",
}

PATIENCE: Final = 60.0


async def _cut(server: Several, kind: str) -> tuple[str, str]:
    """A create whose worker is killed as soon as it runs: its response, and who still lives."""
    here, there = sorted(server.workers)
    killed = server.workers[here]
    async with placed(server, kind, here) as peer:
        await peer.send(CREATE)
        begun = await events(peer, most=2)
        assert [event["type"] for event in begun] == ["response.created", "response.in_progress"]
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(Exception) as cut:  # noqa: PT011 (each client library has its own)
            await peer.receive()
        assert not isinstance(cut.value, TimeoutError)
    # What connects to a process that is just dying is cut as well.
    await asyncio.to_thread(until, lambda: not alive(killed))
    return begun[0]["response"]["id"], there


async def _again(server: Several, kind: str, there: str, made: str) -> Json:
    """The same create twice at the other worker: the response that both end with."""
    async with placed(server, kind, there) as peer:
        dead = await peer.retrieve(made)
        assert (dead["status"], dead["error"]["code"]) == ("failed", "server_error")
        assert (dead["output"], dead["usage"]["output_tokens"]) == ([], 0)
        await peer.send(CREATE)
        heard = await events(peer)
        await peer.send(CREATE)
        assert await events(peer) == heard
    response: Json = heard[-1]["response"]
    assert heard[-1]["type"] == "response.completed"
    return response


@pytest.mark.parametrize("kind", ["grpc", "ws", "http"])
def test_a_create_that_was_taken_and_not_answered_is_known_and_its_key_gives_one_answer(
    kind: str, tmp_path: Path
) -> None:
    async def main(server: Several) -> tuple[str, Json]:
        async with asyncio.timeout(PATIENCE):
            made, there = await _cut(server, kind)
            return made, await _again(server, kind, there, made)

    with several(tmp_path, "--script", write_script(tmp_path, rules=RULES)) as server:
        server.whole()
        made, again = asyncio.run(main(server))
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    books = generated.read(tmp_path / "tieline.db")
    rows = {key: row for key, row in books.rows.items() if row.stored}
    assert (rows[made].outcome, rows[made].output_tokens) == ("failed", 0)
    assert rows[again["id"]].output_tokens == again["usage"]["output_tokens"] > 1
    assert rows.keys() == {made, again["id"]}
