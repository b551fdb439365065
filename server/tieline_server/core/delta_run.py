"""Deltas that are kept as texts: most of what a response says, and all alike but for those."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tieline.events import Event


class DeltaRun(Struct, gc=False):
    """Deltas of one part or call that follow each other; it grows with what comes next.

    >>> from tieline.events import RefusalDelta
    >>> first = RefusalDelta(
    ...     sequence_number=4, item_id="msg_1", output_index=0, content_index=0, delta="I"
    ... )
    >>> [each.delta for each in DeltaRun(first, ["I", " will", " not"]).behind(5, None)]
    [' will', ' not']
    """

    first: Any
    """From which the others differ in their number and their text."""
    texts: list[str]

    @property
    def sequence_number(self) -> int:
        """Of the first one."""
        number: int = self.first.sequence_number
        return number

    def behind(self, number: int, most: int | None) -> list[Event]:
        """Those that are numbered ``number`` and higher: so many at most, the first ones."""
        skipped = max(0, number - self.sequence_number)
        texts = self.texts[skipped : None if most is None else skipped + most]
        return [
            replace(self.first, sequence_number=each, delta=text)
            for each, text in enumerate(texts, self.sequence_number + skipped)
        ]
