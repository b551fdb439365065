"""What workers have counted stays counted when one of them dies."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tieline.errors import ApiError
from tieline_server.workers.totals import DEAD, Totals, merge_dead

A, B, C = b"\0\1", b"\0\2", b"\xff\xff"


def text(count: int, *, gauge: int = 0) -> bytes:
    """What a worker tells."""
    return (
        "# HELP g A gauge.\n# TYPE g gauge\n"
        f"g {gauge}\n"
        "# HELP n_total A counter.\n# TYPE n_total counter\n"
        f"n_total {count}\n"
    ).encode()


class Told:
    """A peer that tells its numbers, or is gone; what happens ``meanwhile`` happens first."""

    def __init__(self, answer: bytes | None, meanwhile: Any = lambda: None) -> None:
        self.answer = answer
        self.meanwhile = meanwhile

    async def metrics(self) -> bytes:
        """See ``Peer``."""
        self.meanwhile()
        if self.answer is None:
            raise ApiError.of("server_error", "gone")
        return self.answer


def added(folder: Path, peers: Mapping[bytes, Told]) -> tuple[int, int]:
    """The gauge and the counter of all."""
    found = asyncio.run(Totals(folder, A).add_up(peers)).decode()  # type: ignore[arg-type]
    values = dict(line.split() for line in found.splitlines() if not line.startswith("#"))
    return int(values["g"]), int(values["n_total"])


def test_the_living_add_up(tmp_path: Path) -> None:
    peers = {A: Told(text(1, gauge=10)), B: Told(text(2, gauge=20))}
    assert added(tmp_path, peers) == (30, 3)


def test_one_that_does_not_answer_counts_with_what_it_has_written_down(tmp_path: Path) -> None:
    Totals(tmp_path, B).recorded(text(2, gauge=20))
    assert added(tmp_path, {A: Told(text(1, gauge=10)), B: Told(None)}) == (10, 3)
    assert added(tmp_path, {A: Told(text(1, gauge=10))}) == (10, 3)


def test_the_dead_are_kept_together_once_they_are_buried(tmp_path: Path) -> None:
    for tag, count in ((B, 2), (C, 4)):
        Totals(tmp_path, tag).recorded(text(count, gauge=20))
        merge_dead(tmp_path, tag)
    merge_dead(tmp_path, b"\7\7")
    assert [path.name for path in tmp_path.iterdir()] == ["dead.totals"]
    assert added(tmp_path, {A: Told(text(1, gauge=10))}) == (10, 7)


def test_one_that_dies_and_is_buried_while_it_is_asked_counts_once(tmp_path: Path) -> None:
    def dies() -> None:
        Totals(tmp_path, B).recorded(text(2))
        merge_dead(tmp_path, B)

    for answer in (None, text(2)):
        peers = {A: Told(text(1)), B: Told(answer, dies)}
        assert added(tmp_path, peers) == (0, 3)
        (tmp_path / "dead.totals").unlink()


def test_what_cannot_be_written_down_is_told_all_the_same(tmp_path: Path) -> None:
    totals = Totals(tmp_path / "gone", b"ab")
    assert totals.recorded(b"some") == b"some"
    (tmp_path / "gone").mkdir()
    assert totals.recorded(b"some") == b"some"
    assert (tmp_path / "gone" / "6162.totals").read_bytes() == b"some"


def test_numbers_of_the_dead_that_cannot_be_joined_stay_where_they_are(tmp_path: Path) -> None:
    Totals(tmp_path, b"ab").recorded(b"some")
    (tmp_path / DEAD).mkdir()
    merge_dead(tmp_path, b"ab")
    assert (tmp_path / "6162.totals").read_bytes() == b"some"
