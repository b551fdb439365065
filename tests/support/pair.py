"""Both halves of a connection back to back: what one core says, byte for byte, the other hears.

:class:`Pair` joins the client's ``_connection.Connection`` to a server's under :class:`Lockstep`.
Between them lie only the bytes of a :class:`Wire`, in two queues that a test moves on when it
likes, so that requests and events can pass each other. For every event the pair knows whose it
is by the server's own books, and holds what the client makes of it against that.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from tests.support.core import LOCAL, MODEL, Lockstep, raw, user
from tieline import events
from tieline.codecs import json, proto
from tieline.errors import ApiError
from tieline.events import ErrorEvent, Event
from tieline.fold import Fold
from tieline.ids import is_stream_id
from tieline.requests import Append, Cancel, Create, Request, Steer
from tieline.responses import Response
from tieline.v1.service_pb2 import ConverseRequest, ConverseResponse
from tieline_client._asks import Ask, AskState, Verdict
from tieline_client._connection import Connection, Delivery
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Delta
from tieline_server.core.turn.turn import Turn

_STEER_EVENTS: Final = (events.SteerAccepted, events.SteerFailed, events.SteerPending)


def plain(value: Event | Response) -> Any:
    """What a value says as JSON, whatever the order and the spelling of its members."""
    text = json.encode(value) if isinstance(value, Event) else msgspec.json.encode(value)
    return msgspec.json.decode(text)


class Wire(Protocol):
    """One connection's codecs, both ends."""

    def say(self, request: Request) -> bytes:
        """The client writes."""
        ...

    def take(self, data: bytes) -> Request:
        """The server reads; raises :class:`ApiError`."""
        ...

    def echo(self, data: bytes) -> tuple[str | None, str | None]:
        """``event_id`` and ``stream_id`` of a request that could not be read."""
        ...

    def send(self, event: Event) -> bytes:
        """The server writes."""
        ...

    def hear(self, data: bytes) -> Event:
        """The client reads."""
        ...


class ProtoWire:
    """``tieline.v1``; each end remembers what comes again, and must say the same without."""

    def __init__(self) -> None:
        self.requests = proto.RequestEncoder()
        self.taken = proto.RequestDecoder()
        self.events = proto.EventEncoder()
        self.heard = proto.EventDecoder()

    def say(self, request: Request) -> bytes:
        data = self.requests.encode(request)
        assert ConverseRequest.FromString(data) == proto.encode_request(request)
        return data

    def take(self, data: bytes) -> Request:
        return self.taken.decode(ConverseRequest.FromString(data))

    def echo(self, data: bytes) -> tuple[str | None, str | None]:
        message = ConverseRequest.FromString(data)
        return message.event_id or None, message.stream_id or None

    def send(self, event: Event) -> bytes:
        return self.events.encode(event)

    def hear(self, data: bytes) -> Event:
        (message,) = ConverseResponse.FromString(data).events
        event = self.heard.decode(message)
        assert plain(event) == plain(proto.decode_event(message))
        return event


class BareProtoWire(ProtoWire):
    """As to a client that cannot take large events: responses come without their output."""

    def send(self, event: Event) -> bytes:
        omitted = event.TERMINAL or isinstance(event, events.ResponseDone)
        omitted = omitted and isinstance(event, events.LifecycleEvent)
        return self.events.encode(event, output_omitted=omitted)


class JsonWire:
    """JSON as OpenAI's API writes it."""

    def __init__(self) -> None:
        self.taken = json.RequestDecoder()

    def say(self, request: Request) -> bytes:
        return json.encode(request)

    def take(self, data: bytes) -> Request:
        return self.taken.decode(data)

    def echo(self, data: bytes) -> tuple[str | None, str | None]:
        members = json.members(data) or {}
        event_id, lane = (json.text_of(members.get(n)) for n in ("event_id", "stream_id"))
        return event_id or None, lane or None

    def send(self, event: Event) -> bytes:
        return json.encode(event)

    def hear(self, data: bytes) -> Event:
        return json.decode_event(data)


class Story:
    """What the client has seen of one ask, kept as a stream of the client keeps it."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.folds: dict[str, Fold] = {}
        """The responses of this ask, in order."""
        self.events: list[Event] = []
        self.end: str | None = None
        """One of ended, refused, lost; None before."""
        self.error: ErrorEvent | None = None
        """Why it was refused."""
        self.reports: list[str | None] = []
        """Codes of appends that were refused."""
        self.answered: set[str] = set()
        self.append_ids: list[str] = []
        self._sent: set[str] = set()

    @property
    def event_id(self) -> str:
        """The create's."""
        return self.ask.event_id

    @property
    def fold(self) -> Fold:
        """The latest response."""
        return list(self.folds.values())[-1]

    @property
    def state(self) -> AskState:
        """Where the ask is."""
        return self.ask.state

    @property
    def types(self) -> list[str]:
        """Types of its events, without ``response.`` before them."""
        return [event.type.removeprefix("response.") for event in self.events]

    @property
    def status(self) -> tuple[str | None, str | None]:
        """Status and incomplete reason of the latest response."""
        response = self.fold.response
        details = response.incomplete_details
        return response.status, details.reason if details else None

    def calls(self) -> list[dict[str, Any]]:
        """Calls that wait for an output, as far as the client knows."""
        items = [msgspec.json.decode(item) for item in self.fold.response.output]
        return [i for i in items if i.get("call_id", "") not in {"", *self.answered}]

    def outputs(self, text: str = "done") -> list[dict[str, Any]]:
        """An output for each of them."""
        return [
            {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": text}
            for call in self.calls()
        ]

    def answering(self, append_id: str, items: list[dict[str, Any]]) -> None:
        """An append is on its way."""
        self.append_ids.append(append_id)
        self._sent = {item["call_id"] for item in items if "call_id" in item}
        self.answered |= self._sent

    def take(self, delivery: Delivery) -> None:
        """One event of the ask."""
        event = delivery.event
        if delivery.verdict is Verdict.DROP:
            assert self.end is not None
            return
        assert self.end is None, f"{event} after the end"
        if delivery.verdict is Verdict.DELIVER:
            self._deliver(event)
        else:
            assert isinstance(event, ErrorEvent)
            self._refuse(delivery.verdict, event)
        if self.ask.ended and self.end is None:
            self.end = "ended"

    def _deliver(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, events.ResponseCreated):
            assert event.response.id not in self.folds
            self.folds[event.response.id] = Fold()
        if self.folds:
            self.fold.push(event)

    def _refuse(self, verdict: Verdict, event: ErrorEvent) -> None:
        if verdict is Verdict.REFUSE:
            self.end, self.error = "refused", event
            assert self.ask.ended
        else:
            assert verdict is Verdict.REPORT
            self.reports.append(event.error.code)
            self.answered -= self._sent

    def lose(self) -> None:
        """The connection is over."""
        assert self.end is None
        assert self.ask.ended
        self.end = "lost"


class _Server(Lockstep):
    """A lockstep connection that hands on what it reads, and says when there will be no more."""

    def __init__(self, sent: Callable[[Event | None], None], **options: Any) -> None:
        super().__init__(**options)
        self._sent = sent
        self.over = False

    def read(self) -> list[Event]:
        taken = []
        # One by one: the audit knows whose an event is only until it takes the next.
        while (event := self.connection.outgoing.next()) is not None:
            self.audit.take(event)
            self._sent(event)
            taken.append(event)
        if self.closed is not None and self.connection.outgoing.empty and not self.over:
            self.over = True
            self._sent(None)
        return taken


class Pair:
    """A client's core and a server's core, and what is on its way between them."""

    def __init__(
        self,
        wire: Wire,
        *,
        limits: Limits | None = None,
        merge: bool = False,
        store_answers: bool = True,
    ) -> None:
        self.wire = wire
        self.client = Connection()
        self.server = _Server(self._send, limits=limits, merge=merge, store_answers=store_answers)
        self.up: deque[bytes | None] = deque()
        """Requests on their way; None is the half-close."""
        self.down: deque[tuple[bytes, Event, str | None] | None] = deque()
        """Events on their way, the response they belong to beside them; None is the end."""
        self.stories: dict[str, Story] = {}
        """By the create's event_id, in the order of the creates."""
        self.line_events: list[Event] = []
        """What the client took for the connection's own."""
        self.taken: set[str] = set()
        """The event_id of each create that the server has read."""
        self.over = False
        """Whether the client has seen the end of the connection."""
        self.dropped = False
        self.half_closed = False
        self._told: Counter[str | None] = Counter()
        self._checked: set[str] = set()

    # What the client's user does.

    def create(
        self, *items: object, lane: str | None = None, now: bool = True, **members: Any
    ) -> Story:
        """A create; ``now`` moves everything on until nothing is on its way."""
        members = {"model": MODEL, "store": False, **members}
        given = [user(item) if isinstance(item, str) else item for item in items]
        return self._ask(Create(stream_id=lane, input=raw(given), **members), now=now)

    def go_on(self, text: str, *, lane: str | None = None, now: bool = True) -> Story:
        """An append to a lane that holds nothing: continues its latest response."""
        return self._ask(Append(stream_id=lane, input=raw([user(text)])), now=now)

    def _ask(self, request: Create | Append, *, now: bool) -> Story:
        ask = self.client.create(request.stream_id)
        story = self.stories[ask.event_id] = Story(ask)
        self._say(msgspec.structs.replace(request, event_id=ask.event_id), now=now)
        return story

    def answer(
        self, story: Story, *items: dict[str, Any], now: bool = True, text: str = "done"
    ) -> None:
        """The append that answers a held turn: with ``items``, or with all that it needs."""
        given = list(items) or story.outputs(text)
        ask = story.ask
        append_id = self.client.append(ask)
        story.answering(append_id, given)
        request = Append(
            event_id=append_id, stream_id=ask.lane, response_id=ask.response_id, input=raw(given)
        )
        self._say(request, now=now)

    def steer(self, story: Story, text: str = "shorter", *, now: bool = True) -> None:
        """A steer of the response that runs."""
        response_id = self.client.steer(story.ask)
        request = Steer(stream_id=story.ask.lane, previous_response_id=response_id, input=raw(text))
        self._say(request, now=now)

    def cancel(self, story: Story, *, now: bool = True) -> bool:
        """A cancel; False when there was nothing left to send."""
        ask = story.ask
        if not self.client.cancel(ask):
            return False
        waits = ask.response_id is None
        self._say(
            Cancel(
                event_id=ask.event_id if waits else None,
                stream_id=ask.lane,
                response_id=ask.response_id,
            ),
            now=now,
        )
        return True

    def half_close(self, *, now: bool = True) -> None:
        """The client has said all."""
        self.half_closed = True
        self.up.append(None)
        if now:
            self.settle()

    def speak(self, story: Story, *step: Delta) -> None:
        """The engine that samples the latest response of an ask says this, and all arrives."""
        self.server.say(self.turns_of(story)[-1].id, *step)
        self.settle()

    def drop(self) -> None:
        """The connection breaks: what was on its way never arrives."""
        self.dropped = True
        self.up.clear()
        self.down.clear()
        self.server.drop()
        self.down.clear()
        self._lose()

    def _say(self, request: Request, *, now: bool) -> None:
        assert not self.half_closed
        self.up.append(self.wire.say(request))
        if now:
            self.settle()

    # What the network does.

    def carry_up(self) -> None:
        """The next request arrives."""
        data = self.up.popleft()
        if data is None:
            self.server.half_close()
            return
        event_id, lane = self.wire.echo(data)
        self.taken |= {event_id} if event_id and not self.server.closed else set()
        try:
            request = self.wire.take(data)
        except ApiError as error:
            lane = lane if lane and is_stream_id(lane) else None
            self.server.connection.reject(error, event_id=event_id, stream_id=lane)
            self.server.settle()
            return
        self.server.receive(request, LOCAL)

    def carry_down(self) -> None:
        """The next event arrives, and the client's pairing is held against the server's books."""
        carried = self.down.popleft()
        if carried is None:
            self._lose()
            return
        data, sent, response_id = carried
        event = self.wire.hear(data)
        self._compare(sent, event)
        owner = self._owner(sent, response_id)
        ended = owner is None or owner.ask.ended
        delivery = self.client.receive(event)
        if delivery.ask is None:
            late = isinstance(event, (*_STEER_EVENTS, ErrorEvent)) and ended
            assert owner is None or late, (sent, owner.ask, response_id)
            self.line_events.append(event)
            return
        assert owner is not None, (sent, delivery.ask)
        assert delivery.ask is owner.ask, (sent, delivery.ask, owner.ask)
        owner.take(delivery)

    def settle(self) -> None:
        """Everything that is on its way arrives."""
        self.server.reading = True
        self.server.settle()
        while self.up or self.down:
            if self.up:
                self.carry_up()
            while self.down:
                self.carry_down()

    def _send(self, event: Event | None) -> None:
        if self.dropped:
            return
        if event is None:
            self.down.append(None)
            return
        self.down.append((self.wire.send(event), event, self._response_of(event)))

    def _lose(self) -> None:
        self.over = True
        for ask in self.client.lost():
            self.stories[ask.event_id].lose()
        assert self.client.pending == []

    def _compare(self, sent: Event, heard: Event) -> None:
        """What was heard is what was sent; a response may come without its output."""
        said, got = plain(sent), plain(heard)
        if isinstance(self.wire, BareProtoWire) and "response" in said:
            if got["response"]["output"] == []:
                said["response"]["output"] = []
            # What was left out is said beside the response, for those who only read.
            got.pop("output_omitted", None)
        assert got == said

    # Whose event it is, by the server's books.

    def _response_of(self, event: Event) -> str | None:
        """The response that an event belongs to; None for one of the connection or of a refusal."""
        lane = None if event.stream_id is UNSET else event.stream_id
        if isinstance(event, events.ResponseCreated):
            return event.response.id
        if event.sequence_number:
            return self.server.audit._current[lane]
        if isinstance(event, events.SteerFailed):
            return event.steer.previous_response_id
        if isinstance(event, ErrorEvent) and event.error.event_id is UNSET:
            return self._refused_successor(lane)
        return None

    def _refused_successor(self, lane: str | None) -> str | None:
        """The one error that names no request: a successor, which nobody sent, was refused."""
        refused = [
            turn.id
            for turn in self.server.turns.values()
            if turn.lane == lane and turn.status == "refused" and turn.request.event_id is None
        ]
        self._told[lane] += 1
        return refused[self._told[lane] - 1] if len(refused) >= self._told[lane] else None

    def _owner(self, event: Event, response_id: str | None) -> Story | None:
        named = event.error.event_id if isinstance(event, ErrorEvent) else UNSET
        if named is not UNSET:
            # It may take a number of a held response and yet answer another request.
            return self._by_event_id(named)
        return self.stories.get(self.root(response_id)) if response_id is not None else None

    def _by_event_id(self, event_id: str) -> Story | None:
        stories = self.stories.values()
        return next((s for s in stories if event_id in (s.event_id, *s.append_ids)), None)

    def root(self, response_id: str) -> str:
        """The event_id of the create or append that led to a response."""
        turn = self.server.turns[response_id]
        while turn.request.event_id is None:
            assert turn.request.previous_response_id is not None
            turn = self.server.turns[turn.request.previous_response_id]
        return turn.request.event_id

    # What must agree.

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not self.up and not self.down and self.server.connection.outgoing.empty

    def turns_of(self, story: Story) -> list[Turn]:
        """The server's turns that an ask led to, in order."""
        turns = self.server.turns.values()
        return [turn for turn in turns if self.root(turn.id) == story.event_id]

    def check(self) -> None:
        """What holds at any moment, and more where nothing is on its way."""
        self.server.check()
        pending = self.client.pending
        assert len(self.client._asks) <= 2 * len(pending)
        for story in self.stories.values():
            assert (story.end is None) == (story.ask in pending)
            if story.end not in (None, "lost") and story.event_id not in self._checked:
                self._checked.add(story.event_id)
                self.check_end(story)
        if self.quiet and not self.over:
            self._check_agreement()

    def check_end(self, story: Story) -> None:
        """The client's last word on an ask is the server's."""
        turns = self.turns_of(story)
        if story.end == "refused":
            assert story.error is not None
            if turns and len(turns) > len(story.folds):
                record = self.server.record(turns[-1].id)
                assert (record.outcome, record.error_code) == ("refused", story.error.error.code)
            return
        record = self.server.record(turns[-1].id)
        assert [turn.id for turn in turns] == list(story.folds)
        response = story.fold.response
        assert record.outcome == (response.status or "")
        for turn in turns:
            assert plain(story.folds[turn.id].response) == plain(turn.snapshot(turn.status))

    def _check_agreement(self) -> None:
        for lane in {story.ask.lane for story in self.stories.values()}:
            turns = [
                turn
                for turn in self.server.lanes().get(lane, [])
                if self.root(turn.id) in self.stories
            ]
            pending = [ask for ask in self.client.pending if ask.lane == lane]
            assert [self.root(turn.id) for turn in turns] == [ask.event_id for ask in pending]
            for turn, ask in zip(turns, pending, strict=True):
                # While the end of a held turn is being saved, nothing has been said of it.
                if turn.state != "saving":
                    assert (ask.state is AskState.HELD) == (turn.state == "held")
                if ask.state in (AskState.WAITING, AskState.SUCCEEDING):
                    assert not turn.announced
                else:
                    assert ask.response_id == turn.id
                    assert ask.steers.open == len(turn.steers)
            held = self.client.held(lane)
            assert held is None or held.response_id == turns[0].id
