"""Tools: what a create offers, and which of them the model may or must call."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tieline.errors import ApiError
from tieline.items import decode
from tieline_server.core.create.tools import (
    Tool,
    ToolChoice,
    brought_by,
    check_choice,
    parse_choice,
)

F = Tool(type="function", name="f")
SPACED = Tool(type="function", name="g", namespace="n")
SEARCH = Tool(type="web_search_preview")
SERVER = Tool(type="mcp")


def parsed(choice: Any) -> ToolChoice:
    return parse_choice(msgspec.json.encode(choice))


def allowing(*tools: dict[str, str], mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def refused(choice: Any, *offered: Tool) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check_choice(parsed(choice), offered)
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")
    return caught.value


NAMED = {"type": "function", "name": "f"}
UNKNOWN = {"type": "function", "name": "h"}


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("required", "tool_choice"),
        (NAMED, "tool_choice"),
        ({"type": "web_search"}, "tool_choice"),
        (allowing(NAMED), "tool_choice.tools[0]"),
        (allowing(NAMED, mode="required"), "tool_choice.tools[0]"),
    ],
)
def test_in_03_a_choice_needs_what_it_names_on_offer(choice: Any, param: str) -> None:
    assert refused(choice).param == param


def test_in_03_the_one_that_is_not_offered_is_named_by_its_place() -> None:
    error = refused(allowing(NAMED, UNKNOWN), F)
    assert error.param == "tool_choice.tools[1]"
    assert "'h'" in error.message


def test_a_function_is_no_custom_tool_of_its_name() -> None:
    assert refused({"type": "custom", "name": "f"}, F).param == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    [
        None,
        "auto",
        "none",
        "required",
        NAMED,
        allowing(NAMED),
        allowing({"type": "namespace", "name": "n"}),
        {"type": "web_search"},
        {"type": "web_search_preview_2025_03_11"},
        {"type": "mcp", "server_label": "s", "name": "its tool"},
    ],
)
def test_what_is_offered_may_be_chosen(choice: Any) -> None:
    check_choice(parsed(choice), [F, SPACED, SEARCH, SERVER])


FINDS = Tool(type="tool_search", name="tool_search")
LATER = Tool(type="function", name="f", namespace="n", deferred=True)


@pytest.mark.parametrize(
    "choice", [NAMED, {"type": "namespace", "name": "n"}, allowing(NAMED, mode="required")]
)
def test_up_07_a_choice_that_requires_what_no_search_has_found_is_refused(choice: Any) -> None:
    """The model could not be made to call it, and would say anything."""
    error = refused(choice, FINDS, LATER)
    assert error.param == "tool_choice"
    assert "deferred" in error.message
    check_choice(parsed(choice), [FINDS, LATER, replace(LATER, deferred=False)])
    # Where no client searches it is on offer at once.
    check_choice(parsed(choice), [LATER])


@pytest.mark.parametrize(
    "choice",
    ["required", allowing(NAMED), allowing(NAMED, {"type": "tool_search"}, mode="required")],
)
def test_up_07_a_choice_may_name_what_a_search_could_find(choice: Any) -> None:
    check_choice(parsed(choice), [FINDS, LATER])


def test_a_namespace_that_is_chosen_admits_all_of_its_tools_and_no_other() -> None:
    choice = parsed(allowing({"type": "namespace", "name": "n"}, mode="required"))
    assert choice.admits(SPACED)
    assert not choice.admits(F)
    assert not choice.admits(replace(SPACED, namespace="m"))


@pytest.mark.parametrize(
    ("choice", "code", "param"),
    [
        ("any", "invalid_value", "tool_choice"),
        ({"name": "f"}, "missing_required_parameter", "tool_choice.type"),
        ({"type": "function", "name": ""}, "empty_string", "tool_choice.name"),
        (allowing(mode="some"), "invalid_value", "tool_choice.mode"),
        (allowing(), "empty_array", "tool_choice.tools"),
        ({"type": "allowed_tools"}, "missing_required_parameter", "tool_choice.tools"),
        (allowing({"type": "custom"}), "missing_required_parameter", "tool_choice.tools[0].name"),
        (allowing({"type": 3}), "invalid_type", "tool_choice.tools[0].type"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_choice_is_refused_by_its_path(choice: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(choice)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_the_tools_of_an_item_are_read_as_they_came() -> None:
    raw = b'{"type":"additional_tools","tools":[{"type":"function","name":"f"}]}'
    [tool] = brought_by(decode(raw), "input[0].tools")
    assert tool == Tool(type="function", name="f", param="input[0].tools[0]")
