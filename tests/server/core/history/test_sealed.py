"""Sealed items: what they hold, how they open, and how a chain is shown with them."""

from functools import partial
from typing import Any

import msgspec
import pytest

from tests.support.core import SEALER, user, word
from tieline.errors import ApiError
from tieline.items import Item, Opened, Reasoning, decode
from tieline_server.core.history import sealed

seal = partial(SEALER.seal, "ann")


def item(**members: Any) -> Item:
    return decode(msgspec.json.encode(members))


def says(text: str, role: str = "user") -> Item:
    return item(**{**user(text), "role": role})


def again(some: Item) -> Item:
    """The item as a client sends it back."""
    return sealed.opened(decode(some.raw), SEALER, "ann")


def folded(*some: Item, **how: Any) -> Item:
    return sealed.history(Opened(items=some, **how), seal, item_id="cmp_1")


def thought(**members: Any) -> Item:
    parts = [{"type": "reasoning_text", "text": "deep"}]
    body = {"id": "rs_1", "type": "reasoning", "summary": [], "content": parts, **members}
    return sealed.thought(body, seal)


def shown(*some: Item) -> list[str]:
    return [word(each) for each in sealed.shown(some)[0]]


class TestHistory:
    def test_a_client_has_the_id_and_the_sealed_text_alone(self) -> None:
        made = folded(says("hi"))
        members = msgspec.json.decode(made.raw)
        assert members == {"type": "compaction", "id": "cmp_1", "encrypted_content": made.sealed}

    def test_it_opens_to_the_very_items(self) -> None:
        some = (says("hi"), item(type="web_search_call", id="ws_1", odd=[1, None]))
        made = folded(*some, behind=(0, 1), users=2, whole=False)
        assert again(made).opened == made.opened

    def test_an_open_item_is_not_opened_again(self) -> None:
        made = folded(says("hi"))
        assert sealed.opened(made, SEALER, "somebody else") is made


class TestThought:
    def test_its_content_is_restored_and_its_seal_is_gone(self) -> None:
        made = thought()
        bare = {**msgspec.json.decode(made.raw), "content": [], "status": "completed"}
        (plain,) = sealed.shown([again(item(**bare))])[0]
        assert isinstance(plain.view, Reasoning)
        assert b"deep" in plain.raw
        assert plain.view.encrypted_content is None
        assert plain.id == "rs_1"

    def test_the_models_own_is_shown_without_the_seal_at_once(self) -> None:
        made = thought()
        assert made.sealed
        assert all(each.sealed is None for each in sealed.shown([made])[0])

    def test_reasoning_without_a_seal_is_as_it_came(self) -> None:
        for text in (None, ""):
            plain = item(type="reasoning", summary=[], encrypted_content=text)
            assert sealed.opened(plain, SEALER, "ann") is plain


class TestRefusals:
    @pytest.mark.parametrize(
        "content",
        [b"", b"{}", b"[]", b"\xff", b'{"type":"other"}', b'{"type":"compaction","items":[7]}'],
    )
    def test_content_that_is_no_history_is_unverified(self, content: bytes) -> None:
        carried = item(type="compaction", encrypted_content=seal(content))
        with pytest.raises(ApiError) as refused:
            sealed.opened(carried, SEALER, "ann")
        assert refused.value.code == "invalid_encrypted_content"

    def test_a_thought_is_no_history_and_a_history_no_thought(self) -> None:
        swapped = (
            item(type="compaction", encrypted_content=thought().sealed),
            item(type="reasoning", summary=[], encrypted_content=folded(says("hi")).sealed),
        )
        for each in swapped:
            with pytest.raises(ApiError) as refused:
                sealed.opened(each, SEALER, "ann")
            assert refused.value.code == "invalid_encrypted_content"


class TestStored:
    def test_a_thought_that_nothing_opens_any_more_is_left_out(self) -> None:
        lost = item(type="reasoning", id="rs_1", summary=[], encrypted_content="lost")
        opened = sealed.opened_again(lost, SEALER, "ann").opened
        assert opened is not None
        assert [each.id for each in opened.items] == ["rs_1"]

    def test_a_thought_that_is_still_readable_needs_no_key(self) -> None:
        members = {**msgspec.json.decode(thought().raw), "encrypted_content": "lost"}
        opened = sealed.opened_again(item(**members), SEALER, "ann").opened
        assert opened is not None
        assert b"deep" in opened.items[0].raw

    def test_a_history_that_nothing_opens_is_refused(self) -> None:
        with pytest.raises(ApiError):
            sealed.opened_again(item(type="compaction", encrypted_content="lost"), SEALER, "ann")


class TestShown:
    def test_what_is_not_sealed_is_shown_as_it_is(self) -> None:
        assert sealed.shown([says("a")]) == ([says("a")], False)

    def test_folded_items_go_back_among_the_user_messages(self) -> None:
        made = folded(
            says("x", "assistant"), says("y", "assistant"), says("z", "assistant"),
            behind=(0, 1, 2), users=2,
        )  # fmt: skip
        assert shown(says("a"), says("dev", "developer"), says("b"), made, says("c")) == [
            "assistant: x",
            "user: a",
            "developer: dev",
            "assistant: y",
            "user: b",
            "assistant: z",
            "user: c",
        ]

    @pytest.mark.parametrize("left", [[], [says("b")], [says("a"), says("b"), says("c")]])
    def test_in_a_changed_window_they_come_where_the_item_stands(self, left: list[Item]) -> None:
        made = folded(says("x", "assistant"), says("y", "assistant"), behind=(0, 1), users=2)
        before = [word(each) for each in left]
        assert shown(*left, made, says("d")) == [*before, "assistant: x", "assistant: y", "user: d"]

    def test_what_stands_for_everything_hides_what_is_before_it(self) -> None:
        first, second = folded(says("a"), whole=True), folded(says("b"), whole=True)
        assert sealed.shown([says("x"), first, says("y"), second, says("z")]) == (
            [says("b"), says("z")],
            True,
        )
