"""Which models there are, who samples them, and what reads them."""

import asyncio
import io
import re
from pathlib import Path

import pytest

from tests.support.server_process import write_script
from tieline.errors import ApiError, TielineError
from tieline_server.app import opened
from tieline_server.config import Config
from tieline_server.core.values import Principal
from tieline_server.engines.base import Engine
from tieline_server.engines.scripted import ScriptedEngine
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.guards.guarded import GuardedEngine
from tieline_server.observability.telemetry import make_logger
from tieline_server.runtime import Services
from tieline_server.runtime.sampling import catalog_of
from tieline_server.workers.worker_context import ProcessContext


def services(**flags: object) -> Services:
    """What the settings become, looked at when all is closed again."""

    async def main() -> Services:
        log = make_logger("json", "info", io.BytesIO())
        async with opened(Config.load({"engine": "scripted", **flags}), log, ProcessContext()) as (
            found,
            _,
        ):
            return found

    return asyncio.run(main())


def test_the_first_model_of_the_engine_is_the_default(tmp_path: Path) -> None:
    script = write_script(tmp_path, models=["first", {"name": "second", "steering": False}])
    found = services(script=script)
    default, second = found.catalog.resolve(None), found.catalog.resolve("second")
    assert default is not None
    assert second is not None
    assert (default.model, default.engine, default.steering) == ("first", "scripted", True)
    assert second.steering is False
    assert found.catalog.resolve("third") is None


def test_every_model_of_every_engine_has_a_route(tmp_path: Path) -> None:
    script = Path(write_script(tmp_path, models=["a", "b"]))
    engines = {"one": ScriptedEngine(script), "two": ScriptedEngine()}
    catalog = catalog_of(Config.load({"engine": "scripted"}), engines)
    found = [(route.engine, route.model) for route in catalog.entries()]
    assert found == [("one", "a"), ("one", "b"), ("two", "scripted")]


def test_a_table_names_one_model_of_its_engine(tmp_path: Path) -> None:
    script = Path(write_script(tmp_path, models=["a", "b"]))
    config = tmp_path / "tieline.toml"
    config.write_text(
        """
        [models.mine]
        model = "b"
        aliases = ["yours"]
        max_output_tokens = 3
        [models.first]
        """
    )
    found = services(config=config, script=script)
    resolved = found.catalog.resolve("yours")
    assert resolved is not None
    assert (resolved.model, resolved.served, resolved.defaults.max_output_tokens) == (
        "mine",
        "b",
        3,
    )
    assert found.catalog.resolve(None) == resolved
    assert found.catalog.resolve("b") is None
    everyone = Principal(owner="ann")
    assert [model.id for _, model in found.offered(everyone)] == ["mine", "first"]
    one = Principal(owner="ann", models=frozenset({"first"}))
    assert [model.id for _, model in found.offered(one)] == ["first"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[models.x]\nmodel = "none"', "models.x: the engine serves no 'none'; it has: scripted"),
        ('[models.x]\nengine = "none"', "no engine 'none'"),
        ('[models.x]\naliases = ["y"]\n[models.y]', "more than one model has the name 'y'"),
    ],
)
def test_a_table_that_nobody_can_serve_is_refused_at_the_start(
    text: str, said: str, tmp_path: Path
) -> None:
    config = tmp_path / "tieline.toml"
    config.write_text(text)
    with pytest.raises(TielineError, match=re.escape(said)):
        services(config=config)


def test_models_without_guards_are_sampled_by_the_engine_itself(tmp_path: Path) -> None:
    assert type(services().engines["scripted"]) is ScriptedEngine
    config = tmp_path / "tieline.toml"
    guard = '[guards.patterns]\nkind = "pattern"\npatterns = ["bad"]\n'
    config.write_text(guard)
    guarded = services(config=config)
    assert type(guarded.engines["scripted"]) is GuardedEngine
    assert guarded.engines["scripted"].name == "scripted"
    config.write_text(f"{guard}[models.free]\nguards = []\n")
    free = services(config=config)
    assert type(free.engines["scripted"]) is ScriptedEngine


async def test_op_03_models_of_an_engine_that_is_awaited_are_told_apart_from_those_that_are_not(
    tmp_path: Path,
) -> None:
    config = tmp_path / "tieline.toml"
    config.write_text(
        """
        [models.far]
        upstream = "http://127.0.0.1:1"
        aliases = ["remote"]
        [models.near]
        aliases = ["local"]
        """
    )

    engines: dict[str, Engine] = {
        "upstream": UpstreamEngine(["http://127.0.0.1:1"]),
        "scripted": ScriptedEngine(),
    }
    catalog = catalog_of(Config.load({"engine": "scripted", "config": config}), engines)
    assert [entry.model for entry in catalog.entries()] == ["near"]
    assert catalog.resolve("local") == catalog.resolve("near") != catalog.resolve("none")
    for name in ("far", "remote", None):
        with pytest.raises(ApiError) as awaited:
            catalog.resolve(name)
        assert (awaited.value.status, awaited.value.retry_after) == (503, 1.0)
