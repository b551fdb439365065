"""The interface of engines: each engine of the table has it; an engine's error is the client's."""

import inspect
from typing import get_type_hints

import pytest

from tieline.errors import ApiError
from tieline_server.engines import ENGINES, kind_of
from tieline_server.engines.base import Engine, EngineError, Model

METHODS = {name: each for name, each in vars(Engine).items() if inspect.isfunction(each)}


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_of_the_table_has_the_whole_interface(name: str) -> None:
    engine = get_type_hints(kind_of(name).open)["return"]
    declared = {method for method in METHODS if not method.startswith("_")}
    assert declared == {"models", "sample", "count", "close"}
    assert engine.name == name
    for method in declared:
        wanted = inspect.signature(METHODS[method]).parameters
        assert inspect.signature(getattr(engine, method)).parameters.keys() == wanted.keys()
    assert inspect.isasyncgenfunction(engine.sample)


def test_an_engines_refusal_is_the_api_error_of_its_code() -> None:
    error = EngineError.of("context_length_exceeded", "Too long.")
    assert isinstance(error, ApiError)
    assert (error.status, error.code, error.message) == (
        400,
        "context_length_exceeded",
        "Too long.",
    )


def test_a_model_can_be_steered_unless_its_engine_says_otherwise() -> None:
    assert Model(id="m").steering
    assert not Model(id="m", steering=False).steering
