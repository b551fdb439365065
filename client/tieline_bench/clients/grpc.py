"""A ``Converse`` stream by the library ``h2`` on a raw socket: one connection, one stream.

``h2`` does what happens once (settings, header compression, flow control of what we send). The
DATA frames that come are cut here: that is all a client must do for an event, and a tenth of
what ``h2`` would.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamReset, TrailersReceived
from h2.settings import SettingCodes, Settings

from tieline.codecs.proto.schema import EVENTS
from tieline.v1 import service_pb2
from tieline_bench.clients.base import LoadError, Seen, dial, some_bytes

WINDOW: Final = 2**31 - 1
"""Bytes that a server may send us in all: a benchmark stays below, so no window is ever opened."""

SERVICE: Final = service_pb2.DESCRIPTOR.services_by_name["ResponsesService"].full_name
STREAM: Final = 1
"""The id of the first stream that a client opens (RFC 9113 5.1.1)."""

_FRAME: Final = struct.Struct(">HBBBL")
_MESSAGE: Final = struct.Struct(">BL")
_DATA: Final = 0
_PADDED: Final = 0x8
_DELTAS: Final = frozenset({"output_text_delta", "function_call_arguments_delta"})
_TYPES: Final = {name: arm.type for name, arm in EVENTS.items()}


class GrpcConnection:
    """One connection with one stream of ``method``; see ``base.Connection``."""

    def __init__(self, address: str, *, api_key: str | None = None, method: str = "Converse"):
        self.recorded: bytearray | None = None
        self._socket = dial(address)
        self._h2 = H2Connection(H2Configuration(client_side=True))
        windows = {SettingCodes.INITIAL_WINDOW_SIZE: WINDOW, SettingCodes.ENABLE_PUSH: 0}
        self._h2.local_settings = Settings(client=True, initial_values=windows)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW - 65535)
        self._h2.send_headers(STREAM, _headers(address, method, api_key))
        self._flush()
        self._frames = bytearray()
        self._data = bytearray()

    def send(self, request: bytes) -> None:
        """Sends one message; waits for the peer's window where it is used up."""
        framed = memoryview(_MESSAGE.pack(0, len(request)) + request)
        while framed:
            room = self._h2.local_flow_control_window(STREAM)
            if room == 0:
                self._read()
                continue
            size = min(room, self._h2.max_outbound_frame_size, len(framed))
            self._h2.send_data(STREAM, bytes(framed[:size]))
            framed = framed[size:]
        self._flush()

    def messages(self) -> list[bytes]:
        """Waits for bytes and returns the messages that are whole now, perhaps none."""
        self._read()
        return self._cut_messages()

    def receive(self) -> Sequence[Seen]:
        """The events of :meth:`messages`."""
        found: list[Seen] = []
        for message in self.messages():
            if self.recorded is not None:
                self.recorded += message
            found += map(_seen, service_pb2.ConverseResponse.FromString(message).events)
        return found

    def split(self, recorded: bytes) -> list[bytes]:
        """Each event as a message of its own; such messages concatenate."""
        whole = service_pb2.ConverseResponse.FromString(recorded)
        return [service_pb2.ConverseResponse(events=[e]).SerializeToString() for e in whole.events]

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Drops the connection."""
        self._socket.close()

    def _read(self) -> None:
        frames = self._frames
        frames += some_bytes(self._socket)
        at = 0
        while len(frames) - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(frames, at)
            end = at + 9 + (high << 8 | low)
            if len(frames) < end:
                break
            if kind == _DATA and stream == STREAM:
                if flags & _PADDED:
                    raise LoadError("the server pads its frames")
                self._data += frames[at + 9 : end]
            else:
                self._heed(self._h2.receive_data(bytes(frames[at:end])))
            at = end
        del frames[:at]
        self._flush()

    def _cut_messages(self) -> list[bytes]:
        data, found, at = self._data, [], 0
        while len(data) - at >= 5:
            compressed, size = _MESSAGE.unpack_from(data, at)
            if compressed:
                raise LoadError("the server compresses its messages")
            end = at + 5 + size
            if len(data) < end:
                break
            found.append(bytes(data[at + 5 : end]))
            at = end
        del data[:at]
        return found

    def _heed(self, happened: Iterable[object]) -> None:
        """Ends with an error when the stream does: the client closes a benchmark's connections."""
        for event in happened:
            if isinstance(event, TrailersReceived):
                raise LoadError(f"the stream ended: {_status(event.headers)}")
            if isinstance(event, StreamReset):
                raise LoadError(f"the stream was reset: {event.error_code}")
            if isinstance(event, ResponseReceived) and event.stream_ended:
                raise LoadError(f"the call was refused: {_status(event.headers)}")

    def _flush(self) -> None:
        pending = self._h2.data_to_send()
        if pending:
            self._socket.sendall(pending)


def _headers(address: str, method: str, api_key: str | None) -> list[tuple[str, str]]:
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{SERVICE}/{method}"),
        (":authority", address),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    return headers + ([("authorization", f"Bearer {api_key}")] if api_key else [])


def _status(headers: Any) -> str:
    said = {_text(name): _text(value) for name, value in headers or ()}
    return f"{said.get('grpc-status')} {said.get('grpc-message', '')}".strip()


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _seen(event: Any) -> Seen:
    name = event.WhichOneof("event")
    inner = getattr(event, name)
    if name in _DELTAS:
        return Seen(_TYPES[name], delta=inner.delta)
    if name == "response_completed":
        return Seen(_TYPES[name], response_id=event.response.id)
    if name == "output_item_done":
        return Seen(_TYPES[name], call_id=inner.item.function_call.call_id)
    return Seen(_TYPES.get(name, name))
