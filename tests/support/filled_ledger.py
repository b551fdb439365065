"""A ledger that lasts, as far as a command can tell: it opens with the rows of two days."""

from contextlib import AsyncExitStack

from tests.support.ledger_contract import DAY, NOON, usage_record
from tieline_server.config import Config
from tieline_server.config.toml_tables import STORES
from tieline_server.storage.base import Ledger
from tieline_server.storage.memory import MemoryLedger

STORE = "sqlite:///filled"
"""The setting that names it, once :data:`FILLED` is in the table in place of what is there."""

FILLED = STORES["sqlite"]._replace(module=__name__)


async def open_ledger(config: Config, stack: AsyncExitStack) -> Ledger:
    """Two rows of ann's on the first day and one of bob's on the next."""
    assert config.store == STORE
    ledger = MemoryLedger()
    ledger.add(usage_record("resp_1", model="small"))
    ledger.add(usage_record("resp_2", model="large, slow"))
    later = {"owner": "bob", "ended_at": NOON + DAY}
    counts = {"input_tokens": 1_234_567, "cached_tokens": 0, "reasoning_tokens": 0}
    ledger.add(usage_record("resp_3", model="", **later, **counts))
    return ledger
