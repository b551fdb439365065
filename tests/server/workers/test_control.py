"""What a supervisor, its nursery and its workers say to one another crosses as it is."""

import pytest

from tieline_server.workers.control import (
    FROM_NURSERY,
    FROM_WORKER,
    TO_NURSERY,
    TO_WORKER,
    Bear,
    Born,
    Died,
    Drain,
    Failed,
    Prepare,
    Prepared,
    Serve,
    Serving,
)
from tieline_server.workers.frames import Decoder, Torn, pack

ORDER = Serve(config={"store": None}, mark=b"\0\xff", folder="/f", row=3, seal_key="k")


@pytest.mark.parametrize(
    ("hears", "message"),
    [
        (TO_WORKER, ORDER),
        (TO_WORKER, Drain()),
        (TO_WORKER, Drain(insist=True)),
        (FROM_WORKER, Serving()),
        (FROM_WORKER, Failed("why")),
        (TO_NURSERY, Prepare({"store": None})),
        (TO_NURSERY, Bear()),
        (FROM_NURSERY, Prepared()),
        (FROM_NURSERY, Born(7)),
        (FROM_NURSERY, Died(7, -9)),
        (FROM_NURSERY, Failed("why")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_message_is_heard_as_it_was_said(hears: Decoder, message: object) -> None:
    assert hears.unpack(pack(message)) == message  # type: ignore[arg-type]  # each is a struct


@pytest.mark.parametrize("message", [ORDER, Drain(), Prepare({}), Bear()], ids=str)
def test_an_order_is_nothing_that_anybody_answers(message: object) -> None:
    for answers in (FROM_WORKER, FROM_NURSERY):
        with pytest.raises(Torn):
            answers.unpack(pack(message))  # type: ignore[arg-type]  # each is a struct
