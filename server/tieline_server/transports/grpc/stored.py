"""The RPCs about what exists: stored responses, running turns, models, and sizes of input."""

from collections.abc import Sequence
from typing import Final

from tieline import items
from tieline.codecs.proto import to_item, to_response
from tieline.errors import ApiError
from tieline.ids import RESPONSE
from tieline.items import Item
from tieline.responses import Response
from tieline.v1 import items_pb2, line_pb2, models_pb2
from tieline_server import runtime
from tieline_server.core.effects import Principal, Saved
from tieline_server.core.history import Segment
from tieline_server.runtime import Services
from tieline_server.transports.grpc.creates import parsed, read_create
from tieline_server.transports.grpc.status import Call, Context

PAGE: Final = 20
"""Items on a page where the caller names no limit."""

LONGEST_PAGE: Final = 100


class StoredCalls:
    """Behaviours for the library; wrap each in ``guarded``. Bytes in, bytes out."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._max_bytes = services.limits.message_bytes

    async def get(self, data: bytes, context: Context, call: Call) -> bytes:
        """A stored response of the caller."""
        principal = self._principal(call)
        request = parsed(line_pb2.GetResponseRequest, data)
        saved = await self._saved(principal, request.response_id)
        answer = line_pb2.GetResponseResponse(response=to_response(saved.response))
        return answer.SerializeToString()

    async def delete(self, data: bytes, context: Context, call: Call) -> bytes:
        """Forgets a stored response of the caller."""
        principal = self._principal(call)
        request = parsed(line_pb2.DeleteResponseRequest, data)
        if not await self._services.store.delete(principal.owner, request.response_id):
            raise not_found(request.response_id)
        answer = line_pb2.DeleteResponseResponse(id=request.response_id, deleted=True)
        return answer.SerializeToString()

    async def list_input_items(self, data: bytes, context: Context, call: Call) -> bytes:
        """A page of what a stored response was asked with: its input, then what was appended."""
        principal = self._principal(call)
        request = parsed(line_pb2.ListInputItemsRequest, data)
        saved = await self._saved(principal, request.response_id)
        listed = named(saved.response.id, input_items(saved))
        return page(listed, request).SerializeToString()

    async def cancel(self, data: bytes, context: Context, call: Call) -> bytes:
        """Ends a turn of the caller, whichever line it runs on; one that has ended stays so."""
        principal = self._principal(call)
        request = parsed(line_pb2.CancelResponseRequest, data)
        owner, response_id = principal.owner, request.response_id
        response = self._services.running.cancel(owner, response_id)
        if response is None:
            saved = await self._services.store.get(owner, response_id)
            if saved is None:
                raise not_found(response_id)
            response = saved.response
        answer = line_pb2.CancelResponseResponse(response=to_response(response))
        return answer.SerializeToString()

    async def count_input_tokens(self, data: bytes, context: Context, call: Call) -> bytes:
        """How many input tokens a create would have."""
        principal = self._principal(call)
        create = read_create(line_pb2.CountInputTokensRequest, data, self._max_bytes)
        count = await runtime.count_input_tokens(self._services, principal, create)
        return line_pb2.CountInputTokensResponse(input_tokens=count).SerializeToString()

    async def compact(self, data: bytes, context: Context, call: Call) -> bytes:
        """The window that stands for a longer history."""
        principal = self._principal(call)
        create = read_create(line_pb2.CompactResponseRequest, data, self._max_bytes)
        window = await runtime.compact(self._services, principal, create)
        answer = line_pb2.CompactResponseResponse(
            id=window.id,
            created_at=window.created_at,
            output=[to_item(item) for item in window.output],
            usage=to_response(Response(usage=window.usage)).usage,
        )
        return answer.SerializeToString()

    async def models(self, data: bytes, context: Context, call: Call) -> bytes:
        """The models that the caller's key may use."""
        principal = self._principal(call)
        parsed(models_pb2.ListModelsRequest, data)
        answer = models_pb2.ListModelsResponse()
        for engine in self._services.engines.values():
            for model in engine.models():
                if principal.models is None or model.id in principal.models:
                    answer.models.add(id=model.id, created=model.created, owned_by=model.owned_by)
        return answer.SerializeToString()

    def _principal(self, call: Call) -> Principal:
        principal: Principal = self._services.keys.authenticate(call.authorization)
        return principal

    async def _saved(self, principal: Principal, response_id: str) -> Saved:
        saved = await self._services.store.get(principal.owner, response_id)
        if saved is None:
            raise not_found(response_id)
        return saved


def not_found(response_id: str) -> ApiError:
    """No such response, or another owner's: the two look alike."""
    return ApiError.of("response_not_found", f"Response with id '{response_id[:128]}' not found.")


def input_items(saved: Saved) -> list[Item]:
    """The items of a response's own links that it did not make itself, oldest first."""
    own: list[Segment] = []
    link: Segment | None = saved.tip.segment
    while link is not None and link is not saved.input_from:
        own.append(link)
        link = link.parent
    made = {items.decode(raw).id for raw in saved.response.output}
    return [
        item
        for segment in reversed(own)
        for item in segment.items
        if item.id is None or item.id not in made
    ]


def named(response_id: str, listed: Sequence[Item]) -> list[tuple[str, items_pb2.Item]]:
    """The items with the ids that they are listed under.

    An item that came without an id has none in the chain, where it keeps its bytes; in a list it
    is known by its place, so that a page can begin after it.
    """
    base = response_id.removeprefix(RESPONSE)
    entries = []
    for index, item in enumerate(listed):
        message = to_item(item)
        item_id = item.id
        if item_id is None:
            item_id = f"item_{base}_{index}"
            getattr(message, message.WhichOneof("item") or "opaque").id = item_id
        entries.append((item_id, message))
    return entries


def page(
    listed: Sequence[tuple[str, items_pb2.Item]], request: line_pb2.ListInputItemsRequest
) -> line_pb2.ListInputItemsResponse:
    """The page of ``listed`` (oldest first) that is asked for; raises :class:`ApiError` 400."""
    limit = request.limit if request.HasField("limit") else PAGE
    if not 1 <= limit <= LONGEST_PAGE:
        code = "integer_below_min_value" if limit < 1 else "integer_above_max_value"
        raise ApiError.of(code, f"Invalid 'limit': expected 1 to {LONGEST_PAGE}.", param="limit")
    order = request.order or "desc"
    if order not in ("asc", "desc"):
        raise ApiError.of(
            "invalid_value",
            f"Invalid value: '{order[:64]}'. Supported values are: 'asc' and 'desc'.",
            param="order",
        )
    ordered = listed if order == "asc" else listed[::-1]
    start = _after([item_id for item_id, _ in ordered], request.after) if request.after else 0
    chosen = ordered[start : start + limit]
    return line_pb2.ListInputItemsResponse(
        items=[message for _, message in chosen],
        first_id=chosen[0][0] if chosen else None,
        last_id=chosen[-1][0] if chosen else None,
        has_more=start + limit < len(ordered),
    )


def _after(ids: list[str], item_id: str) -> int:
    if item_id not in ids:
        raise ApiError.of(
            "item_not_found", f"Item with id '{item_id[:128]}' not found.", param="after"
        )
    return ids.index(item_id) + 1
