"""Words that OpenAI's API has where it has a list of them."""

import pytest

from tests.support.core import create_of
from tieline.errors import ApiError
from tieline_server.core import known_values
from tieline_server.core.known_values import INCLUDE, TIERS, TRUNCATIONS


def test_every_word_of_a_list_passes() -> None:
    for tier in TIERS:
        known_values.check(create_of(service_tier=tier, include=list(INCLUDE)))
    for truncation in TRUNCATIONS:
        known_values.check(create_of(truncation=truncation))
    known_values.check(create_of())


@pytest.mark.parametrize(
    ("members", "param", "known"),
    [
        ({"truncation": ""}, "truncation", TRUNCATIONS),
        ({"truncation": "never"}, "truncation", TRUNCATIONS),
        ({"service_tier": "gold"}, "service_tier", TIERS),
        ({"include": ["", INCLUDE[0]]}, "include[0]", INCLUDE),
    ],
)
def test_a_word_that_is_on_none_is_refused_with_those_that_are(
    members: dict[str, object], param: str, known: tuple[str, ...]
) -> None:
    with pytest.raises(ApiError) as refused:
        known_values.check(create_of(**members))
    assert (refused.value.code, refused.value.param) == ("invalid_value", param)
    assert all(f"'{each}'" in refused.value.message for each in known)
