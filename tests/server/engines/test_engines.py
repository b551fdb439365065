"""The table of engines, and what is said when one cannot be had."""

import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from tieline.errors import how_to_install
from tieline_server import engines
from tieline_server.config import Config
from tieline_server.config.toml_tables import ModelSettings
from tieline_server.engines import ENGINES, EngineMissing, bpe, load
from tieline_server.engines.base import Opening


def opening(**settings: object) -> Opening:
    """The scripted engine as these settings ask for it."""
    config = Config.load({"engine": "scripted", **settings})
    return Opening(config, "scripted", ModelSettings.model_validate({}))


def test_an_engine_is_loaded_by_its_name_with_its_settings(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"models": ["mine"]}')
    engine = load("scripted", opening(script=rules))
    assert engine.name == "scripted"
    assert [model.id for model in engine.models()] == ["mine"]


def test_every_engine_of_the_table_names_an_extra() -> None:
    extras = metadata("tieline").get_all("Provides-Extra") or []
    assert {entry.extra for entry in ENGINES.values()} <= {*extras}


def test_a_name_outside_of_the_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        EngineMissing, match=r"^no engine 'gpt'; known are: llama, scripted, upstream$"
    ):
        load("gpt", opening())


def test_a_package_that_is_missing_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tieline_server.engines import bpe

    bpe.shipped.cache_clear()
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(EngineMissing) as caught:
        load("scripted", opening())
    assert str(caught.value) == (
        f"the scripted engine needs the package 'tiktoken': {how_to_install('server')}"
    )


def test_a_module_of_our_own_that_is_missing_is_a_bug_and_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tieline_server.engines.scripted", None)
    with pytest.raises(ModuleNotFoundError):
        load("scripted", opening())


def test_what_is_prepared_is_there_and_what_is_unknown_or_missing_is_left_to_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines.prepare("none")
    monkeypatch.setitem(sys.modules, "tieline_server.engines.scripted", None)
    engines.prepare("scripted")
    monkeypatch.undo()
    engines.prepare("scripted")
    read = bpe.shipped.cache_info()
    assert load("scripted", opening()).name == "scripted"
    assert bpe.shipped.cache_info().misses == read.misses
