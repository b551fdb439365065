"""Where stored responses live: one file for each kind of store.

A new store is a file in this folder and a line in :data:`STORES`.
"""

from typing import Final

STORES: Final[dict[str, str]] = {
    "memory": "tieline_server.stores.memory:MemoryStore",
}
"""Store name -> import path of its class."""
