"""The messages of a supervisor, its fork server and its workers arrive as they were sent."""

import pytest

from tieline_server.workers.control import (
    FROM_FORK_SERVER,
    FROM_WORKER,
    TO_FORK_SERVER,
    TO_WORKER,
    Drain,
    Exited,
    Failed,
    Prepare,
    Prepared,
    Serve,
    Serving,
    Spawn,
    Spawned,
)
from tieline_server.workers.framing import BrokenMessage, Decoder, pack

ORDER = Serve(config={"store": None}, tag=b"\0\xff", folder="/f", row=3, seal_key="k")


@pytest.mark.parametrize(
    ("hears", "message"),
    [
        (TO_WORKER, ORDER),
        (TO_WORKER, Drain()),
        (TO_WORKER, Drain(insist=True)),
        (FROM_WORKER, Serving()),
        (FROM_WORKER, Failed("why")),
        (TO_FORK_SERVER, Prepare({"store": None})),
        (TO_FORK_SERVER, Spawn()),
        (FROM_FORK_SERVER, Prepared()),
        (FROM_FORK_SERVER, Spawned(7)),
        (FROM_FORK_SERVER, Exited(7, -9)),
        (FROM_FORK_SERVER, Failed("why")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_message_is_heard_as_it_was_said(hears: Decoder, message: object) -> None:
    assert hears.unpack(pack(message)) == message  # type: ignore[arg-type]  # each is a struct


@pytest.mark.parametrize("message", [ORDER, Drain(), Prepare({}), Spawn()], ids=str)
def test_an_order_is_nothing_that_anybody_answers(message: object) -> None:
    for answers in (FROM_WORKER, FROM_FORK_SERVER):
        with pytest.raises(BrokenMessage):
            answers.unpack(pack(message))  # type: ignore[arg-type]  # each is a struct
