"""The other workers of a server, known by the names of their sockets in the folder they share."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tieline.ids import tag_of
from tieline_server.workers.neighbour import Neighbour

SUFFIX: Final = ".sock"


def socket_path(folder: Path, mark: bytes) -> Path:
    """Where the worker with a mark listens."""
    return folder / f"{mark.hex()}{SUFFIX}"


class Neighbourhood:
    """All but the worker with the mark ``own``. See ``homes.Homes``."""

    def __init__(self, folder: Path, own: bytes) -> None:
        self._folder = folder
        self._own = own
        self._known: dict[bytes, Neighbour] = {}

    def home_of(self, response_id: str) -> Neighbour | None:
        """The neighbour whose mark an id carries."""
        mark = tag_of(response_id)
        return None if mark is None else self._neighbour(mark)

    def others(self) -> Sequence[Neighbour]:
        """All that live now."""
        return list(self.living().values())

    def living(self) -> dict[bytes, Neighbour]:
        """Mark -> neighbour, of all that live now."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            names = []
        found = {}
        for name in sorted(names):
            if name.endswith(SUFFIX):
                mark = bytes.fromhex(name.removesuffix(SUFFIX))
                neighbour = self._neighbour(mark)
                if neighbour is not None:
                    found[mark] = neighbour
        return found

    def close(self) -> None:
        """Lets go of every connection."""
        for neighbour in self._known.values():
            neighbour.close()
        self._known.clear()

    def _neighbour(self, mark: bytes) -> Neighbour | None:
        if mark == self._own:
            return None
        path = socket_path(self._folder, mark)
        if not path.exists():
            left = self._known.pop(mark, None)
            if left is not None:
                left.close()
            return None
        known = self._known.get(mark)
        if known is None:
            known = self._known[mark] = Neighbour(path)
        return known
