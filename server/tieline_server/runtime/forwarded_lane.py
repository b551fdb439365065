"""A lane whose turns run at a peer, and the creates that the peer has not answered yet."""

from collections import deque
from collections.abc import Sequence

from msgspec import UNSET, structs

from tieline.events import Event, RequestRefused, ResponseCreated
from tieline.requests import Create, Request
from tieline_server.core.values import Principal
from tieline_server.peers import RemoteLane

Asked = tuple[Create, Principal]


class ForwardedLane:
    """Forwards requests to the peer; ``heard`` is told of the events that come back."""

    __slots__ = ("_remote", "_resumed", "_unanswered")

    def __init__(self, remote: RemoteLane, resumed: str) -> None:
        self._remote = remote
        self._resumed = resumed
        self._unanswered: deque[Asked] = deque()

    def send(self, request: Request, principal: Principal) -> None:
        """Forwards a client event; at the peer the lane has no name."""
        if isinstance(request, Create):
            self._unanswered.append((request, principal))
        self._remote.send(structs.replace(request, stream_id=None), principal)

    def heard(self, batch: Sequence[Event]) -> None:
        """Notes that each create is answered by its response's first event, or by its refusal."""
        for event in batch if self._unanswered else ():
            self._heard(event)

    def _heard(self, event: Event) -> None:
        if isinstance(event, ResponseCreated):
            if event.response.id != self._resumed and self._unanswered:
                self._unanswered.popleft()
        elif isinstance(event, RequestRefused):
            for asked in self._unanswered:
                if (asked[0].event_id or UNSET) == event.error.event_id:
                    self._unanswered.remove(asked)
                    return

    def left(self) -> list[Asked]:
        """Takes the creates that the peer has not answered, in order."""
        left = list(self._unanswered)
        self._unanswered.clear()
        return left
