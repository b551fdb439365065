"""What lasts of turns that still run: their events, the keys they answer to, who cancels them.

A journal goes with the store of the same name. A new one is a module and a line in
:data:`JOURNALS`.
"""

from typing import Final

JOURNALS: Final[dict[str, str]] = {
    "memory": "tieline_server.journals.memory:MemoryJournal",
    "sqlite": "tieline_server.journals.sql:SqlJournal",
    "postgresql": "tieline_server.journals.sql:SqlJournal",
}
"""Store name -> import path of the journal's class."""
