"""New input against the history before it: what may follow a chain.

Only the new items are looked at. Pairing works for every kind of call that a client runs, not
only functions; a double id or a double output is refused rather than merged (wire.md 4.2).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tieline.errors import ApiError
from tieline.items import CALL_KINDS, OUTPUT_KINDS, Item
from tieline_server.core import sealed
from tieline_server.core.history import Segment

_WORDS: Final = {kind: kind.replace("_", " ") for kind in CALL_KINDS}


def check(new: Sequence[Item], before: Segment | None, *, unanswered: bool = False) -> None:
    """Refuses input that cannot follow ``before``; raises :class:`ApiError` 400, param input.

    A tool output needs its call in the context, and each call its output unless ``unanswered``
    ones may stay; an item id appears once in a chain. What a sealed item stands for counts like
    any other input.
    """
    seen: set[str] = set()
    answered: set[str] = set()
    shown, restarts = sealed.shown(new)
    before = None if restarts else before
    # A copy of the empty mapping that most links share would cost more than a new dictionary.
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
            f"No tool output found for {_WORDS[call.type]} {call_id}.",
            param="input",
        )


def _check_id(item: Item, seen: set[str], before: Segment | None) -> None:
    item_id = item.id
    if item_id is None:
        return
    if item_id in seen or (before is not None and before.find(item_id) is not None):
        raise _duplicate(item_id)
    seen.add(item_id)


def _duplicate(name: str) -> ApiError:
    return ApiError.of(
        "duplicate_item",
        f"Duplicate item found with id {name}. Remove duplicate items from your input "
        "and try again.",
        param="input",
    )


def _is_answered(call_id: str, answered: set[str], before: Segment | None) -> bool:
    return call_id in answered or (before is not None and before.answered(call_id))


def _check_output(item: Item, call_id: str, pending: Mapping[str, Item], answered: bool) -> None:
    call = pending.get(call_id)
    if call is not None and call.type == OUTPUT_KINDS[item.type]:
        return
    kind = _WORDS[OUTPUT_KINDS[item.type]]
    if answered:
        raise ApiError.of(
            "duplicate_item",
            f"The {kind} with call_id {call_id} already has an output.",
            param="input",
        )
    raise ApiError.of(
        "tool_call_not_found",
        f"No tool call found for {kind} output with call_id {call_id}.",
        param="input",
    )


def references(new: Sequence[Item], before: Segment | None) -> list[str]:
    """Ids of items that the input only names and that the chain does not hold."""
    missing: list[str] = []
    for item in new:
        name = item.names
        if name is not None and (before is None or before.find(name) is None):
            missing.append(name)
    return missing


def dereference(
    new: Sequence[Item], before: Segment | None, found: Mapping[str, Item]
) -> list[Item]:
    """The input with references replaced by what they name.

    A reference to an item that the chain already holds adds nothing. Raises
    :class:`ApiError` 400 ``item_not_found`` for one that nobody knows.
    """
    result: list[Item] = []
    for item in new:
        if (name := item.names) is None:
            result.append(item)
        elif before is not None and before.find(name) is not None:
            continue
        elif (target := found.get(name)) is not None:
            result.append(target)
        else:
            raise ApiError.of("item_not_found", f"Item with id '{name}' not found.", param="input")
    return result
