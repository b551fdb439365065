"""Sealed items: what a client carries for the server and cannot read.

A compaction item holds what is needed to go on after earlier history was folded away; a
reasoning item holds a thought. Clients and stores have the sealed text and nothing else. Engines
have the items that it stands for and never the text: an item is opened when it enters a chain,
and :func:`shown` puts what was opened in its place.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from tieline import items
from tieline.errors import ApiError
from tieline.items import SEALABLE, Compaction, Item, Message, Opened, Reasoning


class Sealer(Protocol):
    """Seals bytes for one owner. What another owner has sealed does not open."""

    def seal(self, owner: str, content: bytes) -> str:
        """The content as text that only this owner's requests can have opened."""
        ...

    def open(self, owner: str, sealed: str) -> bytes:
        """The content again; raises :func:`unverified` whatever is wrong with it."""
        ...


def unverified() -> ApiError:
    """The one refusal: what was tampered with, foreign, too old or no seal at all looks alike."""
    return ApiError.of(
        "invalid_encrypted_content",
        "The encrypted content of an item could not be verified.",
        param="input",
    )


class Folded(Struct, frozen=True, kw_only=True, tag="compaction"):
    """What a compaction item holds; the members are those of :class:`~tieline.items.Opened`."""

    items: list[Raw]
    whole: bool = False
    behind: list[int] | None = None
    users: int = 0


class Thought(Struct, frozen=True, kw_only=True, tag="reasoning"):
    """What a reasoning item holds: its raw parts."""

    content: list[Raw]


_encode: Final = msgspec.json.Encoder().encode
_content: Final = msgspec.json.Decoder(Folded | Thought)


def history(opened: Opened, seal: Callable[[bytes], str], *, item_id: str) -> Item:
    """A compaction item that stands for ``opened``."""
    folded = Folded(
        items=[Raw(item.raw) for item in opened.items],
        whole=opened.whole,
        behind=None if opened.behind is None else list(opened.behind),
        users=opened.users,
    )
    # The item keeps what it stands for beside it, so that it is not unsealed on its own connection.
    view = Compaction(id=item_id, encrypted_content=seal(_encode(folded)))
    return replace(items.encode(view), opened=opened)


def thought(members: dict[str, Any], seal: Callable[[bytes], str]) -> Item:
    """The reasoning item of these members, with its content sealed as well."""
    text = seal(_encode(Thought(content=members["content"])))
    # Engines are shown the thought without its seal, which would only cost them tokens.
    plain = {name: value for name, value in members.items() if name != "encrypted_content"}
    whole = items.decode(_encode({**plain, "encrypted_content": text}))
    return replace(whole, opened=Opened(items=(items.decode(_encode(plain)),)))


def opened(item: Item, sealer: Sealer, owner: str) -> Item:
    """``item`` with what it stands for; raises :func:`unverified`."""
    if item.type not in SEALABLE or item.opened is not None:
        return item
    text = item.sealed
    if text is None:
        return item
    data = sealer.open(owner, text)
    try:
        content = _content.decode(data)
        if isinstance(item.view, Compaction) and isinstance(content, Folded):
            return replace(item, opened=_history_of(content))
        if isinstance(item.view, Reasoning) and isinstance(content, Thought):
            return _plain(item, item.view, content.content)
    except (ApiError, msgspec.MsgspecError):
        # Sealed by a version whose content this one does not read.
        raise unverified() from None
    raise unverified()


def opened_again(item: Item, sealer: Sealer, owner: str) -> Item:
    """An item of the owner's stored chain, opened; raises :func:`unverified`.

    A thought that no key opens any more is left out: the chain goes on without it.
    """
    view = item.view
    if not isinstance(view, Reasoning) or item.sealed is None:
        return opened(item, sealer, owner)
    if view.content:
        return _plain(item, view, view.content)
    # The owner's stored history has to stay usable when a key has been taken out of use.
    try:
        return opened(item, sealer, owner)
    except ApiError:
        return _plain(item, view, [])


def _history_of(content: Folded) -> Opened:
    return Opened(
        items=tuple(items.decode(raw) for raw in content.items),
        whole=content.whole,
        behind=None if content.behind is None else tuple(content.behind),
        users=content.users,
    )


def _plain(item: Item, view: Reasoning, content: list[Raw]) -> Item:
    bare = items.encode(replace(view, content=content, encrypted_content=None))
    return replace(item, opened=Opened(items=(bare,)))


def shown(some: Sequence[Item]) -> tuple[Sequence[Item], bool]:
    """``some`` as an engine reads them, and whether they stand for all that came before.

    >>> shown([items.encode(Message(role="user", content="hi"))])[1]
    False
    """
    # Nearly all input is shown as it is, and is handed back without a copy.
    for item in some:
        if item.opened is not None:
            break
    else:
        return some, False
    result: list[Item] = []
    restarts = False
    for item in some:
        if item.opened is None:
            result.append(item)
        elif item.opened.whole:
            result, restarts = list(item.opened.items), True
        else:
            result = _woven(result, item.opened)
    return result, restarts


def is_user(item: Item) -> bool:
    """Whether the user says this."""
    return isinstance(item.view, Message) and item.view.role == "user"


def _woven(before: list[Item], opened: Opened) -> list[Item]:
    """``before`` with the folded items back in their places among the user messages.

    A client that has changed the window gets them behind it, in their order.
    """
    # Counted rather than compared: that is enough to see that the window was changed.
    if opened.behind is None or sum(map(is_user, before)) != opened.users:
        return [*before, *opened.items]
    folded = deque(zip(opened.behind, opened.items, strict=False))
    woven: list[Item] = []
    passed = 0
    for item in before:
        if is_user(item):
            while folded and folded[0][0] <= passed:
                woven.append(folded.popleft()[1])
            passed += 1
        woven.append(item)
    return [*woven, *(item for _, item in folded)]
