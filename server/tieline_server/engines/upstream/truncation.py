"""``truncation: auto``: which links of a chain are sent where not all of them fit.

Whole links go, from the oldest on. What is sent begins where a message to the model is, so
that no tool's output stands there without its call. Once something has to go, a quarter more
goes than has to: the turns after it then find the same beginning, which the upstream has cached.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from tieline.items import Message
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode

T = TypeVar("T")

BYTES_PER_TOKEN: Final = 4
"""What the estimate of a prompt's size goes by."""

RESERVE: Final = 512
"""Tokens kept free for the answer where the create has no limit."""

SHORTER: Final = 0.7
"""What is asked for of a prompt that an upstream found too long, again and again."""

_SIZE: Final = "upstream.size"
_START: Final = "upstream.start"


def tokens_in(size: int) -> int:
    """About how many tokens so many bytes of JSON are.

    >>> tokens_in(9)
    3
    """
    return -(-size // BYTES_PER_TOKEN)


def room_of(prompt: Prompt, context: int | None) -> int | None:
    """Tokens that the input may have; None where nothing is to be left out."""
    if prompt.settings.truncation != "auto" or context is None:
        return None
    return context - min(prompt.max_output_tokens or RESERVE, context // 2)


def start_of(prompt: Prompt, room: int | None) -> ChainNode | None:
    """The first link that is sent, or None for all: what follows is about ``room`` tokens."""
    if room is None:
        return None
    last_node, settings = prompt.chain, prompt.settings
    head = len(settings.instructions or "") + len(bytes(settings.tools.echo))
    most = room * BYTES_PER_TOKEN - head
    if last_node.derive(_SIZE, 0, lambda total, link: total + link.size) <= most:
        return None
    links, kept = _fitting(last_node, most)
    if kept is None:
        slack = _fitting(last_node, most * 3 // 4)[0]
        kept = _oldest_start(slack) or _oldest_start(links) or _newest_start(last_node)
    if kept is not None:
        last_node.memo[_START] = kept
    return kept


def derived_from(
    start: ChainNode,
    last_node: ChainNode,
    key: str,
    *,
    step: Callable[[T, ChainNode], T],
    initial: T,
) -> T:
    """As :meth:`ChainNode.derive`, as if nothing stood before ``start``."""
    pending: list[ChainNode] = []
    mine = (key, start)
    link: ChainNode | None = last_node
    while link is not None and mine not in link.memo:
        pending.append(link)
        link = link.base if link is not start else None
    value: T = link.memo[mine] if link is not None else initial
    for each in reversed(pending):
        value = each.memo[mine] = step(value, each)
    return value


def _fitting(last_node: ChainNode, most: int) -> tuple[list[ChainNode], ChainNode | None]:
    """The newest links of so many bytes; and the last start, where it is among them."""
    links: list[ChainNode] = []
    last: ChainNode | None = None
    link: ChainNode | None = last_node
    while link is not None and link.size <= most:
        most -= link.size
        links.append(link)
        last = last or link.memo.get(_START)
        if link is last:
            return links, last
        link = link.base
    return links, None


def _oldest_start(links: list[ChainNode]) -> ChainNode | None:
    return next(filter(_may_start, reversed(links)), None)


def _newest_start(last_node: ChainNode) -> ChainNode | None:
    link: ChainNode | None = last_node
    while link is not None and not _may_start(link):
        link = link.base
    return link


def _may_start(link: ChainNode) -> bool:
    """Whether an item that the model did not write is first in it, and no call waits before it."""
    before = link.base
    if not link.shown or (before is not None and before.open_calls):
        return False
    view = link.shown[0].view
    return isinstance(view, Message) and view.role != "assistant"
