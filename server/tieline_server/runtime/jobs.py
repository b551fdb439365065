"""The jobs of a turn: its key, the store, the engine. Each is a task of the turn's connection.

A turn may move to another connection while a job waits, and the job goes along: each asks the turn
for its connection whenever it has something to report.
"""

import asyncio
import logging
from functools import partial
from typing import Final

import msgspec

from tieline.errors import ApiError
from tieline_server.compaction import summaries
from tieline_server.core import effects
from tieline_server.core.deltas import Accepted, Finish
from tieline_server.core.effects import Load, Prompt, Sample, Save
from tieline_server.core.history import compaction
from tieline_server.core.turn.turn import Turn
from tieline_server.core.values import usage_record_of
from tieline_server.engines.base import Engine, EngineError
from tieline_server.runtime.driver import Driver
from tieline_server.runtime.services import INTERNAL, SERVER_ERROR, Services
from tieline_server.storage.base import Claim

logger: Final = logging.getLogger("tieline.runtime")


UNSTORED: Final = "The response could not be stored."

PAUSE: Final = 0.1
"""Seconds until a key is claimed again whose response was not found."""


def driver_of(services: Services, turn: Turn) -> Driver:
    """The driver of the connection that the turn is on now."""
    return services.running.drivers[turn.host.id]


def server_error() -> ApiError:
    """Returns the error that a client hears of a fault of ours."""
    return ApiError.of("server_error", SERVER_ERROR)


async def claim(services: Services, turn: Turn, effect: effects.Claim) -> None:
    """Claims an idempotency key for its turn."""
    wanted = Claim(
        owner=effect.owner,
        key=effect.key,
        body=effect.body,
        response_id=effect.turn,
        stored=effect.stored,
    )
    try:
        if effect.again:
            # Its holder may have taken it just now, and has nothing to show yet.
            await asyncio.sleep(PAUSE)
        held = await services.journal.claim(wanted)
    except Exception as error:
        told = _told(error, "journal.claim failed", turn)
        with driver_of(services, turn).reporting() as connection:
            connection.unclaimed(turn, told)
        return
    with driver_of(services, turn).reporting() as connection:
        connection.claimed(turn, held.response_id, same=held.body == wanted.body)


async def load(services: Services, turn: Turn, effect: Load) -> None:
    """Asks the store for what a turn continues."""
    store, owner = services.store, effect.owner
    saved, found = None, {}
    try:
        if effect.response_id is not None:
            saved = await store.get(owner, effect.response_id)
        for item_id in effect.item_ids:
            item = await store.item(owner, item_id)
            if item is not None:
                found[item_id] = item
    except Exception as error:
        told = _told(error, "store.load failed", turn)
        with driver_of(services, turn).reporting() as connection:
            connection.engine_failed(turn, told)
        return
    with driver_of(services, turn).reporting() as connection:
        connection.loaded(turn, saved, found)


async def save(services: Services, turn: Turn, effect: Save, *, transport: str) -> None:
    """Has a response stored, with its row of the ledger."""
    error: ApiError | None = None
    try:
        log = services.running.logs.find(effect.record.owner, turn.id)
        if log is not None and log.recorder is not None:
            await log.recorder.settle()
        usage_record = usage_record_of(
            effect.turn_record,
            transport,
            ended_at=services.now(),
            phases=services.ledger.keeps_phases,
        )
        await services.store.put(effect.record, usage_record)
    except Exception as failure:
        error = _told(failure, "store.put failed", turn, otherwise=UNSTORED)
    with driver_of(services, turn).reporting() as connection:
        connection.saved(turn, error)


def _told(failure: Exception, event: str, turn: Turn, *, otherwise: str = SERVER_ERROR) -> ApiError:
    """What a client hears of a failure: one that is an answer itself, or a text of ours."""
    if isinstance(failure, ApiError):
        # In the frames that it was raised in is all of the turn. What it tells is logged already.
        return failure.bare()
    logger.error(event, exc_info=failure, extra={"response_id": turn.id})
    return ApiError.of("server_error", otherwise)


async def sample(services: Services, turn: Turn, effect: Sample) -> None:
    """Samples a turn, to its end or until it is stopped."""
    try:
        if turn.stores and not turn.running:
            # The end of what is sampled now could not be kept.
            services.check_storage()
        await _pump(services, turn, services.engines[effect.engine], effect.prompt)
    except ApiError as error:
        _fail(services, turn, error)
    except Exception:
        logger.exception("engine failed", extra={"response_id": turn.id})
        _fail(services, turn, server_error())


async def _pump(services: Services, turn: Turn, engine: Engine, prompt: Prompt) -> None:
    settings = prompt.settings
    # A warm-up is sampled too: its engine prepares what it can, and says nothing (wire.md 3.2.10).
    # Of one of the server's own only the count is wanted, and a history is folded where it is used.
    internal = driver_of(services, turn).transport == INTERNAL
    if not settings.generate and (internal or settings.compaction is not None):
        counted = Accepted(input_tokens=await engine.count(prompt))
        driver_of(services, turn).feed(turn, [counted, Finish(output_tokens=0)])
        return
    if settings.compaction is not None:
        prompt = await _fold(services, turn, engine, prompt)
    most = services.limits.outbox
    drivers = services.running.drivers
    steps = engine.sample(prompt)
    try:
        async for step in steps:
            drivers[turn.host.id].feed(turn, step)
            if not turn.placed:
                return
            if turn.outbox.crowd >= most:
                await space(services, turn, most)
    finally:
        await steps.aclose()
    raise server_error()


async def _fold(services: Services, turn: Turn, engine: Engine, prompt: Prompt) -> Prompt:
    """The prompt, with its history folded away where that has become too long."""
    listen = partial(compaction.count, turn.usage_counter)
    fold = await summaries.fold(engine, prompt, mode=services.compaction, listen=listen)
    if fold is None:
        return prompt
    with driver_of(services, turn).reporting() as connection:
        connection.folded(turn, fold)
    assert turn.node is not None
    return msgspec.structs.replace(prompt, chain=turn.node)


async def space(services: Services, turn: Turn, most: int) -> None:
    """The reader is slow: who speaks waits, nothing is dropped."""
    while turn.outbox.crowd >= most:
        await driver_of(services, turn).events_taken()


def _fail(services: Services, turn: Turn, error: ApiError) -> None:
    driver = driver_of(services, turn)
    if driver.speaks(turn, asyncio.current_task()):
        # Otherwise it was stopped, or its turn samples anew after its outputs came.
        if isinstance(error, EngineError):
            for name, microseconds in (error.phases or {}).items():
                turn.timestamps.add(name, microseconds)
        with driver.reporting() as connection:
            connection.engine_failed(turn, error)
