"""Items: their bytes, their views, and what they open and answer."""

import pytest
from msgspec import Raw

from tests.support.json_values import dumps, fixture
from tieline import items
from tieline.errors import ApiError

ROWS = fixture("items")


def refused(raw: bytes, param: str = "input") -> ApiError:
    with pytest.raises(ApiError) as caught:
        items.decode(raw, param=param)
    return caught.value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["json"].get("type", "no type"))
def test_an_item_keeps_its_bytes_and_knows_its_type(row: dict[str, dict[str, object]]) -> None:
    raw = dumps(row["json"])
    item = items.decode(raw)
    assert item.raw == raw
    assert item.type == row["json"].get("type", "message")
    assert item.id == row["json"].get("id")


def test_a_type_without_a_view_is_opaque() -> None:
    assert isinstance(items.decode(b'{"type":"vendor:note","id":"n"}').view, items.Opaque)


def test_members_of_any_type_are_fine_where_we_do_not_read_them() -> None:
    item = items.decode(b'{"role":"user","content":"hi","weight":[1,{"a":null}]}')
    assert item.view == items.Message(role="user", content="hi")


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"{", "invalid_json", "input"),
        (b'"text"', "invalid_type", "input"),
        (b"null", "invalid_type", "input"),
        (b'{"type":5}', "invalid_type", "input.type"),
        (b'{"role":"user","content":5}', "invalid_type", "input.content"),
        (b'{"type":"function_call","call_id":"c"}', "missing_required_parameter", "input.name"),
        (b'{"role":"robot","content":"x"}', "invalid_value", "input.role"),
        (b"[" * 5000, "invalid_type", "input"),
        (b'{"role":"user","content":[' + b"[" * 5000, "invalid_json", "input"),
    ],
)
def test_a_wrong_item_is_refused_with_the_member_to_blame(
    raw: bytes, code: str, param: str
) -> None:
    error = refused(raw)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert "`" not in error.message


CALLS: list[dict[str, object]] = [
    {"type": "function_call", "call_id": "c", "name": "f"},
    {"type": "custom_tool_call", "call_id": "c", "name": "f"},
    {"type": "computer_call", "call_id": "c"},
    {"type": "local_shell_call", "call_id": "c"},
    {"type": "shell_call", "call_id": "c"},
    {"type": "apply_patch_call", "call_id": "c"},
    {"type": "tool_search_call", "call_id": "c", "execution": "client"},
    {"type": "tool_search_call", "call_id": "c"},
    {"type": "mcp_approval_request", "id": "c"},
]
OUTPUTS: list[dict[str, object]] = [
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": []},
    {"type": "computer_call_output", "call_id": "c"},
    {"type": "local_shell_call_output", "call_id": "c"},
    {"type": "shell_call_output", "call_id": "c"},
    {"type": "apply_patch_call_output", "call_id": "c"},
    {"type": "tool_search_output", "call_id": "c"},
    {"type": "mcp_approval_response", "approval_request_id": "c"},
]


@pytest.mark.parametrize("said", CALLS, ids=lambda said: said["type"])
def test_a_call_for_the_client_opens_its_id(said: dict[str, object]) -> None:
    item = items.decode(dumps(said))
    assert (item.opens, item.answers) == ("c", None)


@pytest.mark.parametrize("said", OUTPUTS, ids=lambda said: said["type"])
def test_an_output_answers_its_call(said: dict[str, object]) -> None:
    item = items.decode(dumps(said))
    assert (item.opens, item.answers) == (None, "c")


def test_every_kind_of_call_is_among_these() -> None:
    assert {str(said["type"]) for said in CALLS} == items.CALL_KINDS.keys()
    assert {str(said["type"]) for said in OUTPUTS} == items.OUTPUT_KINDS.keys()


@pytest.mark.parametrize(
    "said",
    [
        {"type": "tool_search_call", "call_id": "c", "execution": "server"},
        {"type": "tool_search_output", "call_id": "c", "execution": "server"},
        {"type": "mcp_call", "call_id": "c"},
        {"role": "user", "content": "x"},
        {"type": "item_reference", "id": "c"},
    ],
)
def test_what_no_client_runs_neither_opens_nor_answers(said: dict[str, str]) -> None:
    item = items.decode(dumps(said))
    assert (item.opens, item.answers) == (None, None)


def test_an_item_of_our_own_has_no_null_members() -> None:
    item = items.encode(items.FunctionCall(call_id="c", name="f", arguments="{}"))
    assert item.raw == b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}'
    assert items.decode(item.raw) == item


def test_an_opaque_item_of_our_own_says_its_type_once() -> None:
    assert (
        items.encode(items.Opaque(type="mcp_call", id="m")).raw == b'{"type":"mcp_call","id":"m"}'
    )


def test_text_input_is_one_user_message() -> None:
    (item,) = items.decode_input(b' "say \\u00e9"')
    assert item.view == items.Message(role="user", content="say é")


def test_list_input_is_its_items_in_order() -> None:
    found = items.decode_input(
        b'[ {"role":"user","content":"a"}, {"type":"item_reference","id":"m"}]'
    )
    assert [item.type for item in found] == ["message", "item_reference"]
    assert items.decode_input(b"[]") == []


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"5", "input"),
        (b"{}", "input"),
        (b'[{"role":"user","content":"a"},7]', "input[1]"),
        (b'[{"type":"function_call_output","call_id":"c","output":1}]', "input[0].output"),
    ],
)
def test_wrong_input_names_the_item_to_blame(raw: bytes, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        items.decode_input(raw)
    assert (caught.value.code, caught.value.param) == ("invalid_type", param)


def test_input_has_a_longest_length() -> None:
    most = b"[" + b",".join([b'{"role":"user"}'] * items.MAX_ITEMS) + b"]"
    assert len(items.decode_input(most)) == items.MAX_ITEMS
    with pytest.raises(ApiError) as caught:
        items.decode_input(most[:-1] + b",{}]")
    assert (caught.value.code, caught.value.param) == ("array_above_max_length", "input")
    assert str(items.MAX_ITEMS) in caught.value.message


def test_text_of_parts_is_joined() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "refusal", "refusal": "b"},
        {"type": "x"},
    ]
    assert items.text_of([Raw(dumps(part)) for part in parts]) == "ab"
    assert items.text_of("plain") == "plain"


def test_items_are_equal_by_their_bytes() -> None:
    raw = b'{"role":"user","content":"a"}'
    assert items.decode(raw) == items.decode(Raw(raw))
    assert items.decode(raw) != items.decode(raw.replace(b"a", b"b", 1))


def test_an_item_keeps_its_text_once() -> None:
    """A history is long: what is read from an item is read again, not kept beside its bytes."""
    item = items.decode(dumps({"type": "function_call_output", "call_id": "c", "output": "x"}))
    assert item.view == item.view
    assert item.view is not item.view


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"function_call_output","call_id":"c","output":"o"}',
        b'{"call_id":"c","output":"o","type":"function_call_output"}',
        b'{"call_id":"c","output":"\\"type\\"","t\\u0079pe":"function_call_output"}',
        b'{"call_id":"c","output":[{"type":"input_text"}],"t\\u0079pe":"function_call_output"}',
    ],
)
def test_the_type_of_an_item_counts_wherever_and_however_it_is_written(raw: bytes) -> None:
    item = items.decode(raw)
    assert (item.type, item.answers) == ("function_call_output", "c")


def test_a_type_inside_of_an_item_is_not_its_own() -> None:
    item = items.decode(b'{"role":"user","content":[{"type":"function_call_output"}]}')
    assert (item.type, item.answers) == ("message", None)


def test_up_06_the_output_of_a_local_shell_names_its_call_by_id_where_it_has_no_call_id() -> None:
    assert items.decode(b'{"type":"local_shell_call_output","id":"c","output":""}').answers == "c"
    named = b'{"type":"local_shell_call_output","id":"x","call_id":"c","output":""}'
    assert items.decode(named).answers == "c"
