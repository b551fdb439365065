"""Responses in the background: the caller hears that they last, and need not stay."""

from msgspec import structs

from tieline import events
from tieline.requests import Create
from tieline.responses import Response
from tieline_server.core.profile import Profile
from tieline_server.core.values import Principal
from tieline_server.runtime import Services, lasts
from tieline_server.transports.answers import (
    Answer,
    error_of,
    internal_error,
    next_event,
    warnings_of,
)
from tieline_server.transports.calls import LiveConnection
from tieline_server.transports.stored import find


def profile_for(services: Services, create: Create) -> Profile:
    """The server's profile, for a call that may be in the background: a connection may not be."""
    profile = services.profile
    return structs.replace(profile, background=True) if create.background else profile


async def first_event(
    services: Services, live: LiveConnection, principal: Principal, create: Create
) -> events.Event:
    """The first event of the response; one in the background lasts before anybody hears of it.

    Raises what refuses it.
    """
    first = await _first(live)
    if create.background and isinstance(first, events.LifecycleEvent):
        await _lasting(services, principal.owner, first.response)
    return first


async def acknowledged(services: Services, live: LiveConnection, principal: Principal) -> Answer:
    """The response in the background as it stands: queued, or later where a key replays it."""
    first = await _first(live)
    assert isinstance(first, events.LifecycleEvent), "a response begins with its own"
    response, owner = first.response, principal.owner
    fresh = live.connection.runs(response.id or "")
    await _lasting(services, owner, response)
    now = response if fresh else await find(services, owner, response.id or "")
    return Answer(now, warnings=warnings_of(first))


async def _first(live: LiveConnection) -> events.Event:
    first = await next_event(live)
    while isinstance(first, events.SessionStarted):
        first = await next_event(live)
    if isinstance(first, events.ErrorEvent):
        raise error_of(first)
    return first


async def _lasting(services: Services, owner: str, response: Response) -> None:
    response_id = response.id or ""
    kept = services.running.kept.find(owner, response_id)
    if kept is not None and not await lasts(kept):
        services.running.cancel(owner, response_id)
        raise internal_error()
