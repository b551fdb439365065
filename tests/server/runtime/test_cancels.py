"""Words that were left for this process are heard, and by no other owner's turn."""

from collections.abc import Sequence

import pytest

from tests.support.core import LOCAL
from tests.support.runtime import Stage, endless, until
from tieline import events
from tieline_server.runtime import cancels, heed_cancels
from tieline_server.storage.base import Cancellation
from tieline_server.storage.memory import MemoryJournal


class Words(MemoryJournal):
    """Tells each word once; the first question fails."""

    def __init__(self) -> None:
        super().__init__(now=lambda: 0.0)
        self.wanted: list[Cancellation] = []
        self.asked = 0

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """What was left."""
        self.asked += 1
        if self.asked == 1:
            raise OSError("gone")
        told, self.wanted = self.wanted, []
        return told


async def test_a_word_cancels_the_owners_turn_and_an_outage_does_not_end_the_hearing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancels, "PERIOD", 0.0)
    monkeypatch.setattr(cancels, "PAUSE", 0.0)

    stage = Stage(endless)
    journal = Words()
    stage.replace(journal=journal)
    stage.create()
    made = (await stage.until(events.ResponseCreated)).response
    journal.wanted = [Cancellation(owner="another", response_id=made.id)]
    stage.services.running.always(heed_cancels(stage.services))
    await until(lambda: journal.asked > 3)
    assert not stage.records
    journal.wanted = [Cancellation(owner=LOCAL.owner, response_id=made.id)]
    ended = (await stage.until(events.ResponseIncomplete)).response
    assert ended.status == "cancelled"
    await stage.driver.close()
    await stage.services.running.close()
