"""Steers of one response: new user messages while it runs (wire.md 2.3).

An accepted steer acts at the end of the open item: the response ends and a successor with the
steer's messages starts by itself. If the response leaves tool calls open, the steer waits for
the create (or, in append shape, the append) that answers them, and joins it once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from tieline import events
from tieline.errors import ApiError
from tieline.items import CALL_KINDS, FunctionCall, Item, Message
from tieline.requests import Steer
from tieline_server.core.create.limits import Share
from tieline_server.core.create.settings import Settings
from tieline_server.core.history.holdings import LatestResponses
from tieline_server.core.history.input_items import read_input
from tieline_server.core.stream.outbox import Outbox
from tieline_server.core.values import Resolved

MESSAGE: Final = 256
"""Bytes, about, that a message takes beside its JSON."""


def read(steer: Steer) -> tuple[Item, ...]:
    """The user messages of a steer; raises :class:`ApiError` 400 ``invalid_input``."""
    if steer.input is UNSET:
        raise ApiError.of("invalid_input", "Missing required parameter: 'input'.", param="input")
    try:
        items = read_input(steer.input)
    except ApiError as error:
        # One code for all that can be wrong with a steer's messages, as in OpenAI's API.
        raise ApiError.of("invalid_input", error.message, param=error.param) from None
    if not items or not all(_is_user(item) for item in items):
        raise ApiError.of(
            "invalid_input", "A steer takes text or user messages only.", param="input"
        )
    return tuple(items)


def size(items: Iterable[Item]) -> int:
    """Bytes, about, that a steer's messages take."""
    return sum(len(item.raw) + MESSAGE for item in items)


def _is_user(item: Item) -> bool:
    return isinstance(item.view, Message) and item.view.role == "user"


def failed(steer: Steer, refusal: ApiError, *, stream_id: str | None) -> events.SteerFailed:
    """The event of a refused steer, which it echoes; it takes no number of the response's."""
    return events.SteerFailed(
        sequence_number=0,
        stream_id=UNSET if stream_id is None else stream_id,
        # Of one type whatever its code, as in OpenAI's API.
        error=events.ErrorDetail(
            code=refusal.code,
            message=refusal.message,
            param=refusal.param,
            event_id=UNSET if steer.event_id is None else steer.event_id,
        ),
        steer=events.SteerRef(
            previous_response_id=steer.previous_response_id or "", input=steer.input
        ),
    )


def no_target(steer: Steer, *, latest: LatestResponses) -> ApiError:
    """Why a steer that names no turn of the connection is refused."""
    named = steer.previous_response_id or ""
    if latest.find(named) is not None:
        return ApiError.of(
            "response_already_completed", f"Response '{named[:128]}' has already ended."
        )
    return ApiError.of("response_not_found", f"Response with id '{named[:128]}' not found.")


class Steers:
    """The steers that one response has accepted and not yet used; ``queued`` counts them."""

    __slots__ = ("_accepted", "_outbox", "_owner", "_queued", "_response_id")

    def __init__(self, response_id: str, outbox: Outbox, queued: Share, owner: str) -> None:
        self._response_id = response_id
        self._outbox = outbox
        self._queued = queued
        self._owner = owner
        self._accepted: list[tuple[events.SteerRef, tuple[Item, ...]]] = []

    def __len__(self) -> int:
        return len(self._accepted)

    @property
    def size(self) -> int:
        """Bytes, about, of all their messages."""
        return sum(size(own) for _, own in self._accepted)

    def admit(self, resolved: Resolved | None, settings: Settings | None, *, most: int) -> None:
        """Refuses one more that the response cannot take; raises :class:`ApiError` 400 or 429."""
        if resolved is not None and not resolved.steering:
            raise ApiError.of(
                "steering_not_supported",
                f"The model '{resolved.model}' does not support steering.",
            )
        if settings is not None and settings.compaction is not None:
            raise ApiError.of(
                "steering_not_supported",
                "A response with automatic compaction cannot be steered.",
            )
        if len(self) >= most:
            raise ApiError.of(
                "too_many_pending_steers",
                f"Response '{self._response_id}' already has {len(self)} pending steers.",
            )

    def accept(self, items: Sequence[Item], steer_id: str) -> None:
        """Takes a steer and says so."""
        taken = events.SteerRef(previous_response_id=self._response_id, id=steer_id)
        self._accepted.append((taken, tuple(items)))
        self._queued.add(self._owner, size(items))
        box = self._outbox
        box.push(
            events.SteerAccepted(sequence_number=box.count, stream_id=box.stream_id, steer=taken)
        )

    def take(self) -> list[Item]:
        """The messages of all accepted steers, in order; they are used now."""
        items = [item for _, own in self._accepted for item in own]
        self.drop()
        return items

    def drop(self) -> None:
        """Lets all of them go."""
        if self._accepted:
            self._queued.give_back(self._owner, self.size)
            self._accepted.clear()

    def conclude(self, *, goes_on: bool, open_calls: Mapping[str, Item]) -> None:
        """The response ended: tells the client which unused steers wait, and which are lost."""
        if not self._accepted:
            return
        box = self._outbox
        if goes_on and open_calls:
            required = [_stub(call_id, call) for call_id, call in open_calls.items()]
            for steer, _ in self._accepted:
                box.push(
                    events.SteerPending(
                        sequence_number=box.count,
                        stream_id=box.stream_id,
                        reason="waiting_for_required_input",
                        required_input=required,
                        steer=steer,
                    )
                )
        elif not goes_on:
            message = "The response did not end in a state that a steer can follow."
            for steer, _ in self._accepted:
                box.push(
                    events.SteerFailed(
                        sequence_number=box.count,
                        stream_id=box.stream_id,
                        error=events.ErrorDetail(code="successor_creation_failed", message=message),
                        steer=steer,
                    )
                )
            self.drop()


_APPROVAL: Final = "mcp_approval_request"


def _stub(call_id: str, call: Item) -> Raw:
    """What the client still owes for one open call."""
    stub: dict[str, str] = {"type": CALL_KINDS[call.type]}
    stub["approval_request_id" if call.type == _APPROVAL else "call_id"] = call_id
    if isinstance(call.view, FunctionCall):
        stub["name"] = call.view.name
    elif call.type == "tool_search_call":
        stub["execution"] = "client"
    return Raw(msgspec.json.encode(stub))
