"""How many bytes of history something holds, where chains share their links."""

from tieline_server.core.history import ChainNode


class Holdings:
    """Chains that are held, each by its last link. A link that chains share counts once.

    To hold or release a chain costs what no other held chain has of it.
    """

    __slots__ = ("_holders", "_sizes", "size")

    def __init__(self) -> None:
        self._holders: dict[ChainNode, int] = {}
        """Link -> how many hold it as their last one, plus how many held links follow it."""
        self._sizes: dict[ChainNode, int] = {}
        """What those count that are still to be opened: then they grow, and others never do."""
        self.size = 0
        """Bytes of JSON of all held links' items, each as it was when it came."""

    def hold(self, tip: ChainNode) -> None:
        """One more holds the chain that ends here."""
        holders = self._holders
        link: ChainNode | None = tip
        while link is not None:
            count = holders.get(link, 0)
            holders[link] = count + 1
            if count:
                return
            self._add(link)
            link = link.parent

    def grow(self, tip: ChainNode) -> None:
        """One who held the chain before this new link holds the chain that ends here instead."""
        # What it no longer holds by itself is held by the link that follows.
        self._holders[tip] = 1
        self._add(tip)

    def release(self, tip: ChainNode) -> None:
        """One who held the chain that ends here does so no longer."""
        holders = self._holders
        link: ChainNode | None = tip
        while link is not None:
            count = holders[link] - 1
            if count:
                holders[link] = count
                return
            del holders[link]
            self.size -= self._sizes.pop(link, link.size)
            link = link.parent

    @property
    def empty(self) -> bool:
        """Whether no chain is held."""
        return not self._holders

    def holders(self, tip: ChainNode) -> int:
        """How many hold this link as their last one, plus how many held links follow it."""
        return self._holders[tip]

    def alone(self, tip: ChainNode) -> bool:
        """Whether one holds this link, and nothing that is held follows it."""
        return self._holders[tip] == 1

    def _add(self, link: ChainNode) -> None:
        size = link.size
        self.size += size
        if link.closed:
            self._sizes[link] = size
