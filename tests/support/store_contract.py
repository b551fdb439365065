"""What every response store must do: a test class inherits it and says how to open a store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Raw, json
from msgspec.structs import replace

from tieline.items import Item, Opened, decode, decode_input
from tieline.responses import Response
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history.chain import ChainHead, ChainNode, Saved
from tieline_server.core.values import UsageRecord
from tieline_server.storage.base import ResponseStore


def answer(text: str, item_id: str) -> Item:
    """An assistant's message as an engine's output becomes one."""
    part = f'{{"type":"output_text","text":"{text}","annotations":[]}}'
    raw = f'{{"type":"message","id":"{item_id}","role":"assistant","content":[{part}]}}'
    return decode(raw.encode())


def saved(
    response_id: str, *, owner: str = "ann", after: Saved | None = None, text: str = "hello"
) -> Saved:
    """A stored response with one message in and one out, continuing ``after``."""
    parent = after.head.node if after else None
    turn = parent.turn + 1 if parent else 1
    question = ChainNode(parent, tuple(decode_input(b'"hi"')), turn=turn)
    output = answer(text, f"msg_{response_id}")
    tip = ChainHead(
        response_id,
        ChainNode(question, (output,), turn=turn),
        owner=owner,
        settings=None,
    )
    response = Response(
        id=response_id,
        status="completed",
        output=[Raw(output.raw)],
        previous_response_id=after.response.id if after else None,
    )
    return Saved(response=response, head=tip, owner=owner, input_from=parent)


LONG: Final = "x" * 50_000
"""Text of a size that is worth writing before its response ends."""


def unstored(after: Saved | None = None, *, text: str = "secret") -> Saved:
    """A response that only its connection knows: nothing puts it."""
    return saved("resp_line", after=after, text=text)


def kept(record: Saved) -> list[Keep]:
    """What the core hands over while a response runs: its input, then its output."""
    own: list[ChainNode] = []
    link: ChainNode | None = record.head.node
    while link is not None and link is not record.input_from:
        own.append(link)
        link = link.parent
    owner, after = record.owner, record.input_from
    return [Keep(record.response.id, owner, after, each.items) for each in reversed(own)]


def booked(record: Saved) -> UsageRecord:
    """The ledger's row of a stored response."""
    return UsageRecord(
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
    """Puts a record, with its usage record."""
    await store.put(record, booked(record))


def texts(record: Saved | None) -> list[bytes]:
    """The JSON of every item of a record's chain, in order."""
    assert record is not None
    return [item.raw for item in record.head.node.items_of_chain()]


class StoreContract:
    """The tests; ``opened`` makes an empty store."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ResponseStore]:
        raise NotImplementedError
        yield

    async def test_a_response_that_was_put_is_found_at_once(self) -> None:
        async with self.opened() as store:
            record = saved("resp_1")
            await put(store, record)
            found = await store.get("ann", "resp_1")
            assert found is not None
            assert found.response == record.response
            assert found.owner == "ann"
            assert texts(found) == texts(record)

    async def test_a_response_that_was_never_put_is_none(self) -> None:
        async with self.opened() as store:
            assert await store.get("ann", "resp_1") is None
            assert await store.delete("ann", "resp_1") is False
            assert await store.item("ann", "msg_resp_1") is None

    async def test_another_owner_sees_neither_the_response_nor_its_items(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_1"))
            assert await store.get("bob", "resp_1") is None
            assert await store.item("bob", "msg_resp_1") is None

    async def test_another_owner_cannot_delete(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_1"))
            assert await store.delete("bob", "resp_1") is False
            assert await store.get("ann", "resp_1") is not None

    async def test_a_deleted_response_is_gone_with_its_items_and_only_once(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_1"))
            assert await store.delete("ann", "resp_1") is True
            assert await store.get("ann", "resp_1") is None
            assert await store.item("ann", "msg_resp_1") is None
            assert await store.delete("ann", "resp_1") is False

    async def test_what_continues_a_deleted_response_keeps_what_it_inherited(self) -> None:
        async with self.opened() as store:
            first = saved("resp_1", text="first")
            second = saved("resp_2", after=first, text="second")
            await put(store, first)
            await put(store, second)
            await store.delete("ann", "resp_1")
            assert texts(await store.get("ann", "resp_2")) == texts(second)
            assert await store.item("ann", "msg_resp_2") is not None

    async def test_the_links_of_a_response_end_where_its_own_input_begins(self) -> None:
        async with self.opened() as store:
            first = saved("resp_1")
            second = saved("resp_2", after=first)
            await put(store, first)
            await put(store, second)
            found = await store.get("ann", "resp_2")
            assert found is not None
            assert found.input_from is not None
            assert [item.raw for item in found.input_from.items_of_chain()] == texts(first)

    async def test_putting_again_replaces_the_response_and_its_items(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_1", text="old"))
            await put(store, saved("resp_1", text="new"))
            item = await store.item("ann", "msg_resp_1")
            assert item is not None
            assert b"new" in item.raw
            assert await store.delete("ann", "resp_1") is True
            assert await store.get("ann", "resp_1") is None

    async def test_two_owners_may_have_responses_of_the_same_id(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_1", owner="ann", text="hers"))
            await put(store, saved("resp_1", owner="bob", text="his"))
            assert b"hers" in texts(await store.get("ann", "resp_1"))[-1]
            assert b"his" in texts(await store.get("bob", "resp_1"))[-1]

    async def test_an_item_keeps_its_bytes(self) -> None:
        async with self.opened() as store:
            record = saved("resp_1")
            await put(store, record)
            item = await store.item("ann", "msg_resp_1")
            assert item is not None
            assert item.raw == texts(record)[-1]

    async def test_an_item_that_two_responses_have_stays_until_both_are_gone(self) -> None:
        async with self.opened() as store:
            # A client that keeps its own history sends an answer back as input.
            first = saved("resp_1")
            link = ChainNode(None, tuple(first.head.node.items), turn=1)
            tip = ChainHead("resp_2", link, owner="ann", settings=None)
            response = Response(id="resp_2", status="completed")
            await put(store, first)
            await put(store, Saved(response=response, head=tip, owner="ann", input_from=None))
            assert await store.delete("ann", "resp_2")
            assert await store.item("ann", "msg_resp_1") is not None
            assert await store.delete("ann", "resp_1")
            assert await store.item("ann", "msg_resp_1") is None

    async def test_what_was_kept_while_it_ran_is_there_once_at_the_end(self) -> None:
        async with self.opened() as store:
            first = saved("resp_1", text=LONG)
            second = saved("resp_2", after=first, text=LONG)
            for record in (first, second):
                for keep in kept(record):
                    store.keep(keep)
                await put(store, record)
                assert texts(await store.get("ann", record.response.id)) == texts(record)
            assert await store.item("ann", "msg_resp_2") is not None

    async def test_what_was_kept_is_not_found_before_its_response_is_put(self) -> None:
        async with self.opened() as store:
            running = saved("resp_1", text=LONG)
            for keep in kept(running):
                store.keep(keep)
            # A put behind it: what was kept before is written by then.
            await put(store, saved("resp_2"))
            assert await store.get("ann", "resp_1") is None
            assert await store.item("ann", "msg_resp_1") is None

    async def test_what_was_discarded_is_not_found_and_its_parent_stays(self) -> None:
        async with self.opened() as store:
            first = saved("resp_1")
            await put(store, first)
            second = saved("resp_2", after=first, text=LONG)
            for keep in kept(second):
                store.keep(keep)
            await put(store, saved("resp_3"))
            store.discard(Discard("resp_2", "ann"))
            store.discard(Discard("resp_unknown", "ann"))
            await put(store, saved("resp_4"))
            assert await store.get("ann", "resp_2") is None
            assert await store.item("ann", "msg_resp_2") is None
            assert texts(await store.get("ann", "resp_1")) == texts(first)

    async def test_forks_share_their_parents_and_never_each_other(self) -> None:
        async with self.opened() as store:
            root = saved("resp_root", text="root")
            left = saved("resp_left", after=root, text="left")
            right = saved("resp_right", after=root, text="right")
            deeper = saved("resp_deeper", after=left, text="deeper")
            for record in (root, left, right, deeper):
                await put(store, record)
            for record in (root, left, right, deeper):
                assert texts(await store.get("ann", record.response.id)) == texts(record)
            assert await store.delete("ann", "resp_left")
            assert texts(await store.get("ann", "resp_deeper")) == texts(deeper)
            assert texts(await store.get("ann", "resp_right")) == texts(right)

    async def test_what_a_response_inherited_from_unstored_ones_comes_back_with_it(self) -> None:
        async with self.opened() as store:
            stored = saved("resp_1", text="one")
            await put(store, stored)
            middle = unstored(unstored(stored, text="two"), text="three")
            last = saved("resp_4", after=middle, text="four")
            fork = saved("resp_5", after=middle, text="five")
            await put(store, last)
            await put(store, fork)
            for record in (last, fork):
                found = await store.get("ann", record.response.id)
                assert found is not None
                assert texts(found) == texts(record)
                assert found.input_from is not None
                assert [item.raw for item in found.input_from.items_of_chain()] == texts(middle)
            # It can be continued to, and what it inherited was never a response of its own.
            assert await store.item("ann", "msg_resp_line") is None

    async def test_a_chain_that_was_read_can_be_continued(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_0"))
            expected = texts(await store.get("ann", "resp_0"))
            for number in range(1, 6):
                before = await store.get("ann", f"resp_{number - 1}")
                record = saved(f"resp_{number}", after=before, text=f"fact {number}")
                await put(store, record)
                expected += texts(record)[-2:]
            found = await store.get("ann", "resp_5")
            assert texts(found) == expected
            assert found is not None
            assert found.head.node.turn == 6

    async def test_what_continues_a_response_that_was_deleted_meanwhile_is_whole(self) -> None:
        async with self.opened() as store:
            first = saved("resp_1", text="one")
            second = saved("resp_2", after=first, text="two")
            await put(store, first)
            await put(store, second)
            third = saved("resp_3", after=second, text="three")
            assert await store.delete("ann", "resp_2")
            assert await store.delete("ann", "resp_1")
            await put(store, third)
            assert texts(await store.get("ann", "resp_3")) == texts(third)
            assert await store.item("ann", "msg_resp_1") is None

    async def test_puts_side_by_side_are_all_there(self) -> None:
        async with self.opened() as store:
            root = saved("resp_root")
            await put(store, root)
            records = [saved(f"resp_{number}", after=root) for number in range(100)]
            await asyncio.gather(*(put(store, record) for record in records))
            for record in records:
                assert texts(await store.get("ann", record.response.id)) == texts(record)

    async def test_ids_of_any_shape_are_looked_for_and_not_found(self) -> None:
        async with self.opened() as store:
            await put(store, saved("resp_1"))
            for odd in ("", "resp_1\x00", "\x00", "r\u00e9sp", "\ud800", "x" * 10_000, "'; --"):
                assert await store.get("ann", odd) is None
                assert await store.delete("ann", odd) is False
                assert await store.item("ann", odd) is None

    async def test_an_item_id_of_any_shape_is_found_again(self) -> None:
        async with self.opened() as store:
            for number, odd in enumerate(("\x00", "r\u00e9sp", "x" * 10_000)):
                raw = json.encode({"role": "user", "content": "hi", "id": odd})
                link = ChainNode(None, (decode(raw),), turn=1)
                tip = ChainHead(f"resp_{number}", link, owner="ann", settings=None)
                response = Response(id=tip.response_id, status="completed")
                await put(store, Saved(response=response, head=tip, owner="ann", input_from=None))
                found = await store.item("ann", odd)
                assert found is not None
                assert found.raw == raw

    def test_a_response_without_items_is_kept_too(self) -> None:
        async def scenario(store: ResponseStore) -> None:
            tip = ChainHead("resp_1", ChainNode(None, (), turn=1), owner="ann", settings=None)
            response = Response(id="resp_1", status="completed")
            record = Saved(response=response, head=tip, owner="ann", input_from=None)
            await put(store, record)
            found = await store.get("ann", "resp_1")
            assert texts(found) == []
            await put(store, saved("resp_2", after=found))
            assert len(texts(await store.get("ann", "resp_2"))) == 2

    async def test_a_folded_history_goes_on_from_its_compaction_once_it_is_open(self) -> None:
        item = decode(b'{"type":"compaction","id":"cmp_1","encrypted_content":"sealed"}')
        left = Opened(items=tuple(decode_input(b'"what is left"')), whole=True)

        def opened(item: Item) -> Item:
            closed = item.sealed is not None and item.opened is None
            return replace(item, opened=left) if closed else item

        async with self.opened() as store:
            first = saved("resp_1")
            folded = ChainNode(first.head.node, (opened(item),), turn=2)
            said = answer("on", "msg_resp_2")
            tip = ChainHead(
                "resp_2", ChainNode(folded, (said,), turn=2), owner="ann", settings=None
            )
            output = [Raw(item.raw), Raw(said.raw)]
            response = Response(id="resp_2", status="completed", output=output)
            await put(store, first)
            record = Saved(response=response, head=tip, owner="ann", input_from=first.head.node)
            await put(store, record)
            found = await store.get("ann", "resp_2")
            assert texts(found) == texts(record), "what is kept is sealed"
            assert found is not None
            found.head.node.reveal(opened)
            context = [each.raw for each in found.head.node.context()]
            assert context == [left.items[0].raw, said.raw]
