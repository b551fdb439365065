"""Where responses, the journal and the ledger are kept: a module or folder for each kind.

What ``--store`` says up to its first colon is its name in the tables.
"""

from typing import Final

STORES: Final[dict[str, str]] = {
    "memory": "tieline_server.storage.memory:MemoryStore",
    "sqlite": "tieline_server.storage.sql.responses:SqlStore",
    "postgresql": "tieline_server.storage.sql.responses:SqlStore",
}
"""Store name -> import path of its class."""

JOURNALS: Final[dict[str, str]] = {
    "memory": "tieline_server.storage.memory:MemoryJournal",
    "sqlite": "tieline_server.storage.sql.journal:SqlJournal",
    "postgresql": "tieline_server.storage.sql.journal:SqlJournal",
}
"""Store name -> import path of the journal's class."""

LEDGERS: Final[dict[str, str]] = {
    "memory": "tieline_server.storage.memory:MemoryLedger",
    "sqlite": "tieline_server.storage.sql.usage:SqlLedger",
    "postgresql": "tieline_server.storage.sql.usage:SqlLedger",
}
"""Store name -> import path of the ledger's class.

``await Class.open(config, stack)`` opens what the settings name, and ``stack`` closes it.
"""
