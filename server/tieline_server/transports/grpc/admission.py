"""Admission of calls, decided when their headers come and before the library gathers a message.

The library gathers a message by itself: neither its bytes nor how fast they come can be seen
here. What bounds them is the number of open calls, each of which counts as one largest message.
So no handler is of the kind that is called with the whole request: each reads it itself, once
its call has a place, and for so long as a first message may take.
"""

import asyncio
from typing import Any, Final

import grpc

from tieline.errors import ApiError
from tieline_server.core.create.limits import Share
from tieline_server.runtime import Services
from tieline_server.transports.grpc.status import Behaviour, Call, Context
from tieline_server.transports.live_calls import LiveCalls

KEYLESS: Final = 64
"""Calls without a key, of health and reflection, that may wait for their messages at once."""

KEYLESS_OF_ADDRESS: Final = 8
"""Of these, how many of one address: the others' probes are answered all the same."""

NO_MESSAGE: Final = "The call ended without a message."


class Admission:
    """Gives calls their places. ``patience`` is how many seconds a first message may take."""

    def __init__(self, services: Services, live: LiveCalls, *, patience: float) -> None:
        self._services = services
        self._live = live
        self._patience = patience

    def connected(self, behaviour: Behaviour) -> Behaviour:
        """A behaviour that reads its messages itself, once its call has a place."""

        async def admitted(request: Any, context: Context, call: Call) -> bytes | None:
            with self._live.place(self._owner(call)):
                return await behaviour(request, context, call)

        return admitted

    def asked(self, behaviour: Behaviour, *, begins: bool = True) -> Behaviour:
        """A behaviour that is given the one message of its call, once that has a place.

        ``begins``: it may begin a turn, which a server that drains refuses.
        """

        async def admitted(_: Any, context: Context, call: Call) -> bytes | None:
            with self._live.place(self._owner(call), begins=begins):
                data = await first_message(context, patience=self._patience)
                return await behaviour(data, context, call)

        return admitted

    def _owner(self, call: Call) -> str:
        owner: str = self._services.keys.authenticate(call.authorization).owner
        return owner


async def first_message(context: Context, *, patience: float) -> bytes:
    """The message of a call; raises :class:`ApiError` 408 where it takes longer, 400 for none."""
    try:
        async with asyncio.timeout(patience):
            data = await context.read()
    except TimeoutError:
        raise late(patience) from None
    if not isinstance(data, bytes):
        raise ApiError.of("invalid_request", NO_MESSAGE)
    return data


def late(patience: float) -> ApiError:
    """What a call is answered with whose first message does not come."""
    return ApiError.of(
        "idle_timeout", f"The first message of a call is due within {patience:g} seconds."
    )


class KeylessCalls(grpc.aio.ServerInterceptor):
    """Bounds the calls without a key, of services that are the library's own, by address.

    ``served`` are the prefixes of methods that see to their places themselves. A call has its
    place until its first message has come: what it says after that is a matter of its service.
    """

    def __init__(self, served: tuple[str, ...], *, patience: float) -> None:
        self._served = served
        self._patience = patience
        self._share = Share(each=KEYLESS_OF_ADDRESS, total=KEYLESS)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The handler of a call whose headers have come, with a bound around it."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(self._served):
            return handler
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            bounded = self._bounded(handler.unary_unary)
            return grpc.stream_unary_rpc_method_handler(bounded, *codecs)
        if handler.unary_stream is not None:
            bounded = self._bounded(handler.unary_stream)
            return grpc.stream_stream_rpc_method_handler(bounded, *codecs)
        return handler

    def _bounded(self, behaviour: Any) -> Any:
        async def handle(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            address = context.peer().rpartition(":")[0]
            if not self._share.take(address):
                message = "Too many calls without a key are waiting for their message."
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
            try:
                async with asyncio.timeout(self._patience):
                    asked = await context.read()
            except TimeoutError:
                await context.abort(grpc.StatusCode.ABORTED, late(self._patience).message)
            finally:
                self._share.give_back(address)
            if asked is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_MESSAGE)
            return await behaviour(asked, context)

        return handle
