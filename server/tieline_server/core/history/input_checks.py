"""New input against the history before it: what may follow a chain.

Only the new items are looked at. Pairing works for every kind of call that a client runs, not
only functions; a double id or a double output is refused rather than merged (wire.md 4.2.2).

Some agents name the response that they continue and send their whole history all the same,
without ids. They show it by a call that the chain has. Then that call, its output, what the
model said word for word, and what others said word for word before any of these are history, and
are passed over. Only then is the chain walked.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from tieline.errors import ApiError
from tieline.items import CALL_KINDS, OUTPUT_KINDS, Item, Message
from tieline_server.core.history import sealed
from tieline_server.core.history.chain import ChainNode

_WORDS: Final = {kind: kind.replace("_", " ") for kind in CALL_KINDS}

SHOWN: Final = 128
"""Characters of an id that an error repeats."""


def check(new: Sequence[Item], before: ChainNode | None, *, unanswered: bool = False) -> None:
    """Refuses input that cannot follow ``before``; raises :class:`ApiError` 400, param input.

    A tool output needs its call in the context, and each call its output unless ``unanswered``
    ones may stay; an item id appears once in a chain. What a sealed item stands for counts like
    any other input.
    """
    seen: set[str] = set()
    answered: set[str] = set()
    shown, restarts = sealed.shown(new)
    # What stands for all before it answers no call of that, and is answered by none.
    before = None if restarts else before
    # A copy of the empty mapping that most nodes share would cost more than a new dictionary.
    pending = dict(before.open_calls) if before is not None and before.open_calls else {}
    for item in shown:
        _check_id(item, seen, before)
        if item.opens is not None:
            # A call that is sent again without its item id is still the same call.
            if item.opens in pending or _is_answered(item.opens, answered, before):
                raise _duplicate(item.opens)
            pending[item.opens] = item
        elif (call_id := item.answers) is not None:
            _check_output(item, call_id, pending, _is_answered(call_id, answered, before))
            del pending[call_id]
            answered.add(call_id)
    for call_id, call in pending.items() if not unanswered else ():
        raise ApiError.of(
            "tool_output_missing",
            f"No tool output found for {_WORDS[call.type]} {call_id[:SHOWN]}.",
            param="input",
        )


def _check_id(item: Item, seen: set[str], before: ChainNode | None) -> None:
    item_id = item.id
    if item_id is None:
        return
    # Refused rather than merged: which of the two is meant cannot be told.
    if item_id in seen or (before is not None and before.find(item_id) is not None):
        raise _duplicate(item_id)
    seen.add(item_id)


def _duplicate(name: str) -> ApiError:
    return ApiError.of(
        "duplicate_item",
        f"Duplicate item found with id {name[:SHOWN]}. Remove duplicate items from your input "
        "and try again.",
        param="input",
    )


def _is_answered(call_id: str, answered: set[str], before: ChainNode | None) -> bool:
    return call_id in answered or (before is not None and before.answered(call_id))


def _check_output(item: Item, call_id: str, pending: Mapping[str, Item], answered: bool) -> None:
    call = pending.get(call_id)
    # A call of another kind is no match: a shell's output answers no function.
    if call is not None and call.type == OUTPUT_KINDS[item.type]:
        return
    kind = _WORDS[OUTPUT_KINDS[item.type]]
    if answered:
        raise ApiError.of(
            "duplicate_item",
            f"The {kind} with call_id {call_id[:SHOWN]} already has an output.",
            param="input",
        )
    raise ApiError.of(
        "tool_call_not_found",
        f"No tool call found for {kind} output with call_id {call_id[:SHOWN]}.",
        param="input",
    )


def references(new: Sequence[Item], before: ChainNode | None) -> list[str]:
    """Ids of items that the input only names and that the chain does not hold."""
    missing: list[str] = []
    for item in new:
        name = item.names
        if name is not None and (before is None or before.find(name) is None):
            missing.append(name)
    return missing


def dereference(
    new: Sequence[Item], before: ChainNode | None, found: Mapping[str, Item]
) -> list[Item]:
    """The input with references replaced by what they name.

    A reference to an item that the chain already holds adds nothing. Raises
    :class:`ApiError` 400 ``item_not_found`` for one that is neither in the chain nor stored.
    """
    result: list[Item] = []
    for item in new:
        if (name := item.names) is None:
            result.append(item)
        elif before is not None and before.find(name) is not None:
            # The chain has it in its place already: to name it again adds nothing.
            continue
        elif (target := found.get(name)) is not None:
            result.append(target)
        else:
            message = f"Item with id '{name[:SHOWN]}' not found."
            raise ApiError.of("item_not_found", message, param="input")
    return result


def without_repeats(new: Sequence[Item], before: ChainNode | None) -> Sequence[Item]:
    """The input without what a client that sends its history again repeats of it.

    Raises :class:`ApiError` 400 ``duplicate_item`` for a call, or an output, that is another one
    than the chain has.
    """
    if before is None:
        return new
    for item in new:
        if item.opens is not None and _repeats(item, before):
            return _Repeats(new, before).left()
    return new


def _repeats(item: Item, before: ChainNode) -> bool:
    """Whether this call, said without an id, is one that the chain has."""
    call_id = item.opens
    if call_id is None or (item.id is not None and item.id != call_id):
        return False
    return call_id in before.open_calls or before.answered(call_id)


class _Repeats:
    """History that is sent again, beside the chain that has it."""

    def __init__(self, new: Sequence[Item], before: ChainNode) -> None:
        self._new = new
        self._before = before
        self._calls: dict[str, Item] = {}
        self._outputs: dict[str, Item] = {}
        self._said: Counter[Hashable] = Counter()
        known: set[int] = set()
        for item in chain(before.items_of_chain(), before.context()):
            if id(item) in known:
                continue
            known.add(id(item))
            if item.opens is not None:
                self._calls[item.opens] = item
            elif item.answers is not None:
                self._outputs[item.answers] = item
            else:
                self._said[_words(item)] += 1

    def left(self) -> list[Item]:
        """What is new."""
        passed: set[str] = set()
        places: set[int] = set()
        for place, item in enumerate(self._new):
            if item.opens is not None and _repeats(item, self._before):
                self._compare(item, self._calls.get(item.opens))
                passed.add(item.opens)
                places.add(place)
            elif item.answers in passed and self._before.answered(item.answers):
                self._compare(item, self._outputs.get(item.answers))
                places.add(place)
            elif _by_model(item) and self._is_said(item):
                places.add(place)
        last = max(places, default=0)
        return [
            item
            for place, item in enumerate(self._new)
            if place not in places and not (place < last and self._is_said(item))
        ]

    def _is_said(self, item: Item) -> bool:
        """Whether the chain has these words once more than they were sent."""
        if item.id is not None or item.opens is not None or item.answers is not None:
            return False
        words = _words(item)
        self._said[words] -= 1
        return self._said[words] >= 0

    def _compare(self, item: Item, known: Item | None) -> None:
        """Refuses what says other things than the chain has under its call id."""
        said = _members(item)
        had = {} if known is None else _members(known)
        if (
            known is None
            or known.type != item.type
            or any(had.get(name) != value for name, value in said.items())
        ):
            what = item.type.replace("_", " ")
            call_id = item.opens or item.answers or ""
            raise ApiError.of(
                "duplicate_item",
                f"The {what} with call_id {call_id[:SHOWN]} is not the one that the previous "
                "response has. Send only what is new.",
                param="input",
            )


def _by_model(item: Item) -> bool:
    if item.type == "message":
        view = item.view
        return isinstance(view, Message) and view.role == "assistant"
    return item.type == "reasoning"


_json: Final = msgspec.json.Decoder()
# Members that say nothing of what an item says.
_OWN: Final = frozenset({"id", "status", "type"})


def _members(item: Item) -> dict[str, Any]:
    """What an item says, however it is written: JSON text by its value, parts by their words."""
    said = {
        name: value
        for name, value in _json.decode(item.raw).items()
        if value is not None and name not in _OWN
    }
    if "arguments" in said:
        said["arguments"] = _value(said["arguments"])
    for name in ("content", "output", "summary"):
        if name in said:
            said[name] = _spoken(said[name])
    return said


def _value(text: Any) -> Any:
    """The value of JSON text; without arguments a call has the empty object."""
    try:
        return _json.decode(text) if text else {}
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return text


def _spoken(content: Any) -> Any:
    """A string, or parts of text only, as their text; anything else as it is."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    whole = [text for text in texts if isinstance(text, str)]
    return "".join(whole) if len(whole) == len(texts) else content


def _words(item: Item) -> Hashable:
    return item.type, msgspec.json.encode(_members(item), order="deterministic")
