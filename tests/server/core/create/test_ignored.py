"""What of a create is ignored, as the client is told."""

import json
from typing import Any, get_type_hints

import pytest
from openai.types.responses import (
    custom_tool_param,
    function_tool_param,
    namespace_tool_param,
    response_create_params,
    response_format_text_json_schema_config_param,
    response_text_config_param,
)
from openai.types.shared_params import reasoning

from tests.support.core import Lockstep
from tieline.codecs.json import RequestDecoder
from tieline.errors import ApiError
from tieline.events import RequestWarning, ResponseCreated
from tieline.requests import Create
from tieline_server.core.create import ignored
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.settings import SettingsCache, settle

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "odd": 1}}


def asked(**members: Any) -> Create:
    """A create as it comes from a client."""
    return RequestDecoder().create(json.dumps({"model": "m", "input": "hi", **members}).encode())


def warned(members: dict[str, Any]) -> tuple[RequestWarning, ...]:
    """What its client is told."""
    return settle(asked(**members), SettingsCache(), model="m").warnings


UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"tempratur": 1}, "tempratur", "temperature"),
    ({"max_tokens": 1}, "max_tokens", "max_output_tokens"),
    ({"messages": []}, "messages", ""),
    ({"unknown": ["x"]}, "unknown", ""),
    ({"": ["x"]}, "", ""),
    ({"text": {"formatt": {}}}, "text.formatt", "format"),
    ({"text": {"format": {"type": "text", "strickt": 1}}}, "text.format.strickt", "strict"),
    ({"reasoning": {"efort": "low"}}, "reasoning.efort", "effort"),
    (
        {"context_management": [{"type": "compaction", "compact_treshold": 9}]},
        "context_management[0].compact_treshold",
        "compact_threshold",
    ),
    (
        {"tools": [FUNCTION, {**FUNCTION, "name": "g", "parametres": {}}]},
        "tools[1].parametres",
        "parameters",
    ),
    ({"tools": [{"type": "custom", "name": "c", "fromat": {}}]}, "tools[0].fromat", "format"),
    (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{**FUNCTION, "strct": True}]}]},
        "tools[0].tools[0].strct",
        "strict",
    ),
]


@pytest.mark.parametrize(("members", "param", "meant"), UNKNOWN)
def test_in_07_an_unknown_member_is_named_with_what_may_have_been_meant(
    members: dict[str, Any], param: str, meant: str
) -> None:
    (warning,) = warned(members)
    assert (warning.code, warning.param) == ("unknown_parameter", param)
    assert warning.message.startswith(f"Unknown parameter: '{param}'.")
    assert ("Did you mean" in warning.message) is bool(meant)
    assert f"'{meant}'" in warning.message or not meant


@pytest.mark.parametrize(
    "kind",
    [
        "web_search",
        "web_search_preview",
        "mcp",
        "file_search",
        "code_interpreter",
        "image_generation",
        "computer_use_preview",
        "local_shell",
        "hosted_by_nobody",
    ],
)
def test_in_07_a_tool_that_nothing_runs_is_named(kind: str) -> None:
    (warning,) = warned({"tools": [FUNCTION, {"type": kind, "any": "member"}]})
    assert (warning.code, warning.param) == ("unsupported_tool", "tools[1].type")
    assert f"'{kind}'" in warning.message


def known(kind: Any) -> list[str]:
    return sorted(get_type_hints(kind))


OPENAI: list[dict[str, Any]] = [
    *(
        {name: None}
        for name in known(response_create_params.ResponseCreateParamsBase)
        if name not in ("model", "input")
    ),
    {"stream": False, "stream_options": {"include_obfuscation": False}, "client_metadata": {}},
    {"text": dict.fromkeys(known(response_text_config_param.ResponseTextConfigParam))},
    {
        "text": {
            "format": {
                **dict.fromkeys(
                    known(
                        response_format_text_json_schema_config_param.ResponseFormatTextJSONSchemaConfigParam
                    )
                ),
                "type": "text",
            }
        }
    },
    {"reasoning": dict.fromkeys(known(reasoning.Reasoning))},
    *(
        {"tools": [{**dict.fromkeys(known(kind)), "type": name, "name": "t", **inner}]}
        for name, kind, inner in (
            ("function", function_tool_param.FunctionToolParam, {}),
            ("custom", custom_tool_param.CustomToolParam, {}),
            ("namespace", namespace_tool_param.NamespaceToolParam, {"tools": []}),
        )
    ),
    {"tools": [{"type": "tool_search", "execution": "client"}]},
]


@pytest.mark.parametrize("members", OPENAI, ids=lambda each: ",".join(each))
def test_in_07_what_openais_api_has_is_not_unknown(members: dict[str, Any]) -> None:
    assert warned(members) == ()


def test_in_07_free_form_members_and_items_may_have_any_names() -> None:
    item = {"type": "message", "role": "user", "content": "hi", "odd": 1}
    assert warned({"metadata": {"tempratur": "1"}, "input": [item], "tools": [FUNCTION]}) == ()


def test_in_07_many_warnings_are_cut_and_long_names_too() -> None:
    many = warned({f"odd_{index}": 1 for index in range(100)})
    assert [each.param for each in many] == [f"odd_{index}" for index in range(ignored.MOST)]
    (one,) = warned({"x" * 10_000: 1})
    assert one.param == "x" * 64
    assert len(one.message) < 200


def test_in_07_what_comes_again_is_told_again_and_not_looked_for_again() -> None:
    recall = SettingsCache()
    first = settle(asked(tools=[{"type": "mcp"}]), recall, model="m")
    read = recall.work.validate
    again = settle(asked(tools=[{"type": "mcp"}], temperature=1), recall, model="m")
    assert again.warnings == first.warnings != ()
    assert recall.work.validate == read
    assert settle(asked(tools=[]), recall, model="m").warnings == ()


def test_in_07_the_response_that_begins_says_it_and_one_that_follows_does_not() -> None:
    driver = Lockstep()
    first = driver.create("hi", tools=[{"type": "mcp"}])
    driver.answer(first)
    (created,) = driver.of(first, ResponseCreated)
    assert [each.code for each in created.warnings or ()] == ["unsupported_tool"]
    second = driver.send("response.append", input="more")
    driver.answer(second)
    (created,) = driver.of(second, ResponseCreated)
    assert not created.warnings


def test_in_07_where_nothing_may_be_ignored_it_is_refused() -> None:
    driver = Lockstep(limits=Limits(ignores=False))
    driver.create("hi", tools=[{"type": "mcp"}])
    driver.create("hi", tempratur=1)
    assert [(each.status, each.error.code, each.error.param) for each in driver.error_events] == [
        (400, "unsupported_tool", "tools[0].type"),
        (400, "unknown_parameter", "tempratur"),
    ]
    assert driver.create("hi", tools=[FUNCTION], stream_options={}) in driver.sampling


def test_a_refusal_says_what_the_warning_says() -> None:
    error = ignored.refusal(RequestWarning(code="unknown_parameter", message="M.", param="a.b"))
    assert isinstance(error, ApiError)
    assert (error.status, error.message, error.param) == (400, "M.", "a.b")
