"""The table of guards."""

import pytest

from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards import GUARDS, load
from tieline_server.guards.base import GuardError, Watching
from tieline_server.guards.pattern import PatternGuard
from tieline_server.guards.remote import RemoteGuard


async def test_a_table_becomes_the_guard_of_its_kind() -> None:
    pattern = load("p", GuardSettings(kind="pattern", patterns=("bad",), applies=("output",)))
    assert isinstance(pattern, PatternGuard)
    assert (pattern.name, *pattern.applies) == ("p", "output")
    remote = load("r", GuardSettings(kind="remote", url="http://127.0.0.1:1"), key="k")
    try:
        assert isinstance(remote, RemoteGuard)
        assert isinstance(pattern, Watching)
        assert not isinstance(remote, Watching)
    finally:
        await remote.close()


def test_every_kind_of_the_settings_is_in_the_table() -> None:
    kinds = GuardSettings.model_fields["kind"].annotation
    assert set(GUARDS) == set(kinds.__args__)  # type: ignore[union-attr]  # it is a Literal


def test_a_guard_that_cannot_be_had_is_named() -> None:
    with pytest.raises(GuardError, match=r"^guards\.p: '\(': RE2 refuses it"):
        load("p", GuardSettings(kind="pattern", patterns=("(",)))
