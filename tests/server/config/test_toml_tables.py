"""Tables of the configuration file: what one may say, and what is refused in one line."""

from typing import Any

import pytest
from pydantic import ValidationError

from tieline_server.config.toml_tables import GuardSettings, ModelSettings, Price, listed


def refusal(table: type[GuardSettings] | type[ModelSettings], **members: Any) -> str:
    """Why a table is refused."""
    with pytest.raises(ValidationError) as refused:
        table.model_validate(members)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"), [("", []), (" , ", []), ("a", ["a"]), (" a ,b,", ["a", "b"])]
)
def test_a_list_has_commas_and_no_empty_words(text: str, words: list[str]) -> None:
    assert listed(text) == words


def test_cached_tokens_cost_what_other_input_does_unless_they_have_a_price() -> None:
    used = {"input_tokens": 2_000_000, "cached_tokens": 1_000_000, "output_tokens": 500_000}
    assert Price.model_validate({"input": 3, "output": 8}).of(**used) == 10.0
    assert Price.model_validate({"input": 3, "cached_input": 1, "output": 8}).of(**used) == 8.0


@pytest.mark.parametrize("price", [{"input": -1, "output": 1}, {"input": 1}, {"input": "inf"}])
def test_a_price_is_a_number_of_both_ways(price: dict[str, Any]) -> None:
    assert "price" in refusal(ModelSettings, price=price)


@pytest.mark.parametrize(
    "url",
    [
        "",
        ",",
        "model:8000",
        "ftp://a/v1",
        "http://user:secret@host/v1",
        "http://h/?key=1",
        "http://h:port",
        "http://h:99999",
        "http://h:0",
        "http://:80",
        "http://[::1",
    ],
)
def test_an_upstream_is_urls_without_a_secret_and_the_refusal_repeats_none(url: str) -> None:
    said = refusal(ModelSettings, upstream=url)
    assert "URL" in said
    both = "http://a:1/v1,https://b,http://[::1]:65535/v1"
    assert ModelSettings.model_validate({"upstream": both}).upstream == both


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "kind"),
        ({"kind": "words"}, "kind"),
        ({"kind": "pattern"}, "needs 'patterns' or a 'file'"),
        ({"kind": "pattern", "patterns": ["a"], "url": "http://a"}, "has no 'url'"),
        ({"kind": "remote"}, "needs one 'url'"),
        ({"kind": "remote", "url": "http://a,http://b"}, "needs one 'url'"),
        ({"kind": "remote", "url": "http://a", "file": "x"}, "has no 'file'"),
        ({"kind": "pattern", "patterns": ["a"], "applies": []}, "applies"),
        ({"kind": "pattern", "patterns": ["a"], "span": 5}, "span"),
    ],
)
def test_a_guard_has_what_its_kind_has(members: dict[str, Any], says: str) -> None:
    assert says in refusal(GuardSettings, **members)
