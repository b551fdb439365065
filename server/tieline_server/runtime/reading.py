"""Events of a response for its readers: from memory, from a peer, from the store."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from tieline.codecs.json import decode_event
from tieline.errors import ApiError
from tieline.events import Event
from tieline.requests import Resume
from tieline.responses import Response
from tieline_server.core.connection.refusals import error_event
from tieline_server.core.create.idempotency import key_digest
from tieline_server.core.effects import Follow
from tieline_server.core.history.chain import Saved
from tieline_server.core.stream.replay_log import EventLog
from tieline_server.core.turn.finish import terminal_event
from tieline_server.core.turn.follow import relaned
from tieline_server.core.turn.turn import Turn
from tieline_server.peers import Peer, RemoteLane
from tieline_server.runtime.forwarded_lane import ForwardedLane
from tieline_server.runtime.jobs import driver_of, server_error, space
from tieline_server.runtime.services import Services
from tieline_server.storage.base import Cancellation, Claim, RunningResponse

logger: Final = logging.getLogger("tieline.runtime")

BATCH: Final = 256
"""Events handed over at once."""

CONTINUABLE: Final = frozenset({"completed", "incomplete", "cancelled"})
"""How a response ends that can be continued."""

LAST: Final = 2**31 - 1
"""No response has so many events: a number behind it is read as this one."""

POLL: Final = 0.1
"""Seconds between two looks at a response that runs in a process that cannot be asked."""


def not_found(response_id: str) -> ApiError:
    """No such response, or another owner's: the two look alike."""
    return ApiError.of("response_not_found", f"Response with id '{response_id[:128]}' not found.")


def not_resumable(response_id: str) -> ApiError:
    """A response of the owner's whose events are not kept, or no longer."""
    return ApiError.of(
        "not_resumable",
        f"The events of response '{response_id[:128]}' are not kept. They are for responses created"
        " with 'resumable', 'idempotency_key' or 'background', within the bounds of the server.",
        param="response_id",
    )


async def follow(services: Services, reader: Turn, effect: Follow) -> None:
    """The job of a turn that reads another response, or has it moved to its lane."""
    try:
        if effect.moves:
            await _room(services, reader)
            if _take_over(services, reader, effect):
                return
        peer = services.peers.peer_of(effect.response_id) if effect.moves else None
        if peer is not None and await _forwarded(services, reader, effect, peer):
            return
        await _read(services, reader, effect)
    except ApiError as error:
        _lose(services, reader, error)
    except Exception:
        logger.exception("a response could not be read", extra={"response_id": reader.id})
        _lose(services, reader, server_error())


async def _room(services: Services, reader: Turn) -> None:
    """Waits until the connection has sent what it had: what a lane has missed comes at once."""
    most = services.limits.outbox
    while driver_of(services, reader).connection.outgoing.waiting >= most:
        await driver_of(services, reader).events_taken()


def _lose(services: Services, reader: Turn, error: ApiError) -> None:
    with driver_of(services, reader).reporting() as connection:
        connection.lost(reader, error)


def _take_over(services: Services, reader: Turn, effect: Follow) -> bool:
    """Moves a turn that runs in this process; False where none does."""
    log = services.running.logs.find(reader.principal.owner, effect.response_id)
    if log is None or log.turn is None:
        return False
    if not log.whole:
        raise not_resumable(effect.response_id)
    source = services.running.drivers[log.turn.connection_id]
    target = driver_of(services, reader)
    with source.reporting() as connection:
        turn = connection.give(effect.response_id)
        source.hand_jobs(turn, target)
        with target.reporting() as other:
            other.take(turn, reader, effect.after)
    return True


async def _forwarded(services: Services, reader: Turn, effect: Follow, peer: Peer) -> bool:
    """Forwards the lane to the turn's peer to the end; False where the peer has no such turn."""
    driver = driver_of(services, reader)
    resume = Resume(
        response_id=effect.response_id, after=effect.after, event_id=reader.request.event_id
    )
    try:
        remote = await peer.resume(resume, reader.principal, transport=driver.transport)
    except ApiError as error:
        if error.code != "response_not_found":
            raise
        return False
    await _relay(services, reader, remote)
    return True


async def _relay(services: Services, reader: Turn, remote: RemoteLane) -> None:
    """Relays a lane's events to their end; creates that the peer never answered run here."""
    driver = driver_of(services, reader)
    lane = ForwardedLane(remote, reader.id)
    driver.forward(reader.lane, lane)
    error: ApiError | None = None
    try:
        async with aclosing(remote.events()) as batches:
            async for batch in batches:
                lane.heard(batch)
                driver.connection.relayed(reader, batch)
                await space(services, reader, services.limits.outbox)
    except ApiError as lost:
        error = lost.bare()
    finally:
        driver.stop_forwarding(reader.lane)
        await remote.close()
    with driver.reporting() as connection:
        if error is not None:
            connection.lost(reader, error)
            for create, _ in lane.left():
                told = error_event(error, create.event_id, create.stream_id, begins=True)
                connection.outgoing.put(create.stream_id, told)
            return
        connection.followed(reader, None)
        # That connection closes when nothing runs: it has never begun what it did not answer.
        for create, principal in lane.left():
            connection.receive(create, principal)


async def _read(services: Services, reader: Turn, effect: Follow) -> None:
    owner = reader.principal.owner
    async with aclosing(events_of(services, owner, effect.response_id, effect.after)) as batches:
        async for batch in batches:
            driver_of(services, reader).connection.relayed(reader, batch)
            await space(services, reader, services.limits.outbox)
    log = services.running.logs.find(owner, effect.response_id) if effect.moves else None
    head = None if log is None else log.head
    if head is None and effect.moves:
        saved = await services.store.get(owner, effect.response_id)
        if saved is not None and saved.response.status in CONTINUABLE:
            head = saved.head
    with driver_of(services, reader).reporting() as connection:
        connection.followed(reader, head)
        if log is not None:
            services.running.logs.moved(log, connection.memory)


async def events_of(
    services: Services, owner: str, response_id: str, after: int | None
) -> AsyncGenerator[Sequence[Event], None]:
    """The events of a response with numbers > ``after``, to its terminal one. They name no lane.

    Raises :class:`ApiError`: ``response_not_found``, ``not_resumable``.
    """
    after = None if after is None else min(after, LAST)
    log = services.running.logs.find(owner, response_id)
    if log is not None:
        async with aclosing(read_log(log, after)) as batches:
            async for batch in batches:
                yield relaned(batch, None)
                after = batch[-1].sequence_number or 0
                if batch[-1].TERMINAL:
                    return
        # Its events had to go: from here on they are in the store, if anywhere.
        gone = services.running.logs.find(owner, response_id) is not log
        if log.turn is not None or not (log.stored or gone):
            raise not_resumable(response_id)
    peer = services.peers.peer_of(response_id)
    lost = not_found(response_id)
    if peer is not None:
        try:
            async with aclosing(peer.follow(owner, response_id, after=after)) as batches:
                async for batch in batches:
                    yield batch
                    if batch[-1].TERMINAL:
                        return
                    after = batch[-1].sequence_number or 0
        except ApiError as error:
            if error.code == "not_resumable":
                raise
            # It knows of none, or has died: what it wrote down says how that ended.
            lost = error
    try:
        async with aclosing(_stored(services, owner, response_id, after)) as batches:
            async for batch in batches:
                yield batch
    except ApiError as error:
        raise lost if error.code == "response_not_found" else error from None


async def read_log(log: EventLog, after: int | None) -> AsyncGenerator[Sequence[Event], None]:
    """The events of a log behind ``after``, as they come, until it has ended or is dropped."""
    arrived = asyncio.Event()
    log.listen(arrived.set)
    try:
        while log.whole:
            arrived.clear()
            batch = log.after(after, BATCH)
            if not batch:
                await arrived.wait()
                continue
            yield batch
            last = batch[-1]
            if last.TERMINAL:
                return
            after = last.sequence_number or 0
    finally:
        log.unlisten(arrived.set)


async def _stored(
    services: Services, owner: str, response_id: str, after: int | None
) -> AsyncGenerator[Sequence[Event], None]:
    """From the store; what still runs elsewhere is looked at again and again."""
    seen = -1 if after is None else after
    while True:
        # Asked before its events: what is written between the two questions is not missed.
        running = await services.journal.running(owner, response_id)
        raws = await services.journal.events(owner, response_id, after=seen, most=BATCH)
        if raws is None:
            if running is not None:
                raise not_resumable(response_id)
            break
        if raws:
            batch = [decode_event(raw) for raw in raws]
            seen = max(seen, batch[-1].sequence_number or 0)
            yield batch
        elif running is None:
            break
        else:
            await asyncio.sleep(POLL)
    saved = await services.store.get(owner, response_id)
    if saved is None:
        raise not_found(response_id)
    yield [_terminal(saved, seen)]


def _terminal(saved: Saved, seen: int) -> Event:
    """The end, for who has seen all before it; some of it may not have been written down."""
    if saved.terminal is None or saved.terminal > seen + 1:
        raise not_resumable(saved.response.id)
    return terminal_event(saved.response, saved.terminal)


def forget(services: Services, owner: str, response_id: str) -> None:
    """A response was deleted: this process knows it no more, and its key is free."""
    log = services.running.logs.find(owner, response_id)
    services.running.forget(owner, response_id)
    if log is not None and log.key is not None and log.turn is None:
        digest = key_digest(owner, log.key)
        claim = Claim(owner=owner, key=digest, body=b"", response_id=response_id, stored=log.stored)
        services.journal.expire(claim, at=None)


async def cancels(services: Services, owner: str, response_id: str) -> bool:
    """Cancels a response wherever it runs; says whether there is one, running or ended."""
    try:
        if await cancel(services, owner, response_id) is not None:
            return True
        return await services.store.get(owner, response_id) is not None
    except ApiError:
        return True  # It cannot be said now; the log has the reason.
    except Exception:
        logger.exception("a response could not be cancelled", extra={"response_id": response_id})
        return True


async def cancel(
    services: Services, owner: str, response_id: str
) -> Response | RunningResponse | None:
    """Cancels a response wherever it runs.

    In this process or in a peer it has then ended, and is returned as it ended; so is one
    that had ended there a short while ago. A :class:`RunningResponse` runs in a process that
    cannot be asked, for which word was left in the journal. None: no process runs it.
    """
    response = await services.running.end(owner, response_id)
    if response is not None:
        return response
    log = services.running.logs.find(owner, response_id)
    response = None if log is None else log.look()
    if response is None:
        response = await _cancel_at_peer(services, owner, response_id)
    if response is not None:
        return response
    begun = await services.journal.running(owner, response_id)
    if begun is not None:
        await services.journal.ask_cancel(Cancellation(owner=owner, response_id=response_id))
    return begun


async def _cancel_at_peer(services: Services, owner: str, response_id: str) -> Response | None:
    peer = services.peers.peer_of(response_id)
    if peer is None:
        return None
    try:
        return await peer.cancel(owner, response_id) or await peer.look(owner, response_id)
    except ApiError:
        # The journal tells what it has left.
        logger.warning("a peer did not answer", extra={"response_id": response_id})
        return None
