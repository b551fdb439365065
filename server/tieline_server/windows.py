"""The window that stands for a longer history: ``POST /v1/responses/compact``, ``CompactResponse``.

User messages stay; one compaction item behind them holds, sealed, what else is needed
to go on. The client carries it: nothing is kept here, and the window is the input of a new chain
on any transport (wire.md 5.10).
"""

import asyncio
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from tieline import ids, items
from tieline.errors import ApiError
from tieline.items import Item, Message
from tieline.requests import Create
from tieline.responses import Usage
from tieline_server.core import compaction, sealed
from tieline_server.core.compaction import TAIL, Plan
from tieline_server.core.deltas import Finish, UsageCounter
from tieline_server.core.effects import Prompt
from tieline_server.core.history import ChainNode
from tieline_server.core.settings import Settings
from tieline_server.core.values import Outcome, Principal, Times, TurnRecord, Work
from tieline_server.runtime import Services, prepare
from tieline_server.summaries import SUMMARY, longest_of, summarise

_members: Final = msgspec.json.Decoder(dict[str, Raw])


class Compacted(Struct, frozen=True, kw_only=True):
    """A window: the input of a new chain, unchanged, before its new items."""

    id: str
    created_at: int
    output: list[Item]
    usage: Usage


async def compact(
    services: Services, principal: Principal, create: Create, *, transport: str
) -> Compacted:
    """Compacts a chain or an input; raises :class:`ApiError` as its create would.

    It is booked once, as what it used: with ``summary`` what the model read and wrote, else the
    input that was read.
    """
    _check(create)
    usage, tip = await prepare(services, principal, create, unanswered=True)
    assert isinstance(tip.settings, Settings)
    job = _Job(services, principal, transport, tip.settings, usage)
    return await job.run(tip.segment.context())


def _check(create: Create) -> None:
    missing = None
    if create.model is None:
        missing = "model"
    elif create.input is UNSET and create.previous_response_id is None:
        missing = "input"
    if missing is not None:
        raise ApiError.of(
            "missing_required_parameter", f"Missing required parameter: '{missing}'.", param=missing
        )


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
        """Makes the window, and books it however it ends."""
        outcome: Outcome = "failed"
        error: ApiError | None = None
        try:
            window = self._window(await self._kept(context))
            outcome = "completed"
        except ApiError as raised:
            error = raised
            raise
        except asyncio.CancelledError:
            outcome = "disconnected"
            raise
        finally:
            self._book(outcome, error)
        return window

    async def _kept(self, context: tuple[Item, ...]) -> tuple[Item, ...]:
        if self._services.compaction == SUMMARY:
            lean = compaction.plan(context, room=0)
            if lean.folded:
                text = await self._summary(context, most=longest_of(lean))
                if lean.gains_by(text):
                    return lean.with_summary(text)
        chosen: Plan = compaction.plan(context, room=TAIL)
        return chosen.kept

    async def _summary(self, context: tuple[Item, ...], *, most: int) -> str:
        """What the model says about a context that may still have open calls."""
        resolved = self._services.catalog.resolve(self._settings.model)
        assert resolved is not None
        told = compaction.without_open_calls(context)
        prompt = Prompt(
            response_id=self._id,
            model=resolved.served,
            tip=ChainNode(None, told, turn=1),
            settings=self._settings,
            session=self._id,
            owner=self._principal.owner,
            max_output_tokens=None,
            work=Work(),
        )
        tally, finish = UsageCounter(), None
        engine = self._services.engines[resolved.engine]
        try:
            text, finish = await summarise(
                engine, prompt, most=most, listen=partial(compaction.count, tally)
            )
        finally:
            self._usage = tally.usage(finish or Finish())
        return text

    def _window(self, kept: tuple[Item, ...]) -> Compacted:
        users, rest = compaction.window_of(kept)
        seal = partial(self._services.sealer.seal, self._principal.owner)
        item = sealed.history(rest, seal, item_id=self._services.ids.new(ids.COMPACTION))
        return Compacted(
            id=self._id,
            created_at=int(self._services.now()),
            output=[*(self._whole(user) for user in users), item],
            usage=self._usage,
        )

    def _whole(self, user: Item) -> Item:
        """A user message with all members of an output item: a client may have left some out."""
        members: dict[str, Any] = dict(_members.decode(user.raw))
        head = {"type": "message", "id": user.id or self._services.ids.new(ids.MESSAGE)}
        view = user.view
        if isinstance(view, Message) and isinstance(view.content, str):
            members["content"] = [{"type": "input_text", "text": view.content}]
        return items.decode(msgspec.json.encode({**members, **head, "status": "completed"}))

    def _book(self, outcome: Outcome, error: ApiError | None) -> None:
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
        services.book(record, self._transport)
