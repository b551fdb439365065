"""Chains that a store keeps in memory: the most recent ones, within bounds."""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from tieline_server.config import MIB
from tieline_server.core.history import ChainNode
from tieline_server.core.holdings import Holdings

BYTES: Final = 32 * MIB
"""JSON of the items of recent chains."""

CHAINS: Final = 1000
"""Recent chains; small ones cost more than their JSON."""


class Chain(Struct, frozen=True):
    """The chain of a response, with whatever has been computed on its links."""

    tip: ChainNode
    input_from: ChainNode | None
    """The link before the response's own input."""


class RecentChains:
    """The chains that were last written or read, by their node, within bounds."""

    def __init__(self, *, most: int = CHAINS, max_bytes: int = BYTES) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._chains: OrderedDict[int, Chain] = OrderedDict()
        self._held = Holdings()

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def size(self) -> int:
        """Bytes of the items of all chains."""
        return self._held.size

    def add(self, node: int, chain: Chain) -> None:
        """The chain of a node is the most recent one."""
        self.drop(node)
        self._chains[node] = chain
        self._held.hold(chain.tip)
        while self._chains and (len(self._chains) > self._most or self.size > self._max_bytes):
            self.drop(next(iter(self._chains)))

    def find(self, node: int) -> Chain | None:
        """The chain of a node, or None; it is now the most recent one."""
        chain = self._chains.get(node)
        if chain is not None:
            self._chains.move_to_end(node)
        return chain

    def drop(self, node: int) -> None:
        """Forgets the chain of a node; those that share links with it stay."""
        chain = self._chains.pop(node, None)
        if chain is not None:
            self._held.release(chain.tip)
