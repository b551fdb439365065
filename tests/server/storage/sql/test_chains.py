"""Chains as rows: found by their owner alone, read in order, gone when nobody needs them."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine, func, insert, select

from tieline.items import Item, decode
from tieline_server.core.history.chain import ChainNode
from tieline_server.storage.sql import chains
from tieline_server.storage.sql.schema import EVENTS, ITEMS, METADATA, NODES, RESPONSES

KEY = object()


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.connect() as connection:
        # As the server's own connections have it: items go with their node.
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        yield connection
    engine.dispose()


def said(words: str) -> Item:
    return decode(f'{{"role":"user","content":"{words}","id":"msg_{words}"}}'.encode())


def node(connection: Connection, *words: str, parent: int | None = None, turn: int = 1) -> int:
    items = [said(each) for each in words]
    size = sum(len(item.raw) for item in items)
    made = chains.insert_node(connection, owner="ann", parent=parent, turn=turn, size=size)
    chains.insert_items(connection, items, node=made, owner="ann")
    return made


def test_a_chain_is_read_from_its_beginning_with_each_items_bytes(connection: Connection) -> None:
    first = node(connection, "a", "b")
    second = node(connection, parent=first, turn=2)
    third = node(connection, "c", parent=second, turn=3)
    node(connection, "fork", parent=first, turn=2)
    links = chains.decoded(chains.read_chain(connection, node=third, owner="ann"), KEY)
    assert [[item.raw for item in link.items] for link in links] == [
        [said("a").raw, said("b").raw],
        [],
        [said("c").raw],
    ]
    assert [link.turn for link in links] == [1, 2, 3]
    assert links[-1].parent is links[-2]


def test_to_another_owner_there_is_no_such_chain(connection: Connection) -> None:
    tip = node(connection, "a")
    assert chains.read_chain(connection, node=tip, owner="bob") == []
    assert not chains.touch(connection, node=tip, owner="bob", now=1.0)


def test_the_key_of_an_item_is_its_owners_alone() -> None:
    assert chains.lookup("ann", "x") != chains.lookup("bob", "x")
    assert chains.lookup("a", "nnx") != chains.lookup("ann", "x")
    assert chains.lookup("ann", "\ud800") != chains.lookup("ann", "\ud801")


def test_what_was_never_stored_becomes_one_node_and_only_once(connection: Connection) -> None:
    link = ChainNode(ChainNode(None, (said("a"),), turn=1), (said("b"),), turn=1)
    made, new = chains.attach(connection, link, owner="ann", key=KEY, now=1.0)
    assert new
    assert made is not None
    (read,) = chains.decoded(chains.read_chain(connection, node=made, owner="ann"), KEY)
    assert [item.raw for item in read.items] == [said("a").raw, said("b").raw]
    assert chains.attach(connection, None, owner="ann", key=KEY, now=1.0) == (None, False)


def test_a_node_goes_with_all_that_it_alone_had_needed(connection: Connection) -> None:
    root = node(connection, "a")
    left = node(connection, "b", parent=root, turn=2)
    right = node(connection, "c", parent=root, turn=2)
    assert chains.remove_node(connection, root) == 0, "both forks need it"
    assert chains.remove_node(connection, left) == len(said("b").raw)
    assert len(chains.read_chain(connection, node=right, owner="ann")) == 2
    assert chains.remove_node(connection, right) == len(said("c").raw) + len(said("a").raw)
    for table in (NODES, ITEMS):
        assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 0


def test_a_response_that_is_not_there_removes_nothing(connection: Connection) -> None:
    node(connection, "a")
    assert chains.remove_response(connection, owner="ann", response_id="resp_x") is None


@pytest.mark.parametrize("begun", [False, True])
def test_events_go_with_their_response_and_stay_with_the_one_in_its_place(
    connection: Connection, begun: bool
) -> None:
    def store() -> None:
        row = {"owner": "ann", "id": "resp_1", "node": node(connection, "a"), "body": b"{}"}
        row |= {"created_at": 1.0, "terminal": 1 if begun else None}
        connection.execute(insert(RESPONSES), row)

    def events() -> int:
        return connection.execute(select(func.count()).select_from(EVENTS)).scalar_one()

    row = {"owner": "ann", "response": "resp_1", "first": 0, "next": 1, "usage": b"", "blob": b""}
    connection.execute(insert(EVENTS), [row, row | {"owner": "bob"}])
    store()
    assert chains.take_out(connection, owner="ann", response_id="resp_1") is not None
    assert events() == 2
    store()
    assert chains.remove_response(connection, owner="ann", response_id="resp_1") is not None
    assert events() == (1 if begun else 2)


def test_what_no_database_takes_is_no_response() -> None:
    assert chains.askable("resp_1")
    assert [chains.askable(odd) for odd in ("r\x00", "\u00e9", "\ud800")] == [False] * 3
