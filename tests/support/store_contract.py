"""What every response store must do: a test class inherits it and says how to open a store."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Raw
from msgspec.structs import replace

from tieline.items import Item, Opened, decode, decode_input
from tieline.responses import Response
from tieline_server.core.booking import Booking
from tieline_server.core.effects import Saved
from tieline_server.core.history import Segment, Tip
from tieline_server.stores.base import ResponseStore

Scenario = Callable[[ResponseStore], Awaitable[None]]


def answer(text: str, item_id: str) -> Item:
    """An assistant's message as an engine's output becomes one."""
    part = f'{{"type":"output_text","text":"{text}","annotations":[]}}'
    raw = f'{{"type":"message","id":"{item_id}","role":"assistant","content":[{part}]}}'
    return decode(raw.encode())


def saved(
    response_id: str, *, owner: str = "ann", after: Saved | None = None, text: str = "hello"
) -> Saved:
    """A stored response with one message in and one out, continuing ``after``."""
    parent = after.tip.segment if after else None
    turn = parent.turn + 1 if parent else 1
    question = Segment(parent, tuple(decode_input(b'"hi"')), turn=turn)
    output = answer(text, f"msg_{response_id}")
    tip = Tip(
        response_id,
        Segment(question, (output,), turn=turn),
        owner=owner,
        settings=None,
    )
    response = Response(
        id=response_id,
        status="completed",
        output=[Raw(output.raw)],
        previous_response_id=after.response.id if after else None,
    )
    return Saved(response=response, tip=tip, owner=owner, input_from=parent)


def booked(record: Saved) -> Booking:
    """The ledger's row of a stored response."""
    return Booking(
        response_id=record.response.id,
        owner=record.owner,
        model="m",
        transport="test",
        outcome="completed",
        kind="turn",
        reason=None,
        error_code=None,
        input_tokens=10,
        cached_tokens=4,
        output_tokens=2,
        reasoning_tokens=1,
        phases={"total": 5},
        started_at=1000.0,
        ended_at=1001.0,
        stored=True,
    )


async def put(store: ResponseStore, record: Saved) -> None:
    """Puts a record, with its booking."""
    await store.put(record, booked(record))


def texts(record: Saved | None) -> list[bytes]:
    """The JSON of every item of a record's chain, in order."""
    assert record is not None
    return [item.raw for item in record.tip.segment.items_of_chain()]


class StoreContract:
    """The tests; ``open`` makes an empty store."""

    def open(self) -> ResponseStore:
        raise NotImplementedError

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            store = self.open()
            try:
                await scenario(store)
            finally:
                await store.close()

        asyncio.run(main())

    def test_a_response_that_was_put_is_found_at_once(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            record = saved("resp_1")
            await put(store, record)
            found = await store.get("ann", "resp_1")
            assert found is not None
            assert found.response == record.response
            assert found.owner == "ann"
            assert texts(found) == texts(record)

        self.run(scenario)

    def test_a_response_that_was_never_put_is_none(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            assert await store.get("ann", "resp_1") is None
            assert await store.delete("ann", "resp_1") is False
            assert await store.item("ann", "msg_resp_1") is None

        self.run(scenario)

    def test_another_owner_sees_neither_the_response_nor_its_items(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            await put(store, saved("resp_1"))
            assert await store.get("bob", "resp_1") is None
            assert await store.item("bob", "msg_resp_1") is None

        self.run(scenario)

    def test_another_owner_cannot_delete(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            await put(store, saved("resp_1"))
            assert await store.delete("bob", "resp_1") is False
            assert await store.get("ann", "resp_1") is not None

        self.run(scenario)

    def test_a_deleted_response_is_gone_with_its_items_and_only_once(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            await put(store, saved("resp_1"))
            assert await store.delete("ann", "resp_1") is True
            assert await store.get("ann", "resp_1") is None
            assert await store.item("ann", "msg_resp_1") is None
            assert await store.delete("ann", "resp_1") is False

        self.run(scenario)

    def test_what_continues_a_deleted_response_keeps_what_it_inherited(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            first = saved("resp_1", text="first")
            second = saved("resp_2", after=first, text="second")
            await put(store, first)
            await put(store, second)
            await store.delete("ann", "resp_1")
            assert texts(await store.get("ann", "resp_2")) == texts(second)
            assert await store.item("ann", "msg_resp_2") is not None

        self.run(scenario)

    def test_the_links_of_a_response_end_where_its_own_input_begins(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            first = saved("resp_1")
            second = saved("resp_2", after=first)
            await put(store, first)
            await put(store, second)
            found = await store.get("ann", "resp_2")
            assert found is not None
            assert found.input_from is not None
            assert [item.raw for item in found.input_from.items_of_chain()] == texts(first)

        self.run(scenario)

    def test_putting_again_replaces_the_response_and_its_items(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            await put(store, saved("resp_1", text="old"))
            await put(store, saved("resp_1", text="new"))
            item = await store.item("ann", "msg_resp_1")
            assert item is not None
            assert b"new" in item.raw
            assert await store.delete("ann", "resp_1") is True
            assert await store.get("ann", "resp_1") is None

        self.run(scenario)

    def test_two_owners_may_have_responses_of_the_same_id(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            await put(store, saved("resp_1", owner="ann", text="hers"))
            await put(store, saved("resp_1", owner="bob", text="his"))
            assert b"hers" in texts(await store.get("ann", "resp_1"))[-1]
            assert b"his" in texts(await store.get("bob", "resp_1"))[-1]

        self.run(scenario)

    def test_an_item_keeps_its_bytes(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            record = saved("resp_1")
            await put(store, record)
            item = await store.item("ann", "msg_resp_1")
            assert item is not None
            assert item.raw == texts(record)[-1]

        self.run(scenario)

    def test_an_item_that_two_responses_have_stays_until_both_are_gone(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            # A client that keeps its own history sends an answer back as input.
            first = saved("resp_1")
            link = Segment(None, tuple(first.tip.segment.items), turn=1)
            tip = Tip("resp_2", link, owner="ann", settings=None)
            response = Response(id="resp_2", status="completed")
            await put(store, first)
            await put(store, Saved(response=response, tip=tip, owner="ann", input_from=None))
            assert await store.delete("ann", "resp_2")
            assert await store.item("ann", "msg_resp_1") is not None
            assert await store.delete("ann", "resp_1")
            assert await store.item("ann", "msg_resp_1") is None

        self.run(scenario)

    def test_a_folded_history_goes_on_from_its_compaction_once_it_is_open(self) -> None:
        item = decode(b'{"type":"compaction","id":"cmp_1","encrypted_content":"sealed"}')
        left = Opened(items=tuple(decode_input(b'"what is left"')), whole=True)

        def opened(item: Item) -> Item:
            closed = item.sealed is not None and item.opened is None
            return replace(item, opened=left) if closed else item

        async def scenario(store: ResponseStore) -> None:
            first = saved("resp_1")
            folded = Segment(first.tip.segment, (opened(item),), turn=2)
            said = answer("on", "msg_resp_2")
            tip = Tip("resp_2", Segment(folded, (said,), turn=2), owner="ann", settings=None)
            output = [Raw(item.raw), Raw(said.raw)]
            response = Response(id="resp_2", status="completed", output=output)
            await put(store, first)
            record = Saved(response=response, tip=tip, owner="ann", input_from=first.tip.segment)
            await put(store, record)
            found = await store.get("ann", "resp_2")
            assert texts(found) == texts(record), "what is kept is sealed"
            assert found is not None
            found.tip.segment.reveal(opened)
            context = [each.raw for each in found.tip.segment.context()]
            assert context == [left.items[0].raw, said.raw]

        self.run(scenario)
