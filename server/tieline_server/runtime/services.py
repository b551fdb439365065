"""What connections need of the process."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from tieline.errors import ApiError
from tieline.ids import IdSource
from tieline_server.auth.keys import Keys
from tieline_server.core.create.limits import Limits, Share
from tieline_server.core.create.profile import OPENAI, Profile
from tieline_server.core.history.holdings import Budget
from tieline_server.core.history.sealed import Sealer
from tieline_server.core.values import Catalog, Principal, TurnRecord, usage_record_of
from tieline_server.engines.base import Engine, Model
from tieline_server.peers import NoPeers, Peers
from tieline_server.runtime.readiness import Readiness
from tieline_server.runtime.running import Running
from tieline_server.storage.base import Journal, Ledger, ResponseStore

SERVER_ERROR: Final = "The server had an error while processing your request."
"""The fixed text of an internal error: what went wrong is in the log, never on the wire."""

INTERNAL: Final = "internal"
"""The transport of connections without a client, whose turns run for the server itself."""


async def _at_once(_error: ApiError, _address: str, _transport: str) -> None:
    """No refusal waits."""


class Services(Struct, frozen=True, kw_only=True):
    """The services of the process that connections use. ``app`` builds them once."""

    engines: Mapping[str, Engine]
    catalog: Catalog
    store: ResponseStore
    ledger: Ledger
    journal: Journal
    limits: Limits
    observe: Callable[[TurnRecord, str], None]
    """Called once for each response id: (record, transport)."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    now: Callable[[], float]
    """Unix seconds."""
    ids: IdSource
    running: Running
    budget: Budget
    sealer: Sealer
    keys: Keys
    """Which callers there are, and which owner each is."""
    incoming: Share = field(default_factory=Share)
    """Bytes of messages that are still coming."""
    queued: Share = field(default_factory=Share)
    """Bytes of requests that wait for the end of another response."""
    peers: Peers = field(default_factory=NoPeers)
    """The other processes in which turns run."""
    profile: Profile = OPENAI
    compaction: str = "keep-tail"
    """How history is folded away: the setting of the same name."""
    readiness: Readiness = field(default_factory=Readiness)
    check_storage: Callable[[], None] = lambda: None
    """Raises :class:`ApiError` while what would be stored could not be."""
    refused: Callable[[ApiError, str, str], Awaitable[None]] = _at_once
    """Returns when a call from an address, over a transport, may be told that it failed so."""

    def record_usage(self, record: TurnRecord, transport: str) -> None:
        """Has a turn that ended now written into the ledger."""
        ledger = self.ledger
        row = usage_record_of(record, transport, ended_at=self.now(), phases=ledger.keeps_phases)
        ledger.add(row)

    def offered(self, principal: Principal) -> Iterator[tuple[str, Model]]:
        """(engine, model under its public name) of what the principal may use, in order."""
        served = {
            (name, model.id): model
            for name, engine in self.engines.items()
            for model in engine.models()
        }
        for entry in self.catalog.entries():
            model = served.get((entry.engine, entry.served))
            if model is not None and (principal.models is None or entry.model in principal.models):
                yield entry.engine, replace(model, id=entry.model, price=entry.price)
