"""Chains as rows: written node by node, read whole by one question, removed from their ends."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from msgspec import Struct
from sqlalchemy import (
    Connection,
    Double,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)

from tieline.items import Item, decode
from tieline_server.core.history.chain import ChainNode
from tieline_server.storage.sql import running
from tieline_server.storage.sql.schema import ITEMS, NODES, RESPONSES

DIGEST: Final = 16
"""Bytes of an item's lookup key. Ids of items are the client's: of any length, with any sign."""


def lookup(owner: str, item_id: str) -> bytes:
    """The key under which an owner's item is found: another owner's never meets it."""
    named = f"{len(owner)}:{owner}{item_id}".encode(errors="surrogatepass")
    return blake2b(named, digest_size=DIGEST).digest()


# Writing.

_INSERT_NODE: Final = insert(NODES).returning(NODES.c.id)
_INSERT_ITEMS: Final = insert(ITEMS)
_TOUCH: Final = (
    update(NODES)
    .where(NODES.c.id == bindparam("node"), NODES.c.owner == bindparam("by"))
    # A node without a response has no time of use, and gets none.
    .values(
        used_at=case((NODES.c.used_at.is_not(None), bindparam("now", type_=Double)), else_=None)
    )
)


def insert_node(
    connection: Connection,
    *,
    owner: str,
    parent: int | None,
    turn: int,
    size: int = 0,
    used_at: float | None = None,
    draft: float | None = None,
) -> int:
    """A new node; returns its number."""
    members = {"owner": owner, "parent": parent, "turn": turn, "size": size}
    row = {**members, "used_at": used_at, "draft": draft}
    return int(connection.execute(_INSERT_NODE, row).scalar_one())


def insert_items(
    connection: Connection, items: Sequence[Item], *, node: int, owner: str, start: int = 0
) -> None:
    """The items of a node from place ``start`` on."""
    if not items:
        return
    rows = [
        {
            "node": node,
            "position": start + index,
            "lookup": lookup(owner, item.id) if item.id is not None else None,
            "raw": item.raw,
        }
        for index, item in enumerate(items)
    ]
    connection.execute(_INSERT_ITEMS, rows)


def touch(connection: Connection, *, node: int, owner: str, now: float) -> bool:
    """An owner's node is in use; False where there is no such (any more).

    It cannot go before the transaction ends.
    """
    return connection.execute(_TOUCH, {"node": node, "by": owner, "now": now}).rowcount == 1


def attach(
    connection: Connection, after: ChainNode | None, *, owner: str, key: object, now: float
) -> tuple[int | None, bool]:
    """The node that stands for the chain up to ``after``, and whether it was made for that.

    ``key`` is where chain nodes remember their rows. What no node has yet (turns that were not
    stored, or whose rows have gone since) becomes one node without a response.
    """
    missing: list[ChainNode] = []
    each, node = after, None
    while each is not None:
        known = each.memo.get(key)
        if known is not None and touch(connection, node=known, owner=owner, now=now):
            node = known
            break
        missing.append(each)
        each = each.parent
    if after is None or not missing:
        return node, False
    items = [item for each in reversed(missing) for item in each.items]
    size = sum(len(item.raw) for item in items)
    made = insert_node(connection, owner=owner, parent=node, turn=after.turn, size=size)
    insert_items(connection, items, node=made, owner=owner)
    return made, True


# Reading.

_HEAD: Final = select(NODES.c.id, NODES.c.parent, NODES.c.turn, literal(0).label("level")).where(
    NODES.c.id == bindparam("node"), NODES.c.owner == bindparam("owner")
)
_CHAIN: Final = _HEAD.cte("chain", recursive=True)
_WHOLE: Final = _CHAIN.union_all(
    select(NODES.c.id, NODES.c.parent, NODES.c.turn, (_CHAIN.c.level + 1).label("level")).where(
        NODES.c.id == _CHAIN.c.parent, NODES.c.owner == bindparam("owner")
    )
)
_READ: Final = (
    select(_WHOLE.c.id, _WHOLE.c.turn, ITEMS.c.raw)
    .select_from(_WHOLE.outerjoin(ITEMS, ITEMS.c.node == _WHOLE.c.id))
    .order_by(_WHOLE.c.level.desc(), ITEMS.c.position)
)


ChainRow = tuple[int, int, bytes | None]
"""A node, its turn, an item; None where the node has no items."""


def read_chain(connection: Connection, *, node: int, owner: str) -> list[ChainRow]:
    """The chain that ends at a node, from its beginning, in order."""
    rows = connection.execute(_READ, {"node": node, "owner": owner})
    return [(row[0], row[1], row[2]) for row in rows]


def decoded(rows: Iterable[ChainRow], key: object) -> list[ChainNode]:
    """The nodes of a chain that was read."""
    read: dict[int, tuple[int, list[Item]]] = {}
    for node, turn, raw in rows:
        _, items = read.setdefault(node, (turn, []))
        if raw is not None:
            items.append(decode(raw))
    chain: list[ChainNode] = []
    for node, (turn, items) in read.items():
        made = ChainNode(chain[-1] if chain else None, tuple(items), turn=turn)
        made.memo[key] = node
        chain.append(made)
    return chain


# Removing.

_CHILD: Final = NODES.alias("child")
_FREE: Final = (
    select(NODES.c.id, NODES.c.parent)
    .where(
        NODES.c.id == bindparam("node"),
        ~exists().where(_CHILD.c.parent == NODES.c.id),
    )
    .cte("free", recursive=True)
)
_UPWARDS: Final = _FREE.union_all(
    select(NODES.c.id, NODES.c.parent).where(
        NODES.c.id == _FREE.c.parent,
        NODES.c.used_at.is_(None),
        NODES.c.draft.is_(None),
        ~exists().where(_CHILD.c.parent == NODES.c.id, _CHILD.c.id != _FREE.c.id),
    )
)
_REMOVE: Final = delete(NODES).where(NODES.c.id.in_(select(_UPWARDS.c.id))).returning(NODES.c.size)
_ITEM_BYTES: Final = (
    select(func.coalesce(func.sum(func.length(ITEMS.c.raw)), 0))
    .where(ITEMS.c.node == NODES.c.id)
    .scalar_subquery()
)
_SIZES: Final = select(NODES.c.size, _ITEM_BYTES).where(NODES.c.id == bindparam("node"))
_STRIP: Final = (
    update(NODES)
    .where(NODES.c.id == bindparam("stripped"))
    .values(used_at=None, draft=None, size=bindparam("left"))
)
_DROP: Final = (
    delete(RESPONSES)
    .where(RESPONSES.c.owner == bindparam("by"), RESPONSES.c.id == bindparam("response"))
    .returning(RESPONSES.c.node, RESPONSES.c.terminal)
)


class Removed(Struct, frozen=True):
    """A response that was there: where its chain ended, and the bytes that went."""

    node: int
    size: int
    begun: bool
    """Whether it may have events and claims."""


def remove_response(connection: Connection, *, owner: str, response_id: str) -> Removed | None:
    """Removes an owner's response and all that only it needed; None where there is none."""
    removed = take_out(connection, owner=owner, response_id=response_id)
    if removed is not None and removed.begun:
        running.forget(connection, owner=owner, response_id=response_id)
    return removed


def take_out(connection: Connection, *, owner: str, response_id: str) -> Removed | None:
    """Removes a response that another one of its id takes the place of: its events stay."""
    found = connection.execute(_DROP, {"by": owner, "response": response_id}).first()
    if found is None:
        return None
    size = remove_node(connection, found.node)
    return Removed(found.node, size, found.terminal is not None)


def remove_node(connection: Connection, node: int) -> int:
    """Removes a node that has no response any more, and what it alone had needed.

    One that others continue stays for them, and is theirs alone. Returns the bytes that went.
    """
    gone = connection.execute(_REMOVE, {"node": node}).scalars().all()
    if gone:
        return sum(gone)
    sizes = connection.execute(_SIZES, {"node": node}).first()
    if sizes is None:
        return 0
    size, left = sizes
    connection.execute(_STRIP, {"stripped": node, "left": left})
    return int(size - left)


def askable(response_id: str) -> bool:
    """Whether a response could be called that: a database takes not every string."""
    return response_id.isascii() and "\x00" not in response_id
