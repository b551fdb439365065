"""Creates that run as warm-ups of the server: to count them, or for the chain that they make."""

import msgspec
from msgspec import UNSET

from tieline import events
from tieline.errors import ApiError
from tieline.requests import Create
from tieline.responses import Usage
from tieline_server.core.history.chain import ChainHead
from tieline_server.core.values import Principal
from tieline_server.runtime.connection_driver import ConnectionDriver
from tieline_server.runtime.services import INTERNAL, SERVER_ERROR, Services


async def prepare(
    services: Services, principal: Principal, create: Create, *, unanswered: bool = False
) -> tuple[Usage, ChainHead]:
    """Runs a create as a warm-up that leaves no trace; returns its usage and its chain.

    With ``unanswered`` calls may wait for their outputs. Raises :class:`ApiError` as the create
    would.
    """
    profile = msgspec.structs.replace(services.profile, warm_up=True, unanswered=unanswered)
    warm_up = msgspec.structs.replace(
        create,
        generate=False,
        store=False,
        stream_id=None,
        append=None,
        resumable=None,
        idempotency_key=None,
        background=None,
    )
    runtime = ConnectionDriver(
        services, transport=INTERNAL, authenticate=lambda: principal, profile=profile
    )
    try:
        runtime.receive(warm_up)
        runtime.half_close()
        while True:
            await runtime.wait()
            event = runtime.next_event()
            if isinstance(event, events.ErrorEvent):
                detail = event.error
                code = detail.code or "invalid_request"
                status = None if event.status is UNSET else event.status
                raise ApiError.of(code, detail.message, param=detail.param, status=status)
            if isinstance(event, events.ResponseCompleted):
                head = runtime.connection.memory.latest(None)
                assert head is not None
                return event.response.usage or Usage(), head
            if event is None and runtime.closed:
                raise ApiError.of("server_error", SERVER_ERROR)
    finally:
        await runtime.close()


async def count_input_tokens(services: Services, principal: Principal, create: Create) -> int:
    """Counts the input tokens of a create; raises :class:`ApiError` as the create would."""
    usage, _ = await prepare(services, principal, create)
    return usage.input_tokens
