"""What a case has heard, in a form that is the same over every transport, or the case fails.

Ids are named in order of first appearance; times, the echo of ``event_id``, warnings (JSON has
them in a header, or for those who ask) and ``store`` (true where a transport has no line to
remember) are left out. Deltas that follow each other are one,
with their count: an id that is echoed as text is cut into them. Lanes run side by side, so each
is compared by itself. A transport that answers whole is compared by how each request ended.
"""

import re
from itertools import chain
from typing import Any, Final

import msgspec

Json = dict[str, Any]

TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.done", "error"}
)
"""Events after which a request has had its answer (a held turn's is ``response.done``)."""

RENAMED: Final = {
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}
"""The open-responses profile's names for two events -> OpenAI's."""

_ID: Final = re.compile(r"\b(?:resp|msg|fc|call|ctc|tsc|rs|req|steer|item)_[0-9a-f]{32}\b")
_OWN: Final = ("created_at", "completed_at", "store")


def renamed(events: list[Json]) -> list[Json]:
    """The events with ids named in order of first appearance, and without what is their own."""
    names: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"id{len(names)}")

    # The order of members says nothing, and would decide which id appears first.
    json = msgspec.json.encode(joined(events), order="sorted").decode()
    plain: list[Json] = msgspec.json.decode(_ID.sub(name, json))
    for event in plain:
        event["type"] = RENAMED.get(event["type"], event["type"])
        event.pop("event_id", None)
        event.pop("warnings", None)
        # An error in a JSON frame says when to retry as a header too (wire.md 4.1.2).
        event.pop("headers", None)
        for member in _OWN:
            event.get("response", {}).pop(member, None)
        if "error" in event:
            event["error"].pop("event_id", None)
    return plain


def joined(events: list[Json]) -> list[Json]:
    """The events with deltas of one part that follow each other as one, with their count."""
    found: list[Json] = []
    for event in events:
        if "delta" not in event:
            found.append(event)
            continue
        last = found[-1] if found else {}
        count = last.get("deltas", 0)
        # What it would be if it only went on where the last one ended.
        further = {**last, "delta": event["delta"], "sequence_number": event["sequence_number"]}
        further.pop("deltas", None)
        if further == event and event["sequence_number"] == last["sequence_number"] + count:
            found[-1] = {**last, "delta": last["delta"] + event["delta"], "deltas": count + 1}
        else:
            found.append({**event, "deltas": 1})
    return found


def outcomes(events: list[Json]) -> list[Json]:
    """How each request ended, as an answer that comes whole says it: without its number."""
    ends = [event for event in events if event["type"] in TERMINAL]
    return renamed([{k: v for k, v in end.items() if k != "sequence_number"} for end in ends])


def by_lane(events: list[Json]) -> dict[str, list[Json]]:
    """Each lane's events, those without a lane under no name."""
    lanes: dict[str, list[Json]] = {}
    for event in events:
        lanes.setdefault(event.get("stream_id", ""), []).append(event)
    return dict(sorted(lanes.items()))


def difference(ours: list[Json], theirs: list[Json], *, whole: bool) -> str | None:
    """Where two transcripts of one case part; ``whole``: one of them has only the ends."""
    shown = outcomes if whole else renamed
    mine, other = (shown([*chain(*by_lane(each).values())]) for each in (ours, theirs))
    for number, (one, two) in enumerate(zip(mine, other, strict=False)):
        if one != two:
            return f"event {number}:\n{one}\n{two}"
    if len(mine) != len(other):
        return f"{len(mine)} and {len(other)} events"
    return None
