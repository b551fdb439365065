"""A real gRPC server whose answers a test writes: one coroutine plays the server's side."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
from msgspec import UNSET, Raw

from tieline import events, requests
from tieline.codecs import proto
from tieline.errors import ApiError
from tieline.events import Event
from tieline.items import FunctionCall, Message, encode
from tieline.requests import Request
from tieline.responses import Response, ResponseError, Usage
from tieline.v1 import service_pb2

R = TypeVar("R", bound=Request)


class Peer:
    """The server's side of one ``Converse`` stream."""

    def __init__(self, context: Any) -> None:
        self.context = context

    async def receive(self) -> Request | None:
        """The next request, whatever it is; None when the client has half-closed or is gone."""
        message = await self.context.read()
        return None if message is grpc.aio.EOF else proto.decode_request(message)

    async def read(self, kind: type[R]) -> R:
        """The next request of this class; session starts and heartbeats are passed over."""
        while True:
            request = await self.receive()
            if isinstance(request, kind):
                return request
            assert isinstance(request, requests.SessionStart | requests.ClientHeartbeat), request

    async def create(self) -> requests.Create:
        """The next create."""
        return await self.read(requests.Create)

    async def send(self, *sent: Event) -> None:
        """These events in one message."""
        events = [proto.to_server_event(event) for event in sent]
        message = service_pb2.ConverseResponse(events=events)
        await self.context.write(message)

    async def abort(self, error: ApiError) -> None:
        """Ends the stream with a status that states this error."""
        await self.context.abort_with_status(_Status(proto.error_status(error)))

    async def gone(self) -> None:
        """Waits until the client has gone."""
        while await self.receive() is not None:
            pass


class _Status(grpc.Status):
    def __init__(self, status: Any) -> None:
        codes = {code.value[0]: code for code in grpc.StatusCode}
        self.code = codes[status.code]
        self.details = status.message
        self.trailing_metadata = (("grpc-status-details-bin", status.SerializeToString()),)


Script = Callable[[Peer], Awaitable[None]]


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, script: Script) -> None:
        self._script = script

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/tieline.v1.ResponsesService/Converse":
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._connect,
            request_deserializer=service_pb2.ConverseRequest.FromString,
            response_serializer=service_pb2.ConverseResponse.SerializeToString,
        )

    async def _connect(self, _: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await self._script(Peer(context))


@asynccontextmanager
async def serving(
    script: Script, *, credentials: grpc.ServerCredentials | None = None, port: int = 0
) -> AsyncIterator[str]:
    """Serves the script, once for each connection, while the body runs; yields the address."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(script),))
    address = f"127.0.0.1:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield f"localhost:{port}" if credentials else f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class Speaker:
    """Numbers the events of one response and keeps its output."""

    def __init__(self, create: requests.Create | requests.Append, response_id: str = "r1") -> None:
        self.create = create
        self.id = response_id
        self.output: list[Raw] = []
        self._count = 0

    def event(self, kind: type[Event], **members: Any) -> Event:
        if self.create.stream_id is not None:
            members["stream_id"] = self.create.stream_id
        self._count += 1
        return kind(sequence_number=self._count - 1, **members)

    def snapshot(self, status: str, **members: Any) -> Response:
        return Response(id=self.id, status=status, model="m", output=list(self.output), **members)

    def created(self, *, echo: bool = True) -> Event:
        members = {"event_id": self.create.event_id} if echo and self.create.event_id else {}
        snapshot = self.snapshot("in_progress")
        return self.event(events.ResponseCreated, response=snapshot, **members)

    def open_text(self) -> list[Event]:
        """The events before a message's first delta."""
        item = Raw(encode(Message(role="assistant", content=[], id=self.item_id)).raw)
        part = Raw(b'{"type":"output_text","text":"","annotations":[]}')
        at = {"item_id": self.item_id, "output_index": len(self.output), "content_index": 0}
        return [
            self.event(events.OutputItemAdded, output_index=len(self.output), item=item),
            self.event(events.ContentPartAdded, part=part, **at),
        ]

    @property
    def item_id(self) -> str:
        return f"{self.id}_item_{len(self.output)}"

    def delta(self, text: str) -> Event:
        at = {"item_id": self.item_id, "output_index": len(self.output), "content_index": 0}
        return self.event(events.OutputTextDelta, delta=text, **at)

    def close_text(self, text: str) -> list[Event]:
        """The events after a message's last delta."""
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        raw = Raw(msgspec.json.encode(part))
        message = Message(role="assistant", content=[raw], id=self.item_id, status="completed")
        item = Raw(encode(message).raw)
        index = len(self.output)
        at = {"item_id": self.item_id, "output_index": index, "content_index": 0}
        said = [
            self.event(events.OutputTextDone, text=text, **at),
            self.event(events.ContentPartDone, part=raw, **at),
            self.event(events.OutputItemDone, output_index=index, item=item),
        ]
        self.output.append(item)
        return said

    def text(self, *pieces: str) -> list[Event]:
        """A whole message."""
        opened = self.open_text()
        deltas = [self.delta(piece) for piece in pieces]
        return [*opened, *deltas, *self.close_text("".join(pieces))]

    def call(self, name: str, arguments: str, call_id: str) -> list[Event]:
        """A whole function call."""
        call = FunctionCall(call_id=call_id, name=name, id=self.item_id, status="in_progress")
        index = len(self.output)
        at = {"item_id": self.item_id, "output_index": index}
        added = Raw(encode(call).raw)
        whole = FunctionCall(
            call_id=call_id, name=name, arguments=arguments, id=self.item_id, status="completed"
        )
        item = Raw(encode(whole).raw)
        said = [
            self.event(events.OutputItemAdded, output_index=index, item=added),
            self.event(events.FunctionCallArgumentsDelta, delta=arguments, **at),
            self.event(events.FunctionCallArgumentsDone, arguments=arguments, **at),
            self.event(events.OutputItemDone, output_index=index, item=item),
        ]
        self.output.append(item)
        return said

    def done(self) -> Event:
        return self.event(events.ResponseDone, response=self.snapshot("in_progress"))

    def completed(self) -> Event:
        usage = Usage.of(input=3, cached=1, output=2, reasoning=0)
        snapshot = self.snapshot("completed", usage=usage)
        return self.event(events.ResponseCompleted, response=snapshot)

    def incomplete(self, status: str = "incomplete") -> Event:
        return self.event(events.ResponseIncomplete, response=self.snapshot(status))

    def failed(self, code: str, message: str) -> Event:
        error = ResponseError(code=code, message=message)
        return self.event(events.ResponseFailed, response=self.snapshot("failed", error=error))

    def answer(self, *pieces: str) -> list[Event]:
        """A whole response of one message."""
        return [self.created(), *self.text(*pieces), self.completed()]


def refusal(error: ApiError, event_id: str | None, stream_id: str | None = None) -> Event:
    """The event of a refused request."""
    detail = events.ErrorDetail(
        type=error.type,
        code=error.code,
        message=error.message,
        param=error.param,
        event_id=UNSET if event_id is None else event_id,
    )
    lane = UNSET if stream_id is None else stream_id
    return events.ErrorEvent(sequence_number=0, stream_id=lane, status=error.status, error=detail)


async def echoing(peer: Peer) -> None:
    """Answers every create with its own input."""
    count = 0
    while (request := await peer.receive()) is not None:
        if isinstance(request, requests.Create):
            count += 1
            text = bytes(request.input).decode() if isinstance(request.input, Raw) else ""
            await peer.send(*Speaker(request, f"r{count}").answer(text.strip('"')))
        if isinstance(request, requests.SessionEnd):
            return


async def forever(_: Peer) -> None:
    """Says nothing until it is cancelled."""
    await asyncio.Event().wait()
