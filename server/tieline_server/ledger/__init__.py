"""What was used, one row a response: one module for each kind of ledger.

A ledger goes with the store of the same name. A new one is a module and a line in
:data:`LEDGERS`.
"""

from typing import Final

LEDGERS: Final[dict[str, str]] = {
    "memory": "tieline_server.ledger.memory:MemoryLedger",
    "sqlite": "tieline_server.ledger.sql:SqlLedger",
    "postgresql": "tieline_server.ledger.sql:SqlLedger",
}
"""Store name -> import path of the ledger's class.

``await Class.open(config, stack)`` opens what the settings name, and ``stack`` closes it.
"""
