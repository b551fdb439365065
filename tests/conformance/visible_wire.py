"""All that a client can see of the product, as one text that is committed beside this module.

Where a change is meant, ``python -m tests.conformance.visible_wire`` writes the text anew, and the
commit shows what a client will notice. ``test_visible_wire`` says whether it still holds.
"""

import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conformance import visible_vocabulary
from tests.conformance.visible_exchanges import look

COMMITTED: Final = Path(__file__).with_suffix(".txt")
HEAD: Final = """\
What a client can see. Committed, and compared with the code by test_visible_wire.py: a change here
is a change that clients notice. Written by: python -m tests.conformance.visible_wire
"""
_MARK: Final = "## "

Sections = dict[str, str]
"""Title -> text."""


def sections() -> Sections:
    """What is so now."""
    with tempfile.TemporaryDirectory() as folder:
        seen = look(Path(folder))
    found = {
        "Error codes: status, type, gRPC status": visible_vocabulary.error_codes(),
        "Client events: their JSON members": visible_vocabulary.request_members(),
        "Server events: their JSON members": visible_vocabulary.event_members(),
        "A response and items: their JSON members": visible_vocabulary.object_members(),
        "Protobuf: services, messages, fields": visible_vocabulary.protobuf(),
        "In a conversation: JSON of events and of HTTP answers": seen.shapes.lines(),
        "In a conversation: fields of protobuf that the server fills": seen.fields.lines(),
        "In a conversation: each error code on each wire": _refusals(seen.refusals),
        "In a conversation: statuses, names of headers and of metadata": seen.exchanges,
    }
    return {title: visible_vocabulary.joined(lines) for title, lines in found.items()}


def _refusals(found: dict[str, dict[str, str]]) -> Iterator[str]:
    """Codes that came alike, together."""
    alike: dict[str, list[str]] = defaultdict(list)
    for code, by in found.items():
        alike["".join(f"\n    {wire}: {face}" for wire, face in by.items())].append(code)
    for faces, codes in alike.items():
        yield f"{textwrap.fill(', '.join(codes), 100)}{faces}"


def text_of(found: Sections) -> str:
    """The committed form."""
    return HEAD + "".join(f"\n{_MARK}{title}\n{text}" for title, text in found.items())


def committed() -> Sections:
    """What is written down."""
    _, *parts = COMMITTED.read_text().split(f"\n{_MARK}")
    return {title: text for title, _, text in (part.partition("\n") for part in parts)}


if __name__ == "__main__":
    COMMITTED.write_text(text_of(sections()))
