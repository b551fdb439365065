"""The RPCs about what exists: stored responses, running turns, models, and sizes of input."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from tieline.codecs.proto import to_item, to_response
from tieline.items import Item
from tieline.responses import Response
from tieline.v1 import items_pb2, models_pb2, service_pb2
from tieline_server import runtime
from tieline_server.core.values import Principal
from tieline_server.runtime import Services
from tieline_server.runtime.compact import compact
from tieline_server.transports.grpc.creates import (
    fitting,
    parsed,
    read_create,
    receives,
    whole,
)
from tieline_server.transports.grpc.status import TRANSPORT, Call, Context
from tieline_server.transports.response_lookup import (
    PAGE,
    Page,
    cancelled,
    check_include,
    deleted,
    find,
    find_whole,
    input_items,
    page_of,
    place_id,
)

FRAME: Final = 32
"""More than what the fields around an item take in a page."""


class StoredCalls:
    """Behaviours for the library; wrap each in ``guarded``. Bytes in, bytes out."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._max_bytes = services.limits.message_bytes

    async def get(self, data: bytes, context: Context, call: Call) -> bytes:
        """A response of the caller as it stands."""
        principal = self._principal(call)
        request = parsed(service_pb2.GetRequest, data)
        check_include(request.include)
        response = await find(self._services, principal.owner, request.response_id)
        return whole(service_pb2.GetResponse, response, receives(request))

    async def delete(self, data: bytes, context: Context, call: Call) -> bytes:
        """Forgets a response of the caller; one that runs is cancelled first."""
        principal = self._principal(call)
        request = parsed(service_pb2.DeleteRequest, data)
        await deleted(self._services, principal.owner, request.response_id)
        answer = service_pb2.DeleteResponse(id=request.response_id, deleted=True)
        return answer.SerializeToString()

    async def list_input_items(self, data: bytes, context: Context, call: Call) -> bytes:
        """A page of what a response was asked with: its input, then what was appended."""
        principal = self._principal(call)
        request = parsed(service_pb2.ListInputItemsRequest, data)
        check_include(request.include)
        saved = await find_whole(self._services, principal.owner, request.response_id)
        listed = named(saved.response.id, input_items(saved))
        return page(listed, request).SerializeToString()

    async def cancel(self, data: bytes, context: Context, call: Call) -> bytes:
        """Ends a turn of the caller on any of its connections; one that has ended stays so."""
        principal = self._principal(call)
        request = parsed(service_pb2.CancelRequest, data)
        response = await cancelled(self._services, principal.owner, request.response_id)
        return whole(service_pb2.CancelResponse, response, receives(request))

    async def count_input_tokens(self, data: bytes, context: Context, call: Call) -> bytes:
        """How many input tokens a create would have."""
        principal = self._principal(call)
        create, _ = read_create(service_pb2.CountInputTokensRequest, data, self._max_bytes)
        count = await runtime.count_input_tokens(self._services, principal, create)
        return service_pb2.CountInputTokensResponse(input_tokens=count).SerializeToString()

    async def compact(self, data: bytes, context: Context, call: Call) -> bytes:
        """The compacted input that stands for a longer history."""
        principal = self._principal(call)
        create, request = read_create(service_pb2.CompactRequest, data, self._max_bytes)
        made = await compact(self._services, principal, create, transport=TRANSPORT)
        answer = service_pb2.CompactResponse(
            id=made.id,
            created_at=Timestamp(seconds=made.created_at),
            output=[to_item(item) for item in made.output],
            usage=to_response(Response(usage=made.usage)).usage,
        )
        fitting(answer.ByteSize(), receives(request))
        return answer.SerializeToString()

    async def models(self, data: bytes, context: Context, call: Call) -> bytes:
        """The models that the caller's key may use."""
        principal = self._principal(call)
        parsed(models_pb2.ListModelsRequest, data)
        answer = models_pb2.ListModelsResponse()
        for _, model in self._services.offered(principal):
            created = Timestamp(seconds=model.created)
            answer.models.add(id=model.id, created=created, owned_by=model.owned_by)
        return answer.SerializeToString()

    def _principal(self, call: Call) -> Principal:
        principal: Principal = self._services.keys.caller(call.authorization, call.caller)()
        return principal


def named(response_id: str, listed: Sequence[Item]) -> list[tuple[str, items_pb2.Item]]:
    """The items with the ids that they are listed under.

    In the chain an item keeps its bytes; here one without an id gets that of its position.
    """
    entries = []
    for index, item in enumerate(listed):
        message = to_item(item)
        item_id = item.id
        if item_id is None:
            item_id = place_id(response_id, index)
            getattr(message, message.WhichOneof("item") or "opaque").id = item_id
        entries.append((item_id, message))
    return entries


def page(
    listed: Sequence[tuple[str, items_pb2.Item]], request: service_pb2.ListInputItemsRequest
) -> service_pb2.ListInputItemsResponse:
    """The page of ``listed`` (oldest first) that is asked for; raises :class:`ApiError` 400.

    It ends before what its client cannot receive, which is on the next one; an item that fits on
    no page is 413.
    """
    chosen = page_of(
        listed,
        limit=request.limit if request.HasField("limit") else PAGE,
        order=request.order or "desc",
        after=request.after or None,
    )
    most = receives(request)
    count = _fitting(chosen.entries, most)
    if count < len(chosen.entries):
        chosen = Page(entries=chosen.entries[:count], has_more=True)
    answer = service_pb2.ListInputItemsResponse(
        items=[message for _, message in chosen.entries],
        first_id=chosen.first_id,
        last_id=chosen.last_id,
        has_more=chosen.has_more,
    )
    fitting(answer.ByteSize(), most)
    return answer


def _fitting(entries: Sequence[tuple[str, items_pb2.Item]], most: int) -> int:
    """How many of a page's entries fit into an answer; at least one."""
    ids = 2 * max((len(entry_id.encode()) for entry_id, _ in entries), default=0)
    room = most - ids - FRAME
    for count, (_, message) in enumerate(entries):
        room -= message.ByteSize() + FRAME
        if room < 0:
            return max(count, 1)
    return len(entries)
