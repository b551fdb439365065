"""What a connection remembers of the creates that came on it, one after the other.

Agents send their tools and instructions in full with every request. Bytes that are those of the
last time are neither checked nor read again. This is all that two requests share: whose they
are, and the chain that they continue, is a matter of each.
"""

from typing import Final

from tieline.codecs.json import RequestDecoder
from tieline.requests import Create
from tieline_server.core.settings import SettingsCache

MOST: Final = 128 * 1024
"""Bytes of a body that is worth remembering: agents repeat some 40 kB, and connections are many."""


class CreateReader:
    """Reads the creates of one connection.

    >>> recollection = CreateReader()
    >>> recollection.read(b'{"model": "m", "input": "hi"}').model
    'm'
    """

    __slots__ = ("_decoder", "recall")

    def __init__(self) -> None:
        self._decoder: RequestDecoder | None = None
        self.recall: SettingsCache | None = None
        """For the connection of the create that was read last; None: it remembers for itself."""

    def read(self, body: bytes) -> Create:
        """The create in a request's body; raises :class:`ApiError` (400) for what is none.

        A body that is too large to be remembered has all that came before it forgotten.
        """
        if len(body) > MOST:
            self._decoder = self.recall = None
            return RequestDecoder().create(body)
        if self._decoder is None:
            self._decoder = RequestDecoder()
            self.recall = SettingsCache()
        return self._decoder.create(body)
