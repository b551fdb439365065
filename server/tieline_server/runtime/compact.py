"""Compacts a chain or an input for a client, and books what that took."""

import asyncio
from functools import partial

from tieline import ids
from tieline.errors import ApiError
from tieline.items import Item
from tieline.requests import Create
from tieline.responses import Usage
from tieline_server.compaction.compacted_input import Compacted, check, kept_of, sealed_input
from tieline_server.compaction.summaries import SUMMARY, summarise
from tieline_server.core.create.settings import Settings
from tieline_server.core.deltas import Finish, UsageCounter
from tieline_server.core.effects import Prompt
from tieline_server.core.history import compaction
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Outcome, Principal, Times, TurnRecord, Work
from tieline_server.runtime.preparing import prepare
from tieline_server.runtime.services import Services


async def compact(
    services: Services, principal: Principal, create: Create, *, transport: str
) -> Compacted:
    """Compacts a chain or an input; raises :class:`ApiError` as its create would.

    It is booked once, as what it used: with ``summary`` what the model read and wrote, else the
    input that was read.
    """
    check(create)
    usage, head = await prepare(services, principal, create, unanswered=True)
    assert isinstance(head.settings, Settings)
    job = _Job(services, principal, transport, head.settings, usage)
    return await job.run(head.node.context())


class _Job:
    """One compaction, from its context to its row in the ledger."""

    def __init__(
        self,
        services: Services,
        principal: Principal,
        transport: str,
        settings: Settings,
        usage: Usage,
    ) -> None:
        self._services = services
        self._principal = principal
        self._transport = transport
        self._settings = settings
        self._usage = usage
        self._started = services.clock()
        self._id = services.ids.new(ids.RESPONSE)

    async def run(self, context: tuple[Item, ...]) -> Compacted:
        """Makes the compacted input, and books it however that ends."""
        outcome: Outcome = "failed"
        error: ApiError | None = None
        try:
            made = await self._make(context)
            outcome = "completed"
        except ApiError as raised:
            error = raised
            raise
        except asyncio.CancelledError:
            outcome = "disconnected"
            raise
        finally:
            self._record_usage(outcome, error)
        return made

    async def _make(self, context: tuple[Item, ...]) -> Compacted:
        services = self._services
        kept = await kept_of(context, self._summary if services.compaction == SUMMARY else None)
        seal = partial(services.sealer.seal, self._principal.owner)
        output = sealed_input(kept, seal=seal, new_id=services.ids.new)
        return Compacted(
            id=self._id, created_at=int(services.now()), output=output, usage=self._usage
        )

    async def _summary(self, context: tuple[Item, ...], most: int) -> str:
        """What the model says about a context that may still have open calls."""
        resolved = self._services.catalog.resolve(self._settings.model)
        assert resolved is not None
        told = compaction.without_open_calls(context)
        prompt = Prompt(
            response_id=self._id,
            model=resolved.served,
            chain=ChainNode(None, told, turn=1),
            settings=self._settings,
            session=self._id,
            owner=self._principal.owner,
            max_output_tokens=None,
            work=Work(),
        )
        counter, finish = UsageCounter(), None
        engine = self._services.engines[resolved.engine]
        try:
            text, finish = await summarise(
                engine, prompt, most=most, listen=partial(compaction.count, counter)
            )
        finally:
            self._usage = counter.usage(finish or Finish())
        return text

    def _record_usage(self, outcome: Outcome, error: ApiError | None) -> None:
        services = self._services
        now = services.clock()
        record = TurnRecord(
            response_id=self._id,
            previous_response_id=None,
            owner=self._principal.owner,
            model=self._settings.model,
            lane=None,
            outcome=outcome,
            kind="compaction",
            reason=None,
            error_code=error.code if error is not None else None,
            usage=self._usage,
            times=Times(
                started_at=self._started,
                ended_at=now,
                first_token_at=None,
                phases=lambda: {"total": round((now - self._started) * 1e6)},
            ),
            trace_context=None,
            caller=self._principal.caller,
            work=Work(),
            store=False,
            events=0,
        )
        services.observe(record, self._transport)
        services.record_usage(record, self._transport)
