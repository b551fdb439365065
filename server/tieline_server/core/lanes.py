"""The lanes of one connection: who may have one, and which turn a request means."""

from collections.abc import Iterator
from typing import Final

from tieline.errors import ApiError
from tieline.requests import Append, Cancel, Create, Resume
from tieline_server.core.effects import TurnId
from tieline_server.core.lane import Lane
from tieline_server.core.limits import Admission, admit_waiting, size_of
from tieline_server.core.profile import Profile, unsupported
from tieline_server.core.settings import SettingsCache
from tieline_server.core.turn import Host, Turn
from tieline_server.core.turn_holdings import WAITING


class Lanes:
    """The lanes named so far; none is forgotten before its connection ends (wire.md 5.5)."""

    __slots__ = ("_admission", "_by_name", "_host", "_profile", "_recall")

    def __init__(
        self,
        host: Host,
        admission: Admission,
        profile: Profile,
        recall: SettingsCache | None,
    ) -> None:
        self._host = host
        self._admission = admission
        self._profile = profile
        self._recall = recall
        """What the nameless lane begins with."""
        self._by_name: dict[str | None, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._by_name.values()))

    def close(self) -> None:
        """Their connection is over, and not kept alive by them."""
        self._by_name.clear()
        del self._host

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def find(self, name: str | None) -> Lane | None:
        """The lane of this name, where there is one."""
        return self._by_name.get(name)

    def get(self, name: str | None) -> Lane:
        """The lane of this name, made where it is new."""
        lane = self._by_name.get(name)
        if lane is None:
            known = self._recall if name is None else None
            lane = self._by_name[name] = Lane(self._host, name, known)
        return lane

    def admit(self, request: Create | Append, owner: str) -> Lane:
        """The lane of an owner's request; raises :class:`ApiError` 400, 429 or 503."""
        self._profile.admit(request)
        self._admission.lane(request.stream_id)
        lane = self.get(request.stream_id)
        if lane.state != "held" or isinstance(request, Create):
            # An answer to a held turn waits behind nobody.
            self._admission.queue(lane.waiting)
            if lane.current is not None:
                self._admission.queue_bytes(self._waiting_bytes(), request)
            if lane.may_wait(request):
                admit_waiting(self._host.queued, owner, size_of(request) + WAITING)
        return lane

    def _waiting_bytes(self) -> int:
        queued = sum(turn.size for lane in self._by_name.values() for turn in lane.queue)
        parked = (request for lane in self._by_name.values() for request, _ in lane.parked)
        return queued + sum(size_of(each) for each in parked if not isinstance(each, Cancel))

    def admit_resume(self, resume: Resume) -> Lane:
        """The lane that a response may come to; raises :class:`ApiError` 400 or 409."""
        if resume.response_id is None:
            raise ApiError.of(
                "missing_required_parameter",
                "Missing required parameter: 'response_id'.",
                param="response_id",
            )
        if resume.stream_id is not None and not self._profile.lanes:
            raise unsupported("stream_id")
        self._admission.lane(resume.stream_id)
        lane = self.get(resume.stream_id)
        if lane.current is not None or lane.queue:
            raise ApiError.of("lane_busy", "A response runs on this lane.", param="stream_id")
        return lane

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is held."""
        return all(lane.current is None and not lane.queue for lane in self._by_name.values())

    def next_deadline(self, at: float | None) -> float | None:
        """When the first of their turns is to be looked at, or ``at`` where that is sooner."""
        for lane in self._by_name.values():
            if lane.current is not None:
                at = _sooner(at, lane.current)
            for turn in lane.queue:
                at = _sooner(at, turn)
        return at

    @property
    def phase(self) -> str:
        """What a heartbeat says: the liveliest of the lanes."""
        phases = {_phase(lane.current) for lane in self._by_name.values()}
        return next((phase for phase in _LIVELY if phase in phases), "idle")

    def turns(self) -> Iterator[Turn]:
        """Those that run and those that wait, of all lanes."""
        return (turn for lane in self._by_name.values() for turn in lane.turns())

    def current(self, own_id: TurnId) -> Turn | None:
        """The turn of this own id that has its lane now."""
        for lane in self._by_name.values():
            if lane.current is not None and lane.current.own_id == own_id:
                return lane.current
        return None

    def turn(self, response_id: str) -> Turn | None:
        """The turn of a response; where that runs elsewhere, one that reads it here."""
        found = None
        for turn in self.turns():
            if turn.id == response_id:
                if turn.reading is None:
                    return turn
                found = found or turn
        return found

    def target(self, cancel: Cancel) -> Turn | None:
        """The turn that a cancel means: by response, by the create's event, or the lane's.

        What a steer started when the named response ended is meant as well: the two have crossed.
        """
        named = cancel.response_id
        if named is not None:
            succeeding = (turn for turn in self.turns() if turn.succeeds == named)
            return self.turn(named) or next(succeeding, None)
        lane = self.find(cancel.stream_id)
        if lane is None or cancel.event_id is None:
            return lane.current if lane is not None else None
        asked = (turn for turn in lane.turns() if turn.request.event_id == cancel.event_id)
        return next(asked, None)


def _sooner(at: float | None, turn: Turn) -> float | None:
    for each in (turn.expires_at, turn.wake_at):
        if each is not None and (at is None or each < at):
            at = each
    return at


_LIVELY: Final = ("thinking", "prefill", "queued", "held")
_UNBEGUN: Final = ("queued", "claiming", "waiting", "doomed")


def _phase(turn: Turn | None) -> str:
    if turn is None:
        return "idle"
    if turn.state == "held":
        return "held"
    if turn.state in _UNBEGUN:
        return "queued"
    return "prefill" if turn.marks.first_token_at is None else "thinking"
