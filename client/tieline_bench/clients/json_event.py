"""What the load clients of the JSON transports look at in an event."""

from typing import Final

import msgspec

from tieline_bench.clients.base import Seen

ITEM_DONE: Final = "response.output_item.done"


class _Response(msgspec.Struct):
    id: str = ""


class _Item(msgspec.Struct):
    call_id: str = ""


class _Event(msgspec.Struct):
    type: str
    delta: str = ""
    response: _Response | None = None
    item: _Item | None = None


_decoder: Final = msgspec.json.Decoder(_Event)


def seen(event: bytes | bytearray | memoryview) -> Seen:
    """An event's type, delta, response id and call; the rest of it is skipped."""
    view = _decoder.decode(event)
    response_id = view.response.id if view.response else ""
    call_id = view.item.call_id if view.item and view.type == ITEM_DONE else ""
    return Seen(view.type, view.delta, response_id, call_id)
