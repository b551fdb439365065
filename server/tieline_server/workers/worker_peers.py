"""The other workers of a server, known by the names of their sockets in the folder they share."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tieline.ids import tag_of
from tieline_server.workers.worker_peer import WorkerPeer

SUFFIX: Final = ".sock"


def socket_path(folder: Path, tag: bytes) -> Path:
    """Returns where the worker with a tag listens."""
    return folder / f"{tag.hex()}{SUFFIX}"


class WorkerPeers:
    """All workers but the one with the tag ``own``. See ``peers.Peers``."""

    def __init__(self, folder: Path, own: bytes) -> None:
        self._folder = folder
        self._own = own
        self._known: dict[bytes, WorkerPeer] = {}

    def peer_of(self, response_id: str) -> WorkerPeer | None:
        """Returns the peer whose tag an id carries."""
        tag = tag_of(response_id)
        return None if tag is None else self._peer(tag)

    def others(self) -> Sequence[WorkerPeer]:
        """Returns all that live now."""
        return list(self.living().values())

    def living(self) -> dict[bytes, WorkerPeer]:
        """Returns all that live now: tag -> peer."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            names = []
        found = {}
        for name in sorted(names):
            if name.endswith(SUFFIX):
                tag = bytes.fromhex(name.removesuffix(SUFFIX))
                peer = self._peer(tag)
                if peer is not None:
                    found[tag] = peer
        return found

    def close(self) -> None:
        """Closes every connection."""
        for peer in self._known.values():
            peer.close()
        self._known.clear()

    def _peer(self, tag: bytes) -> WorkerPeer | None:
        if tag == self._own:
            return None
        path = socket_path(self._folder, tag)
        if not path.exists():
            left = self._known.pop(tag, None)
            if left is not None:
                left.close()
            return None
        known = self._known.get(tag)
        if known is None:
            known = self._known[tag] = WorkerPeer(path)
        return known
