"""The messages between workers: calls, answers, and the JSON of events and responses."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, structs

from tieline import responses
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import Event, RequestRefused
from tieline.responses import Response
from tieline_server.core.values import Principal
from tieline_server.workers.framing import Decoder

BATCH: Final = 64 * 1024
"""Bytes of events past which a message ends and another one begins."""

HEARTBEAT: Final = 5.0
"""Seconds of silence on a stream after which its sender says that it lives."""


class Cancel(Struct, frozen=True, tag=True):
    """See ``Peer.cancel``; answered by :class:`Answer`."""

    owner: str
    response_id: str


class Look(Struct, frozen=True, tag=True):
    """See ``Peer.look``; answered by :class:`Answer`."""

    owner: str
    response_id: str


class Forget(Struct, frozen=True, tag=True):
    """See ``Peer.forget``; answered by :class:`Answer`."""

    owner: str
    response_id: str


class Metrics(Struct, frozen=True, tag=True):
    """See ``Peer.metrics``; answered by :class:`Answer`."""


class Follow(Struct, frozen=True, tag=True):
    """See ``Peer.follow``; answered by a stream of :class:`Batch`."""

    owner: str
    response_id: str
    after: int | None


class ClientEvent(Struct, frozen=True, tag=True):
    """A client event, and the principal that sent it."""

    request: bytes
    owner: str
    models: tuple[str, ...] | None


class Resume(Struct, frozen=True, tag=True):
    """See ``Peer.resume``; answered by :class:`Moved`, then a stream.

    Each :class:`ClientEvent` of the lane follows it.
    """

    first: ClientEvent
    transport: str


class Answer(Struct, frozen=True, tag=True):
    """The answer to a call."""

    body: bytes | None = None


class Moved(Struct, frozen=True, tag=True):
    """The turn has moved."""


class Batch(Struct, frozen=True, tag=True):
    """Events of a stream."""

    events: list[bytes]
    refusals: list[int] = []
    """Which of them are a :class:`RequestRefused`, by their place: JSON does not tell."""


class Heartbeat(Struct, frozen=True, tag=True):
    """The stream is silent and alive."""


class Ended(Struct, frozen=True, tag=True):
    """The stream is over."""


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    """A call, or a stream, ends with an error."""

    code: str
    message: str
    param: str | None
    status: int
    error_type: str
    retry_after: float | None


Call = Cancel | Look | Forget | Metrics
ASKED: Final = Decoder(Call | Follow | Resume)
SAID: Final = Decoder(ClientEvent)
ANSWERED: Final = Decoder(Answer | Moved | Batch | Heartbeat | Ended | Refused)


def refused(error: ApiError) -> Refused:
    """Encodes an error."""
    return Refused(
        code=error.code,
        message=error.message,
        param=error.param,
        status=error.status,
        error_type=error.type,
        retry_after=error.retry_after,
    )


def error_of(said: Refused) -> ApiError:
    """Decodes an error."""
    return ApiError.of(
        said.code,
        said.message,
        param=said.param,
        status=said.status,
        error_type=said.error_type,
        retry_after=said.retry_after,
    )


def answer_of(response: Response | None) -> Answer:
    """Encodes a response."""
    return Answer(None if response is None else responses.encode(response))


def principal_of(said: ClientEvent) -> Principal:
    """Returns the principal that sent a client event."""
    models = None if said.models is None else frozenset(said.models)
    return Principal(owner=said.owner, models=models)


def batches(events: Iterable[Event]) -> Iterator[Batch]:
    """Encodes events in messages of a bounded size; a large event goes alone."""
    some: list[bytes] = []
    refusals: list[int] = []
    size = 0
    for event in events:
        raw = json.encode(event)
        if some and size + len(raw) > BATCH:
            yield Batch(some, refusals)
            some, refusals, size = [], [], 0
        if isinstance(event, RequestRefused):
            refusals.append(len(some))
        some.append(raw)
        size += len(raw)
    if some:
        yield Batch(some, refusals)


def events_in(batch: Batch) -> list[Event]:
    """Decodes the events of a message; raises :class:`ApiError` for what is none."""
    events = [json.decode_event(raw) for raw in batch.events]
    for index in batch.refusals:
        events[index] = RequestRefused(**structs.asdict(events[index]))
    return events
