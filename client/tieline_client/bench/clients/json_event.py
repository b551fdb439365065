"""What the load clients of the JSON transports look at in an event."""

from typing import Final

import msgspec

from tieline_client.bench.clients.base import Seen


class _Response(msgspec.Struct):
    id: str = ""


class _Event(msgspec.Struct):
    type: str
    delta: str = ""
    response: _Response | None = None


_decoder: Final = msgspec.json.Decoder(_Event)


def seen(event: bytes | bytearray | memoryview) -> Seen:
    """An event's type, delta and response id; the rest of it is skipped."""
    view = _decoder.decode(event)
    return Seen(view.type, view.delta, view.response.id if view.response else "")
