"""Model names: what they resolve to."""

import pytest

from tieline.errors import ApiError
from tieline_server.core.values import Resolved
from tieline_server.models.catalog import ALL, ModelCatalog, RoutingError

SMALL = Resolved(model="small", engine="llama")
LARGE = Resolved(model="large", engine="upstream", steering=False)


def test_a_name_is_the_model_of_that_name() -> None:
    assert ModelCatalog([SMALL, LARGE]).resolve("large") == LARGE


def test_no_name_is_the_first_model() -> None:
    assert ModelCatalog([SMALL, LARGE]).resolve(None) == SMALL


@pytest.mark.parametrize("name", ["", "Small", "small ", "none"])
def test_an_unknown_name_is_none(name: str) -> None:
    assert ModelCatalog([SMALL]).resolve(name) is None


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(RoutingError, match="named 'small'"):
        ModelCatalog([SMALL, Resolved(model="small", engine="upstream")])


def test_a_server_without_a_model_is_refused() -> None:
    with pytest.raises(RoutingError, match="no engine serves a model"):
        ModelCatalog([])


def test_aliases_are_further_names_that_no_list_has() -> None:
    catalog = ModelCatalog([SMALL, LARGE], [("tiny", "small"), ("huge", "large")])
    assert catalog.resolve("tiny") == SMALL
    assert catalog.resolve("huge") == LARGE
    assert catalog.entries() == (SMALL, LARGE)


@pytest.mark.parametrize("aliases", [[("large", "small")], [("x", "small"), ("x", "large")]])
def test_a_name_that_two_models_have_is_refused(aliases: list[tuple[str, str]]) -> None:
    with pytest.raises(RoutingError, match="more than one model has the name"):
        ModelCatalog([SMALL, LARGE], aliases)


def test_op_03_while_all_models_are_awaited_any_name_may_come() -> None:
    catalog = ModelCatalog([], awaited=ALL)
    for name in (None, "small"):
        with pytest.raises(ApiError) as awaited:
            catalog.resolve(name)
        assert awaited.value.code == "engine_unavailable"
    catalog.become(ModelCatalog([SMALL]))
    assert catalog.resolve(None) == catalog.resolve("small") == SMALL
    assert catalog.entries() == (SMALL,)
    assert catalog.resolve("large") is None
