"""Where stored responses live: one file for each kind of store.

A new store is a file in this folder and a line in :data:`STORES`; what ``--store`` says up to its
first colon is its name there.
"""

from typing import Final

STORES: Final[dict[str, str]] = {
    "memory": "tieline_server.stores.memory:MemoryStore",
    "sqlite": "tieline_server.stores.sql:SqlStore",
    "postgresql": "tieline_server.stores.sql:SqlStore",
}
"""Store name -> import path of its class."""
