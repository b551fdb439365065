"""Identifiers: their prefixes, how one is made, and which lane names are legal.

Ids are opaque to clients. Ours are a prefix and 32 hex digits; the first four digits can carry
a tag of the process that runs the turn, so that any other process knows which one to ask.
"""

import re
from collections.abc import Callable
from typing import Final

RESPONSE: Final = "resp_"
MESSAGE: Final = "msg_"
FUNCTION_CALL: Final = "fc_"
CALL: Final = "call_"
CUSTOM_TOOL_CALL: Final = "ctc_"
TOOL_SEARCH_CALL: Final = "tsc_"
REASONING: Final = "rs_"
STEER: Final = "steer_"
COMPACTION: Final = "cmp_"
CONNECTION: Final = "line_"

_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")


def is_stream_id(name: str) -> bool:
    """Whether ``name`` may name a lane: 1 to 256 of letters, digits, ``_``, ``.``, ``-``."""
    return _STREAM_ID.match(name) is not None


class IdSource:
    """Makes ids from an entropy source that the caller passes in.

    ``entropy(n)`` returns ``n`` bytes: ``os.urandom`` in service, a seeded generator in tests.
    ``tag`` is the mark of this process, at most two bytes. What ``ahead`` ids need is asked for
    at once: that is a system call, and dearer than the rest of an id.

    >>> IdSource(lambda n: bytes(n)).new(RESPONSE)
    'resp_00000000000000000000000000000000'
    """

    __slots__ = ("_at", "_bytes", "_digits", "_entropy", "_reserve", "_tag")

    def __init__(
        self, entropy: Callable[[int], bytes], tag: bytes = b"", *, ahead: int = 64
    ) -> None:
        self._entropy = entropy
        self._tag = tag.hex()
        self._digits = 2 * (16 - len(tag))
        self._bytes = ahead * (16 - len(tag))
        self._reserve = ""
        self._at = 0

    def new(self, prefix: str) -> str:
        """A new id: ``prefix``, the process tag, then random hex digits."""
        at = self._at
        if at == len(self._reserve):
            self._reserve, at = self._entropy(self._bytes).hex(), 0
        self._at = end = at + self._digits
        return prefix + self._tag + self._reserve[at:end]


_TAGGED: Final = re.compile(RESPONSE + r"([0-9a-f]{4})[0-9a-f]{28}\Z")


def tag_of(response_id: str) -> bytes | None:
    """The first two bytes of a response's id, where a process puts its tag; None for other ids.

    >>> tag_of("resp_01abffffffffffffffffffffffffffff")
    b'\\x01\\xab'
    """
    found = _TAGGED.match(response_id)
    return None if found is None else bytes.fromhex(found[1])
