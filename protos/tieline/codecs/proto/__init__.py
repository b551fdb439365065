"""The proto codec: our vocabulary, and JSON from outside, as ``tieline.v1`` messages and back.

``encode_*``, ``decode_*``, ``to_*`` and ``from_*`` go between our structs and messages;
``*_to_proto`` and ``*_to_json`` are the lossless bridge between JSON text and messages. Each end
of a connection owns an encoder and a decoder, which remember what comes again.
"""

from tieline import items
from tieline.codecs.json import check
from tieline.codecs.proto.encoder import EventEncoder
from tieline.codecs.proto.errors import error_of_status, error_status
from tieline.codecs.proto.events import (
    EventDecoder,
    decode_event,
    encode_event,
    from_response,
    json_to_proto,
    proto_to_json,
    to_response,
    to_server_event,
    to_warning,
)
from tieline.codecs.proto.requests import (
    RequestDecoder,
    RequestEncoder,
    decode_request,
    encode_request,
    from_create,
    request_to_json,
    request_to_proto,
    to_create,
)
from tieline.codecs.proto.schema import ITEM
from tieline.items import Item
from tieline.v1 import items_pb2

__all__ = [
    "EventDecoder",
    "EventEncoder",
    "RequestDecoder",
    "RequestEncoder",
    "decode_event",
    "decode_request",
    "encode_event",
    "encode_request",
    "error_of_status",
    "error_status",
    "from_create",
    "from_item",
    "from_response",
    "item_to_json",
    "item_to_proto",
    "json_to_proto",
    "proto_to_json",
    "request_to_json",
    "request_to_proto",
    "to_create",
    "to_item",
    "to_response",
    "to_server_event",
    "to_warning",
]


def to_item(item: Item) -> items_pb2.Item:
    """An item as a message, made of its bytes."""
    message = items_pb2.Item()
    ITEM.fill(message, item.raw)
    return message


def from_item(message: items_pb2.Item, *, param: str = "item") -> Item:
    """Reads an item; raises :class:`ApiError` (400) that names ``param`` as for one in JSON."""
    return items.decode(item_to_json(message, param=param), param=param)


def item_to_proto(raw: bytes, *, param: str = "item") -> items_pb2.Item:
    """An item from outside as a message, nothing lost; raises 400 ``invalid_json``."""
    check(raw, param=param)
    message = items_pb2.Item()
    ITEM.fill(message, raw)
    return message


def item_to_json(message: items_pb2.Item, *, param: str = "item") -> bytes:
    """An item as JSON text: of ``item_to_proto``, JSON equal to the original's."""
    return bytes(ITEM.read(message, param))
