"""A raw client of one Converse stream: protos or plain bytes out, single events in."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.rpc import status_pb2

from tests.support.signal import PATIENCE
from tieline.codecs.proto import error_of_status
from tieline.errors import ApiError
from tieline.v1 import events_pb2, items_pb2, requests_pb2, service_pb2

CONNECT: Final = "/tieline.v1.ResponsesService/Converse"


def create(text: str = "hi", **members: Any) -> service_pb2.ConverseRequest:
    """A create with one user message; ``stream_id`` and ``event_id`` go on the envelope."""
    envelope = {
        name: members.pop(name)
        for name in ("stream_id", "event_id", "trace_context")
        if name in members
    }
    body = requests_pb2.ResponseCreate(**{"input_text": text, "store": False, **members})
    return service_pb2.ConverseRequest(response_create=body, **envelope)


def output(call_id: str, text: str) -> items_pb2.ItemList:
    """One function call output as an input."""
    item = items_pb2.FunctionCallOutput(call_id=call_id, text=text)
    return items_pb2.ItemList(items=[items_pb2.Item(function_call_output=item)])


def kind(event: events_pb2.ServerEvent) -> str:
    """The name of the event's arm."""
    return event.WhichOneof("event") or ""


class RawConnection:
    """One Converse stream over a channel of its own, without our client and without its help."""

    def __init__(
        self,
        port: int,
        *,
        options: Sequence[tuple[str, Any]] = (),
        metadata: Sequence[tuple[str, str]] = (),
        credentials: grpc.ChannelCredentials | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        target = f"{host}:{port}"
        # A subchannel of one's own: no other test's connection is found again.
        options = [("grpc.use_local_subchannel_pool", 1), *options]
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self.channel = grpc.aio.secure_channel(target, credentials, options=options)
        self.call: Any = self.channel.stream_stream(CONNECT)(metadata=tuple(metadata))
        self._events: deque[events_pb2.ServerEvent] = deque()
        self.messages = 0
        """ConnectResponses read."""
        self.largest = 0
        """Bytes of the largest of them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call.cancel()
        await self.channel.close()

    async def send(self, message: service_pb2.ConverseRequest | bytes) -> None:
        """Writes one message; bytes go as they are."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        await asyncio.wait_for(self.call.write(data), PATIENCE)

    async def half_close(self) -> None:
        """Says that nothing more will come."""
        await self.call.done_writing()

    async def next(self) -> events_pb2.ServerEvent | None:
        """The next event, or None when the stream has ended with OK.

        Raises :class:`grpc.aio.AioRpcError` when it ended otherwise.
        """
        while not self._events:
            data = await asyncio.wait_for(self.call.read(), PATIENCE)
            if data is grpc.aio.EOF:
                return None
            self.messages += 1
            self.largest = max(self.largest, len(data))
            self._events.extend(service_pb2.ConverseResponse.FromString(data).events)
        return self._events.popleft()

    async def until(
        self, wanted: str | Callable[[events_pb2.ServerEvent], bool]
    ) -> list[events_pb2.ServerEvent]:
        """Events up to and with the first of this arm, or that fulfils the condition."""
        seen: list[events_pb2.ServerEvent] = []
        while (event := await self.next()) is not None:
            seen.append(event)
            if kind(event) == wanted if isinstance(wanted, str) else wanted(event):
                return seen
        raise AssertionError(f"ended before {wanted}: {[kind(event) for event in seen]}")

    async def rest(self) -> list[events_pb2.ServerEvent]:
        """Every event until the stream has ended with OK."""
        seen: list[events_pb2.ServerEvent] = []
        while (event := await self.next()) is not None:
            seen.append(event)
        return seen

    async def status(self) -> tuple[grpc.StatusCode, ApiError | None]:
        """How the stream ended: its code, and its error where there is one."""
        code = await asyncio.wait_for(self.call.code(), PATIENCE)
        return code, status_error(await self.call.trailing_metadata())

    async def turn(self, message: service_pb2.ConverseRequest) -> list[events_pb2.ServerEvent]:
        """Sends a create and reads to its end."""
        await self.send(message)
        return await self.until("response_completed")


def status_error(trailing: Any) -> ApiError | None:
    """The error in a status's details, or None."""
    details = dict(trailing or ()).get("grpc-status-details-bin")
    return None if details is None else error_of_status(status_pb2.Status.FromString(details))
