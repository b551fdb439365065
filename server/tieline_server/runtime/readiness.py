"""Whether the process can serve now: what it lacks, and who wants to hear when that changes.

``/readyz`` and the gRPC health service both say what is here, so that they never differ.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

DATABASE: Final = "database"
ENGINE: Final = "engine"
DRAINING: Final = "draining"


class Readiness:
    """What the process lacks, each part with a reason that may be shown to anyone.

    >>> readiness = Readiness()
    >>> readiness.lack("database", "it does not answer")
    >>> readiness.ready, dict(readiness.lacking)
    (False, {'database': 'it does not answer'})
    >>> readiness.have("database")
    >>> readiness.ready
    True
    """

    def __init__(self) -> None:
        self._lacking: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether nothing is lacking."""
        return not self._lacking

    @property
    def lacking(self) -> Mapping[str, str]:
        """Part -> why it cannot be used."""
        return MappingProxyType(self._lacking)

    def lack(self, part: str, reason: str) -> None:
        """A part cannot be used any more."""
        self._change({**self._lacking, part: reason})

    def have(self, part: str) -> None:
        """A part can be used (again)."""
        self._change({name: why for name, why in self._lacking.items() if name != part})

    def listen(self, heard: Callable[[], None]) -> None:
        """Has ``heard`` called whenever ``ready`` has changed."""
        self._listeners.append(heard)

    def _change(self, lacking: dict[str, str]) -> None:
        was, self._lacking = self.ready, lacking
        if self.ready != was:
            for heard in self._listeners:
                heard()
