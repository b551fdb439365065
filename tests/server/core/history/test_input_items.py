"""What an input item from a client has to be: a right one passes, a wrong one is named."""

from typing import Any

import msgspec
import pytest

from tieline import items
from tieline.errors import ApiError
from tieline.items import CALL_KINDS, OUTPUT_KINDS
from tieline_server.core.history.input_items import read, read_input

Json = dict[str, Any]


def dumps(value: object) -> bytes:
    return msgspec.json.encode(value)


def refused(*said: Json) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_input(dumps(said))
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


def message(*parts: object, **members: object) -> Json:
    return {"type": "message", "role": "user", "content": list(parts), **members}


CALL: Json = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM: Json = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c", "output": "o"}
TEXT: Json = {"type": "input_text", "text": "hi"}
IMAGE: Json = {"type": "input_image", "image_url": "data:,", "detail": "auto"}
SHOT: Json = {"type": "computer_screenshot", "image_url": ""}
STREAMS: Json = {"stdout": "o", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
KILLED: Json = {**STREAMS, "outcome": {"type": "killed"}}
TOOL: Json = {"type": "function", "name": "f", "parameters": {"type": "object"}}
REASONING: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "s"}],
    "content": [{"type": "reasoning_text", "text": "t"}],
    "encrypted_content": None,
    "status": "completed",
}

RIGHT: list[Json] = [
    {"role": "user", "content": "hi"},
    {"role": "user", "content": ""},
    {"role": "user", "content": []},
    {"type": None, "role": "user", "content": "hi"},
    {"role": "user", "content": [TEXT], "id": None, "status": None, "phase": None},
    message(TEXT, IMAGE),
    message({"type": "input_image", "file_id": "file_1", "image_url": None, "detail": None}),
    message({"type": "input_image", "image_url": {"url": "data:,", "detail": "low"}}),
    message({"type": "image_url", "image_url": {"url": "data:,"}}),
    message({"type": "text", "text": "hi"}),
    message({"type": "input_text", "text": ""}),
    message({**TEXT, "prompt_cache_breakpoint": {"mode": "explicit"}, "unheard_of": [1]}),
    message({"type": "input_file", "filename": "a.pdf", "file_data": "data:,"}),
    message({"type": "input_file", "file_url": "https://example.com/a.pdf"}),
    message({"type": "input_audio", "input_audio": {"data": "aa", "format": "wav"}}),
    message(
        {"type": "output_text", "text": "a", "annotations": None, "logprobs": []},
        {"type": "refusal", "refusal": "no"},
        role="assistant",
        id="msg_1",
        status="incomplete",
        phase="commentary",
    ),
    message({"type": "output_text", "text": "a"}, role="assistant"),
    CALL,
    {**CALL, "id": "fc_1", "status": "completed", "namespace": None, "caller": None},
    {**CALL, "arguments": ""},
    {**CUSTOM, "id": None, "namespace": "n"},
    OUTPUT,
    {**OUTPUT, "output": ""},
    {**OUTPUT, "output": [], "id": "fco_1", "status": "completed"},
    {**OUTPUT, "output": [TEXT, IMAGE, {"type": "encrypted_content", "encrypted_content": "e"}]},
    {"type": "custom_tool_call_output", "call_id": "c", "output": [TEXT]},
    REASONING,
    {"type": "reasoning", "id": None, "summary": [], "content": None},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "e"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "additional_tools", "role": "developer", "tools": [TOOL]},
    {"type": "additional_tools", "tools": []},
    {"type": "computer_call", "call_id": "c", "id": "cu_1", "action": {"type": "screenshot"}},
    {"type": "computer_call_output", "call_id": "c", "output": SHOT},
    {"type": "local_shell_call", "call_id": "c", "id": "l", "action": {"type": "exec"}},
    {"type": "local_shell_call_output", "call_id": "c", "output": "o"},
    {"type": "local_shell_call_output", "id": "c", "output": "o"},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "c", "output": [STREAMS], "status": "completed"},
    {"type": "shell_call_output", "call_id": "c", "output": [], "max_output_length": 9},
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file"}},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": None},
    {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}},
    {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [TOOL]},
    {"type": "mcp_approval_request", "id": "c", "name": "n", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "c", "approve": False},
    {"type": "mcp_call", "id": "m", "name": "n", "arguments": "{}", "status": "calling"},
    {"type": "web_search_call", "id": "w", "status": "searching", "action": None},
    {"type": "agent_message", "content": [{"type": "anything", "words": "w"}]},
    {"type": "of_next_year", "content": "c"},
]
"""What clients send: new, replayed as it was heard, and with null for what they leave out."""


@pytest.mark.parametrize("said", RIGHT, ids=str)
def test_what_clients_send_passes_and_keeps_its_bytes(said: Json) -> None:
    item = read(dumps(said), param="input[0]")
    given = msgspec.json.decode(item.raw)
    assert given == {name: value for name, value in said.items() if (name, value) != ("type", None)}
    again = items.decode(item.raw)
    assert (item.type, item.id, item.opens, item.answers) == (
        again.type,
        again.id,
        again.opens,
        again.answers,
    )
    assert item.view == again.view


def test_each_kind_of_call_and_output_is_among_them() -> None:
    kinds = {said.get("type") for said in RIGHT}
    assert CALL_KINDS.keys() | OUTPUT_KINDS.keys() <= kinds


@pytest.mark.parametrize("said", [{"id": "msg_1"}, {"id": "msg_1", "type": None}])
def test_an_id_alone_is_a_reference(said: Json) -> None:
    item = read(dumps(said), param="input[0]")
    assert (item.type, item.names) == ("item_reference", "msg_1")


MISSING: list[tuple[Json, str]] = [
    (message({"type": "input_text", "content": "hello"}), "content[0].text"),
    (message(TEXT, {"type": "output_text", "txt": "hello"}), "content[1].text"),
    (message({"text": "hello"}), "content[0].type"),
    (message({"type": "refusal", "text": "no"}), "content[0].refusal"),
    (message({"type": "input_image", "url": "data:,"}), "content[0].image_url"),
    (message({"type": "input_image", "image_url": {}}), "content[0].image_url.url"),
    (message({"type": "input_file", "filename": "a"}), "content[0].file_id"),
    (message({"type": "input_audio"}), "content[0].input_audio"),
    (
        message({"type": "input_audio", "input_audio": {"data": "a"}}),
        "content[0].input_audio.format",
    ),
    ({"role": "user", "text": "hello"}, "content"),
    ({"content": "hello"}, "role"),
    ({"type": "message", "content": "hello"}, "role"),
    ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "name"),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
    ({"type": "function_call", "call_id": "c", "name": "f", "args": {}}, "arguments"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input"),
    ({"type": "function_call_output", "output": "o"}, "call_id"),
    ({"type": "function_call_output", "call_id": "c", "content": "o"}, "output"),
    ({**OUTPUT, "output": [{"type": "input_text", "content": "o"}]}, "output[0].text"),
    ({"type": "custom_tool_call_output", "call_id": "c"}, "output"),
    ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, "summary[0].text"),
    ({"type": "reasoning", "content": [{"text": "t"}]}, "content[0].type"),
    ({"type": "compaction"}, "encrypted_content"),
    ({"type": "item_reference"}, "id"),
    ({"type": "additional_tools"}, "tools"),
    ({"type": "additional_tools", "tools": [TOOL, {"type": "function"}]}, "tools[1].name"),
    ({"type": "computer_call"}, "call_id"),
    ({"type": "computer_call_output", "call_id": "c"}, "output"),
    ({"type": "computer_call_output", "call_id": "c", "output": {"image_url": ""}}, "output.type"),
    (
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "input_image"}},
        "output.image_url",
    ),
    ({"type": "local_shell_call_output", "output": "o"}, "call_id"),
    ({"type": "local_shell_call_output", "call_id": "c"}, "output"),
    ({"type": "shell_call_output", "call_id": "c"}, "output"),
    ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": ""}]}, "output[0].stderr"),
    ({"type": "apply_patch_call_output", "call_id": "c"}, "status"),
    ({"type": "tool_search_output", "call_id": "c"}, "tools"),
    ({"type": "mcp_approval_request", "id": "c", "name": "n"}, "arguments"),
    ({"type": "mcp_approval_response", "approval_request_id": "c"}, "approve"),
    ({"type": "mcp_approval_response", "approve": True}, "approval_request_id"),
]


@pytest.mark.parametrize(("said", "member"), MISSING, ids=str)
def test_in_01_what_an_item_cannot_be_without_is_named_by_its_path(said: Json, member: str) -> None:
    error = refused({"role": "user", "content": "first"}, said)
    assert (error.code, error.param) == ("missing_required_parameter", f"input[1].{member}")
    assert f"'{error.param}'" in error.message


WRONG: list[tuple[Json, str, str]] = [
    (message({"type": "input_text", "text": 5}), "invalid_type", "content[0].text"),
    (message({"type": "input_text", "text": None}), "invalid_type", "content[0].text"),
    (message({"type": 5}), "invalid_type", "content[0].type"),
    (message("hello"), "invalid_type", "content[0]"),
    (message(None), "invalid_type", "content[0]"),
    (message({"type": "inpt_text", "text": "t"}), "invalid_value", "content[0].type"),
    (message({"type": "", "text": "t"}), "invalid_value", "content[0].type"),
    (message({**IMAGE, "detail": "huge"}), "invalid_value", "content[0].detail"),
    (message({**IMAGE, "image_url": 5}), "invalid_type", "content[0].image_url"),
    (message(TEXT, role="tool"), "invalid_value", "role"),
    (message(TEXT, role=None), "invalid_type", "role"),
    (message(TEXT, status="done"), "invalid_value", "status"),
    (message(TEXT, phase="last"), "invalid_value", "phase"),
    (message(TEXT, id=""), "empty_string", "id"),
    (message(TEXT, id=5), "invalid_type", "id"),
    (message(content={"text": "t"}), "invalid_type", "content"),
    (message(content=None), "invalid_type", "content"),
    ({**CALL, "call_id": ""}, "empty_string", "call_id"),
    ({**CALL, "call_id": None}, "invalid_type", "call_id"),
    ({**CALL, "name": ""}, "empty_string", "name"),
    ({**CALL, "arguments": {}}, "invalid_type", "arguments"),
    ({**CALL, "status": "failed"}, "invalid_value", "status"),
    ({**CUSTOM, "call_id": ""}, "empty_string", "call_id"),
    ({**OUTPUT, "call_id": ""}, "empty_string", "call_id"),
    ({**OUTPUT, "output": None}, "invalid_type", "output"),
    ({**OUTPUT, "output": {"a": 1}}, "invalid_type", "output"),
    ({**OUTPUT, "output": [{"type": "object"}]}, "invalid_value", "output[0].type"),
    ({"type": "reasoning", "summary": "thought"}, "invalid_type", "summary"),
    ({"type": "reasoning", "encrypted_content": 5}, "invalid_type", "encrypted_content"),
    ({"type": "computer_call", "call_id": ""}, "empty_string", "call_id"),
    (
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "screen"}},
        "invalid_value",
        "output.type",
    ),
    ({"type": "shell_call_output", "call_id": "c", "output": "o"}, "invalid_type", "output"),
    (
        {"type": "shell_call_output", "call_id": "c", "output": [KILLED]},
        "invalid_value",
        "output[0].outcome.type",
    ),
    (
        {"type": "apply_patch_call_output", "call_id": "c", "status": "done"},
        "invalid_value",
        "status",
    ),
    ({"type": "tool_search_call", "execution": "here"}, "invalid_value", "execution"),
    (
        {"type": "tool_search_output", "call_id": "c", "tools": [TOOL, TOOL]},
        "invalid_value",
        "tools[1].name",
    ),
    (
        {"type": "mcp_approval_response", "approval_request_id": "c", "approve": "yes"},
        "invalid_type",
        "approve",
    ),
    ({"type": "mesage", "role": "user", "content": "hello"}, "invalid_value", "type"),
    ({"type": ""}, "invalid_value", "type"),
    ({"type": 5}, "invalid_type", "type"),
    ({"type": "mcp_call", "id": 5}, "invalid_type", "id"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "code", "member"), WRONG, ids=str)
def test_a_wrong_member_is_named_by_its_path(said: Json, code: str, member: str) -> None:
    error = refused({"role": "user", "content": "first"}, said)
    assert (error.code, error.param) == (code, f"input[1].{member}")
    assert "`" not in error.message


@pytest.mark.parametrize(
    ("said", "one_of"),
    [
        (message({"type": "txt", "text": "t"}), "'input_text', "),
        (message(TEXT, role="robot"), "'user'"),
        ({**CALL, "status": "x"}, "'in_progress', 'completed', and 'incomplete'"),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "x"}, "'failed'"),
        ({"type": "mesage", "role": "user"}, "'message', "),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "x"}}, "screenshot"),
    ],
    ids=str,
)
def test_where_there_is_a_list_it_is_told(said: Json, one_of: str) -> None:
    assert one_of in refused(said).message


@pytest.mark.parametrize(
    "said",
    [
        message({"type": "My password is 1234", "text": "t"}),
        message({"type": "input_text", "text": {"My password is 1234": "1234"}}),
        message({"type": "input_text", "My password is 1234": "1234"}),
        message(TEXT, role="My password is 1234"),
        message(TEXT, status="sk-AAAA1234BBBB"),
        {"type": "My password is 1234", "role": "user"},
        {"type": "additional_tools", "tools": [{"type": "My password is 1234", "parameters": {}}]},
    ],
    ids=str,
)
def test_no_refusal_repeats_what_could_be_a_secret(said: Json) -> None:
    error = refused(said)
    assert "1234" not in f"{error.message}{error.param}"


def test_items_of_an_engine_or_a_store_are_not_judged() -> None:
    """A chain that was begun before goes on."""
    assert items.decode(b'{"role":"user"}').type == "message"
    assert items.decode(b'{"type":"function_call","call_id":"","name":""}').opens == ""
