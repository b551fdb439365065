"""The calls about what exists: stored responses, running turns, models, sizes of input."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.core import word
from tests.support.grpc_client import create, status_error
from tests.support.grpc_engine import INPUT_TOKENS, gated, tool_call
from tests.support.grpc_harness import Served, models, responses, serve
from tieline import items
from tieline.codecs.proto import from_item
from tieline.errors import ApiError
from tieline.items import Item
from tieline.v1 import items_pb2, models_pb2, requests_pb2, service_pb2
from tieline.v1.responses_pb2 import RESPONSE_STATUS_CANCELLED, RESPONSE_STATUS_COMPLETED
from tieline_server.transports.grpc.stored import named, page


async def stored(served: Served, channel: grpc.aio.Channel, **members: Any) -> str:
    """The id of a stored response."""
    body = requests_pb2.ResponseCreate(**{"input_text": "hi", "store": True, **members})
    answer = await responses(channel).Create(service_pb2.CreateRequest(response_create=body))
    return answer.response.id


def code_of(error: grpc.aio.AioRpcError) -> str:
    stated = status_error(error.trailing_metadata())
    assert stated is not None
    return stated.code


def write_keys(path: Path, **owners: list[str] | None) -> None:
    """A key file: each owner's key is its own name."""
    lines = []
    for owner, allowed in owners.items():
        digest = hashlib.sha256(owner.encode()).hexdigest()
        lines.append(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "{owner}"')
        if allowed is not None:
            lines.append(f"models = {allowed}")
    path.write_text("\n".join(lines))


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def test_a_stored_response_is_got_and_deleted() -> None:
    async with serve() as served, served.channel() as channel:
        stub = responses(channel)
        response_id = await stored(served, channel)
        got = await stub.Get(service_pb2.GetRequest(response_id=response_id))
        assert got.response.id == response_id
        assert got.response.output[0].message.parts.parts[0].text.text == "Hello, world."
        gone = await stub.Delete(service_pb2.DeleteRequest(response_id=response_id))
        assert (gone.id, gone.deleted) == (response_id, True)
        for call in (
            stub.Get(service_pb2.GetRequest(response_id=response_id)),
            stub.Delete(service_pb2.DeleteRequest(response_id=response_id)),
            stub.ListInputItems(service_pb2.ListInputItemsRequest(response_id=response_id)),
            stub.Cancel(service_pb2.CancelRequest(response_id=response_id)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert code_of(caught.value) == "response_not_found"


async def test_a_look_up_includes_no_word_that_the_api_does_not_have() -> None:
    async with serve() as served, served.channel() as channel:
        stub = responses(channel)
        named: dict[str, Any] = {"response_id": await stored(served, channel)}
        for include, ok in ((["reasoning.encrypted_content"], True), (["odd"], False)):
            for call in (
                stub.Get(service_pb2.GetRequest(**named, include=include)),
                stub.ListInputItems(service_pb2.ListInputItemsRequest(**named, include=include)),
            ):
                if ok:
                    await call
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                error = status_error(caught.value.trailing_metadata())
                assert error is not None
                assert (error.code, error.param) == ("invalid_value", "include")


async def test_a_response_of_another_owner_is_like_an_unknown_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, ann=None, bob=None)

    async with serve(api_keys=keys) as served, served.channel() as channel:
        stub = responses(channel)
        body = requests_pb2.ResponseCreate(input_text="hi", store=True)
        made = await stub.Create(
            service_pb2.CreateRequest(response_create=body), metadata=bearer("ann")
        )
        messages = []
        for response_id in (made.response.id, "resp_unknown"):
            request = service_pb2.GetRequest(response_id=response_id)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Get(request, metadata=bearer("bob"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            messages.append((caught.value.details() or "").replace(response_id, ""))
        assert messages[0] == messages[1]
        mine = service_pb2.GetRequest(response_id=made.response.id)
        assert (await stub.Get(mine, metadata=bearer("ann"))).response.id


async def test_input_items_are_the_input_then_what_was_appended() -> None:
    async with serve(tool_call) as served, served.line() as line, served.channel() as channel:
        await line.send(create("look", store=True, append=True))
        held = (await line.until("response_done"))[-1].response
        result = items_pb2.FunctionCallOutput(
            call_id=held.output[-1].function_call.call_id, text="a cat", id="fco_1"
        )
        answer = requests_pb2.ResponseAppend(
            input_items=items_pb2.ItemList(items=[items_pb2.Item(function_call_output=result)])
        )
        await line.send(service_pb2.ConverseRequest(response_append=answer))
        await line.until("response_completed")
        request = service_pb2.ListInputItemsRequest(response_id=held.id, order="asc")
        listed = await responses(channel).ListInputItems(request)
        assert [item.WhichOneof("item") for item in listed.items] == [
            "message",
            "function_call_output",
        ]
        assert listed.first_id == listed.items[0].message.id
        assert listed.last_id == "fco_1"
        assert not listed.has_more


async def test_input_items_leave_out_what_was_inherited() -> None:
    async with serve() as served, served.channel() as channel:
        first = await stored(served, channel, input_text="one")
        second = await stored(served, channel, input_text="two", previous_response_id=first)
        listed = await responses(channel).ListInputItems(
            service_pb2.ListInputItemsRequest(response_id=second)
        )
        (item,) = listed.items
        assert item.message.text == "two"


def listing(count: int) -> list[tuple[str, items_pb2.Item]]:
    def message(number: int) -> Item:
        raw = f'{{"type":"message","role":"user","id":"msg_{number}","content":"{number}"}}'
        return items.decode(raw.encode())

    return named("resp_1", [message(number) for number in range(count)])


def ids(answer: service_pb2.ListInputItemsResponse) -> list[str]:
    return [item.message.id for item in answer.items]


def test_a_page_is_twenty_items_newest_first() -> None:
    answer = page(listing(25), service_pb2.ListInputItemsRequest())
    assert ids(answer) == [f"msg_{number}" for number in range(24, 4, -1)]
    assert (answer.first_id, answer.last_id, answer.has_more) == ("msg_24", "msg_5", True)


def test_pages_follow_one_another_to_the_end() -> None:
    seen: list[str] = []
    request = service_pb2.ListInputItemsRequest(limit=3, order="asc")
    while True:
        answer = page(listing(7), request)
        seen += ids(answer)
        if not answer.has_more:
            break
        request.after = answer.last_id
    assert seen == [f"msg_{number}" for number in range(7)]


def heavy(sizes: list[int]) -> list[tuple[str, items_pb2.Item]]:
    """Items of these sizes, oldest first."""
    said = [items_pb2.Message(role="user", text="x" * size) for size in sizes]
    return [(f"i{at}", items_pb2.Item(message=each)) for at, each in enumerate(said)]


def test_cn_17_a_page_ends_before_what_its_client_cannot_receive() -> None:
    listed = heavy([9_000] * 5)
    after, seen = "", []
    for _ in range(5):
        asked = service_pb2.ListInputItemsRequest(
            order="asc", after=after or None, max_receive_bytes=20_000
        )
        answer = page(listed, asked)
        assert answer.ByteSize() <= 20_000
        seen.append(len(answer.items))
        after = answer.last_id
        if not answer.has_more:
            break
    assert seen == [2, 2, 1]


def test_cn_17_an_item_that_fits_on_no_page_is_refused_with_the_size_that_it_needs() -> None:
    listed = heavy([100, 30_000])
    first = page(listed, service_pb2.ListInputItemsRequest(order="asc", max_receive_bytes=20_000))
    assert (len(first.items), first.has_more) == (1, True)
    with pytest.raises(ApiError) as caught:
        page(listed, service_pb2.ListInputItemsRequest(max_receive_bytes=20_000))
    assert (caught.value.code, caught.value.param) == ("answer_too_large", "max_receive_bytes")
    needed = int(caught.value.message.split()[3])
    answer = page(listed, service_pb2.ListInputItemsRequest(limit=1, max_receive_bytes=needed))
    assert answer.ByteSize() == needed


async def test_cn_17_a_window_past_the_limit_is_refused_with_the_size_that_it_needs() -> None:
    async with serve(max_message_bytes=8 * 1024 * 1024) as served, served.channel() as channel:
        body = requests_pb2.ResponseCreate(model="tiny", input_text="x" * (5 * 1024 * 1024))
        asked = service_pb2.CompactRequest(response_create=body)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Compact(asked)
        assert code_of(caught.value) == "answer_too_large"
        needed = int((caught.value.details() or "").split()[3])
        asked.max_receive_bytes = needed
        options = [("grpc.max_receive_message_length", needed)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=options) as wide:
            window = await responses(wide).Compact(asked)
        assert len(window.output) == 2


def test_an_item_without_an_id_is_listed_under_its_place_and_keeps_its_bytes() -> None:
    item = items.decode(b'{"role":"user","content":"hi"}')
    other = items.decode(b'{"type":"web_search_call","query":"x"}')
    first, second = named("resp_7", [item, other])
    assert (first[0], second[0]) == ("item_7_0", "item_7_1")
    assert (first[1].message.id, second[1].opaque.id) == ("item_7_0", "item_7_1")
    assert item.raw == b'{"role":"user","content":"hi"}'


def test_an_empty_page_has_no_ids() -> None:
    answer = page([], service_pb2.ListInputItemsRequest())
    assert not answer.HasField("first_id")
    assert not answer.HasField("last_id")
    assert not answer.has_more


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (service_pb2.ListInputItemsRequest(limit=0), "integer_below_min_value", "limit"),
        (service_pb2.ListInputItemsRequest(limit=101), "integer_above_max_value", "limit"),
        (service_pb2.ListInputItemsRequest(order="up"), "invalid_value", "order"),
        (service_pb2.ListInputItemsRequest(after="msg_x"), "item_not_found", "after"),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    request_: service_pb2.ListInputItemsRequest, code: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        page(listing(3), request_)
    assert (caught.value.code, caught.value.param) == (code, param)


async def test_cancel_response_ends_a_turn_on_another_line() -> None:
    async with (
        serve(gated(asyncio.Event())) as served,
        served.line() as line,
        served.channel() as channel,
    ):
        await line.send(create("x"))
        created = (await line.until("response_in_progress"))[-1]
        response_id = created.response.id
        answer = await responses(channel).Cancel(service_pb2.CancelRequest(response_id=response_id))
        assert (answer.response.id, answer.response.status) == (
            response_id,
            RESPONSE_STATUS_CANCELLED,
        )
        last = (await line.until("response_incomplete"))[-1].response
        assert (last.id, last.status) == (response_id, RESPONSE_STATUS_CANCELLED)
        assert served.engine.cancelled == 1


async def test_cancel_response_of_a_finished_one_changes_nothing() -> None:
    async with serve() as served, served.channel() as channel:
        response_id = await stored(served, channel)
        answer = await responses(channel).Cancel(service_pb2.CancelRequest(response_id=response_id))
        assert answer.response.status == RESPONSE_STATUS_COMPLETED


async def test_count_input_tokens_counts_without_sampling() -> None:
    async with serve() as served, served.channel() as channel:
        body = requests_pb2.ResponseCreate(input_text="hi")
        answer = await responses(channel).CountInputTokens(
            service_pb2.CountInputTokensRequest(response_create=body)
        )
        assert answer.input_tokens == INPUT_TOKENS
        assert (served.engine.started, served.records) == (0, [])


async def test_compact_response_keeps_user_messages_and_folds_the_rest() -> None:
    async with serve() as served, served.channel() as channel:
        first = await stored(served, channel, input_text="one")
        body = requests_pb2.ResponseCreate(model="tiny", previous_response_id=first)
        window = await responses(channel).Compact(service_pb2.CompactRequest(response_create=body))
        assert [item.WhichOneof("item") for item in window.output] == ["message", "compaction"]
        assert word(from_item(window.output[0])) == "user: one"
        assert window.usage.input_tokens == INPUT_TOKENS
        assert window.created_at.seconds > 0
        again = requests_pb2.ResponseCreate(
            input_items=items_pb2.ItemList(items=window.output), store=False
        )
        response = await responses(channel).Create(service_pb2.CreateRequest(response_create=again))
        assert response.response.status == RESPONSE_STATUS_COMPLETED


async def test_models_are_those_that_the_key_may_use(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, ann=None, bob=["other"])

    async with serve(api_keys=keys) as served, served.channel() as channel:
        request = models_pb2.ListModelsRequest()
        every = await models(channel).ListModels(request, metadata=bearer("ann"))
        some = await models(channel).ListModels(request, metadata=bearer("bob"))
        assert [model.id for model in every.models] == ["tiny", "other"]
        assert [model.id for model in some.models] == ["other"]


@pytest.mark.parametrize(
    ("service", "method"),
    [
        ("ResponsesService", "Create"),
        ("ResponsesService", "Get"),
        ("ResponsesService", "Delete"),
        ("ResponsesService", "Cancel"),
        ("ResponsesService", "ListInputItems"),
        ("ResponsesService", "CountInputTokens"),
        ("ResponsesService", "Compact"),
        ("ModelsService", "ListModels"),
    ],
)
@pytest.mark.parametrize("metadata", [(), bearer("nobody"), (("authorization", "Basic ann"),)])
async def test_no_call_answers_without_a_known_key(
    tmp_path: Path, service: str, method: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, ann=None)

    async with serve(api_keys=keys) as served, served.channel() as channel:
        call: Any = channel.unary_unary(f"/tieline.v1.{service}/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
