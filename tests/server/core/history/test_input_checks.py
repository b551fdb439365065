"""New input against the history before it: pairing, double ids, references."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tieline.errors import ApiError
from tieline.items import CALL_KINDS, Item, Opened, decode
from tieline_server.core.history import input_checks
from tieline_server.core.history.chain import ChainNode


def item(**members: Any) -> Item:
    return decode(msgspec.json.encode(members))


def chain(*items: Item) -> ChainNode:
    return ChainNode(None, items, turn=1)


def refusal(new: list[Item], before: ChainNode | None) -> ApiError:
    with pytest.raises(ApiError) as refused:
        input_checks.check(new, before)
    assert refused.value.status == 400
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == "input"
    return refused.value


def output_for(call_id: str) -> Item:
    return item(type="function_call_output", call_id=call_id, output="x")


def call_of(kind: str) -> Item:
    """A call of this kind as a client or a model would write it."""
    if kind == "mcp_approval_request":
        return item(type=kind, id="ct_1", name="n", arguments="{}", server_label="s")
    if kind == "tool_search_call":
        return item(type=kind, id="i_1", call_id="ct_1", execution="client")
    return item(type=kind, id="i_1", call_id="ct_1", name="n")


def output_of(kind: str) -> Item:
    """The item that answers a call of this kind."""
    if kind == "mcp_approval_request":
        return item(type=CALL_KINDS[kind], approval_request_id="ct_1", approve=True)
    if kind == "tool_search_call":
        return item(type=CALL_KINDS[kind], call_id="ct_1", execution="client", tools=[])
    return item(type=CALL_KINDS[kind], call_id="ct_1", output="x")


USER = item(role="user", content="hi")


class TestPairing:
    @pytest.mark.parametrize("kind", CALL_KINDS)
    def test_tl_03_a_call_without_its_output_is_named_with_its_kind(self, kind: str) -> None:
        error = refusal([USER], chain(call_of(kind)))
        assert error.code == "tool_output_missing"
        assert error.message == f"No tool output found for {kind.replace('_', ' ')} ct_1."

    @pytest.mark.parametrize("kind", CALL_KINDS)
    def test_tl_03_a_call_with_its_output_passes(self, kind: str) -> None:
        input_checks.check([output_of(kind), USER], chain(call_of(kind)))
        input_checks.check([call_of(kind), output_of(kind)], None)

    @pytest.mark.parametrize("kind", CALL_KINDS)
    def test_an_output_without_its_call_is_refused(self, kind: str) -> None:
        error = refusal([output_of(kind)], chain(USER))
        assert error.code == "tool_call_not_found"
        assert error.message.endswith("output with call_id ct_1.")

    @pytest.mark.parametrize("kind", CALL_KINDS)
    def test_a_second_output_is_refused(self, kind: str) -> None:
        before = ChainNode(chain(call_of(kind)), (output_of(kind),), turn=2)
        assert refusal([output_of(kind)], before).code == "duplicate_item"
        twice = [output_of(kind), output_of(kind)]
        assert refusal(twice, chain(call_of(kind))).code == "duplicate_item"

    def test_an_output_of_another_kind_does_not_answer(self) -> None:
        wrong = output_of("custom_tool_call")
        assert refusal([wrong], chain(call_of("function_call"))).code == "tool_call_not_found"

    def test_an_output_before_its_call_does_not_answer(self) -> None:
        new = [output_of("function_call"), call_of("function_call")]
        assert refusal(new, None).code == "tool_call_not_found"

    def test_each_of_several_calls_needs_its_output(self) -> None:
        calls = [item(type="function_call", call_id=f"c{n}", name="f") for n in range(3)]
        outputs = [item(type="function_call_output", call_id=f"c{n}", output="") for n in range(3)]
        input_checks.check(list(reversed(outputs)), chain(*calls))
        assert "c1" in refusal([outputs[0], outputs[2]], chain(*calls)).message

    def test_a_hosted_tool_search_waits_for_nobody(self) -> None:
        hosted = item(type="tool_search_call", call_id="ct_1", execution="server")
        input_checks.check([USER], chain(hosted))

    def test_an_item_of_an_unknown_kind_is_carried(self) -> None:
        input_checks.check([item(type="telepathy_call", call_id="ct_1"), USER], None)


class TestDoubles:
    def test_st_06_b_an_item_that_the_chain_has_is_refused_by_its_id(self) -> None:
        before = chain(item(type="function_call", id="fc_1", call_id="call_1", name="f"))
        again = item(type="function_call", id="fc_1", call_id="call_1", name="f", arguments="{}")
        out = item(type="function_call_output", call_id="call_1", output="ok")
        error = refusal([again, out], before)
        assert error.code == "duplicate_item"
        assert "fc_1" in error.message

    def test_an_id_twice_in_one_input_is_refused(self) -> None:
        twice = [item(role="user", content=text, id="msg_1") for text in ("a", "b")]
        assert "msg_1" in refusal(twice, None).message

    def test_st_06_a_outputs_without_ids_never_collide(self) -> None:
        before = chain(item(type="function_call", id="fc_1", call_id="call_1", name="f"))
        input_checks.check(
            [item(type="function_call_output", call_id="call_1", output="ok")], before
        )

    def test_a_sibling_fork_may_have_the_same_id(self) -> None:
        root = chain(USER)
        ChainNode(root, (item(role="user", content="left", id="msg_1"),), turn=2)
        input_checks.check([item(role="user", content="right", id="msg_1")], root)


class TestRepeats:
    """What a client repeats that names what it continues and sends its whole history as well."""

    call = item(
        type="function_call",
        id="fc_1",
        status="completed",
        call_id="call_1",
        name="f",
        arguments='{"a":1}',
    )
    again = item(type="function_call", call_id="call_1", name="f", arguments='{"a": 1}')
    out = item(type="function_call_output", call_id="call_1", output="ok")
    second = item(type="function_call", id="fc_2", call_id="call_2", name="g", arguments="")
    second_again = item(type="function_call", call_id="call_2", name="g", arguments="{}")
    second_out = item(type="function_call_output", call_id="call_2", output="fine")

    def left(self, new: list[Item], before: ChainNode | None) -> list[Item]:
        left = input_checks.without_repeats(new, before)
        input_checks.check(left, before)
        return list(left)

    def test_in_06_an_open_call_is_passed_over_and_its_output_answers_it(self) -> None:
        assert self.left([self.again, self.out], chain(USER, self.call)) == [self.out]

    def test_in_06_the_whole_history_again_leaves_what_is_new(self) -> None:
        """Turn after turn, as strands-agents sends it."""
        before = chain(USER, self.call)
        first = [USER, self.again, self.out]
        assert self.left(first, before) == [self.out]
        before = ChainNode(ChainNode(before, (self.out,), turn=2), (self.second,), turn=2)
        new = [*first, self.second_again, self.second_out]
        assert self.left(new, before) == [self.second_out]

    @pytest.mark.parametrize("kind", CALL_KINDS)
    def test_in_06_every_kind_of_call_is_passed_over(self, kind: str) -> None:
        call = call_of(kind)
        members = msgspec.json.decode(call.raw)
        # The id of an approval request is what its answer names.
        said = members if kind == "mcp_approval_request" else {**members, "id": None}
        assert self.left([item(**said), output_of(kind)], chain(call)) == [output_of(kind)]

    @pytest.mark.parametrize(
        "other",
        [
            {"arguments": '{"a":2}'},
            {"name": "g"},
            {"arguments": "not JSON"},
            {"namespace": "n"},
            {"type": "custom_tool_call", "input": "x"},
        ],
    )
    def test_in_06_a_call_that_differs_is_refused(self, other: dict[str, str]) -> None:
        members = {**msgspec.json.decode(self.again.raw), **other}
        with pytest.raises(ApiError) as refused:
            self.left([item(**members), self.out], chain(self.call))
        assert (refused.value.code, refused.value.param) == ("duplicate_item", "input")
        assert "call_1" in refused.value.message

    def test_an_output_that_differs_from_the_one_that_answered_is_refused(self) -> None:
        before = chain(self.call, self.out)
        other = item(type="function_call_output", call_id="call_1", output="other")
        with pytest.raises(ApiError) as refused:
            self.left([self.again, other], before)
        assert refused.value.code == "duplicate_item"
        parts = [{"type": "input_text", "text": "ok"}]
        same = item(type="function_call_output", call_id="call_1", output=parts)
        assert self.left([self.again, same, USER], before) == [USER]

    def test_a_repeated_id_is_refused_whatever_it_is(self) -> None:
        """As OpenAI's API does: who keeps ids can leave out what has been sent."""
        before = chain(USER, self.call)
        assert "fc_1" in refusal(self.left_of([self.call, self.out], before), before).message
        thought = item(type="reasoning", id="rs_1", summary=[])
        before = chain(thought, self.call)
        new = self.left_of([thought, self.again, self.out], before)
        assert "rs_1" in refusal(new, before).message

    def left_of(self, new: list[Item], before: ChainNode) -> list[Item]:
        return list(input_checks.without_repeats(new, before))

    def test_words_before_a_repeated_call_are_history_where_the_chain_has_them(self) -> None:
        said = item(
            role="assistant", id="msg_1", content=[{"type": "output_text", "text": "on it"}]
        )
        thought = item(type="reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "t"}])
        before = chain(USER, thought, said, self.call)
        history = [
            item(type="message", role="user", content=[{"type": "input_text", "text": "hi"}]),
            item(type="reasoning", summary=[{"type": "summary_text", "text": "t"}]),
            item(role="assistant", content="on it"),
            self.again,
        ]
        assert self.left([*history, self.out, USER], before) == [self.out, USER]

    def test_words_that_the_chain_does_not_have_stay(self) -> None:
        other = item(role="user", content="something else")
        image = [{"type": "input_image", "image_url": "data:,"}]
        seen = item(role="user", content=image)
        before = chain(USER, self.call)
        new = [other, USER, USER, seen, self.again, self.out]
        assert self.left(new, before) == [other, USER, seen, self.out]

    def test_what_the_model_said_is_history_behind_the_calls_as_well(self) -> None:
        said = item(role="assistant", id="msg_1", content=[{"type": "output_text", "text": "so"}])
        before = chain(USER, self.call, self.out, said, USER)
        new = [USER, self.again, self.out, item(role="assistant", content="so"), USER]
        assert self.left(new, before) == [USER]
        also = item(role="assistant", content="not so")
        assert self.left([*new, also], before) == [USER, also]

    def test_words_without_a_repeated_call_are_said_again(self) -> None:
        assert self.left([USER, USER], chain(USER)) == [USER, USER]
        assert self.left([USER, self.out], chain(USER, self.call)) == [USER, self.out]

    def test_a_call_that_is_new_is_no_repeat(self) -> None:
        new = [self.second_again, self.second_out]
        assert self.left(new, chain(USER)) == new
        assert self.left(new, None) == new

    def test_a_call_twice_in_one_input_is_refused(self) -> None:
        assert refusal([self.again, self.again, self.out], None).code == "duplicate_item"

    def test_a_call_whose_history_was_folded_away_is_passed_over(self) -> None:
        whole = item(type="compaction", id="cmp_1", encrypted_content="sealed")
        folded = replace(whole, opened=Opened(items=(USER,), whole=True))
        before = ChainNode(chain(USER, self.call, self.out), (folded,), turn=2)
        new = [self.again, self.out, item(role="user", content="next")]
        assert self.left(new, before) == new[2:]


def test_a_long_id_is_not_repeated_whole() -> None:
    call = item(type="function_call", call_id="c" * 5000, name="f", arguments="{}")
    long = output_for("c" * 5000)
    for new, before in (([USER], chain(call)), ([long], None), ([call, call], None)):
        assert len(refusal(new, before).message) < 300


class TestReferences:
    known = item(role="user", content="known", id="msg_1")
    ref = item(type="item_reference", id="msg_1")

    def test_only_what_the_chain_lacks_is_asked_for(self) -> None:
        other = item(type="item_reference", id="msg_2")
        assert input_checks.references([self.ref, other, USER], chain(self.known)) == ["msg_2"]
        assert input_checks.references([self.ref], None) == ["msg_1"]

    @pytest.mark.parametrize("found", [{}, {"msg_1": known}])
    def test_what_the_chain_has_adds_nothing(self, found: Mapping[str, Item]) -> None:
        """Also when the store, asked before the chain was loaded, knows the item as well."""
        assert input_checks.dereference([self.ref, USER], chain(self.known), found) == [USER]

    def test_what_the_store_found_takes_the_place_of_its_name(self) -> None:
        new = input_checks.dereference([USER, self.ref], None, {"msg_1": self.known})
        assert new == [USER, self.known]

    def test_what_nobody_knows_is_refused(self) -> None:
        with pytest.raises(ApiError) as refused:
            input_checks.dereference([self.ref], chain(USER), {})
        assert (refused.value.code, refused.value.param) == ("item_not_found", "input")
        assert "msg_1" in refused.value.message

    def test_a_reference_twice_is_a_double(self) -> None:
        new = input_checks.dereference([self.ref, self.ref], None, {"msg_1": self.known})
        assert refusal(new, None).code == "duplicate_item"


class TestSealed:
    def folded(self, *some: Item, whole: bool = False) -> Item:
        carried = item(type="compaction", encrypted_content="sealed")
        return replace(carried, opened=Opened(items=some, whole=whole))

    def test_an_output_finds_its_folded_call(self) -> None:
        call = call_of("function_call")
        input_checks.check([self.folded(call), output_for("ct_1")], None)
        assert refusal([self.folded(call)], None).code == "tool_output_missing"

    def test_a_call_may_wait_where_nothing_is_sampled(self) -> None:
        input_checks.check([self.folded(call_of("function_call"))], None, unanswered=True)

    def test_a_second_output_of_a_folded_call_is_refused(self) -> None:
        done = self.folded(call_of("function_call"), output_for("ct_1"))
        assert refusal([done, output_for("ct_1")], None).code == "duplicate_item"

    def test_a_history_that_stands_for_all_leaves_no_open_call_before_it(self) -> None:
        before = chain(call_of("function_call"))
        whole = self.folded(item(role="user", content="hi"), whole=True)
        input_checks.check([whole], before)
        assert refusal([whole, output_for("ct_1")], before).code == "tool_call_not_found"
