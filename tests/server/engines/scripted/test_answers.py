"""What is answered: by rules, and without one."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.engine_contract import WEATHER, link, prompt
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    ItemEnd,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
)
from tieline_server.core.effects import Prompt
from tieline_server.engines import bpe
from tieline_server.engines.base import EngineError
from tieline_server.engines.scripted.answers import Author, Context, Output, Plan
from tieline_server.engines.scripted.facts import Reader, head_of
from tieline_server.engines.scripted.script import Pace, Script, Stall, parse

VOCABULARY = bpe.shipped()

Act = Output | Stall


def plan(given: Prompt, *rules: dict[str, Any], **members: Any) -> Plan:
    rule_set = parse(json.dumps({"rules": list(rules), **members}).encode()) if rules else Script()
    facts = Reader(VOCABULARY.count).facts_of(given.chain)
    context = Context(given, facts, head_of(given.settings, VOCABULARY.count))
    return Author(rule_set, VOCABULARY).plan(context)


def acts_of(made: Plan) -> list[Act]:
    return [act for run in made.runs for act in ((run,) if isinstance(run, Stall) else run)]


def acts(given: Prompt, *emit: dict[str, Any]) -> list[Act]:
    return acts_of(plan(given, {"emit": list(emit)}))


def text(given: list[Act]) -> str:
    return "".join(act.text for act in given if isinstance(act, TextDelta))


def arguments(given: list[Act]) -> str:
    return "".join(act.text for act in given if isinstance(act, CallDelta))


def says(reply: str, **when: Any) -> dict[str, Any]:
    return {"when": when, "emit": {"type": "message", "text": reply}}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": '{"t": "21 °C"}'}
AFTER_TOOL = [user("How warm?"), CALL, OUTPUT]


# Which rule holds.


def test_the_first_rule_that_holds_decides() -> None:
    rules = (says("no", turn=2), says("first"), says("second"))
    assert text(acts_of(plan(prompt(), *rules))) == "first"


PATCH = {"type": "custom", "name": "patch"}
CRM = {"type": "namespace", "name": "crm", "tools": [WEATHER, PATCH]}


@pytest.mark.parametrize(
    ("when", "given", "expected"),
    [
        ({"last": "message"}, prompt("x"), True),
        ({"last": "tool_output"}, prompt("x"), False),
        ({"last": "tool_output"}, prompt(AFTER_TOOL), True),
        ({"last": "message"}, prompt(AFTER_TOOL), False),
        ({"user_contains": "warm"}, prompt(AFTER_TOOL), True),
        ({"user_contains": "WARM"}, prompt(AFTER_TOOL), False),
        ({"user_contains": "21"}, prompt(AFTER_TOOL), False),
        ({"model": "scripted"}, prompt("x"), True),
        ({"model": "other"}, prompt("x"), False),
        ({"turn": 1}, prompt("x"), True),
        ({"turn": 2}, prompt("x"), False),
        ({"turn": 2}, prompt("x", after=link("y")), True),
        ({"tool": ["function", "get_weather"]}, prompt("x", tools=[WEATHER]), True),
        ({"tool": ["function", "get_weather"]}, prompt("x", tools=[CRM]), True),
        ({"tool": ["function", "get_weather"]}, prompt("x"), False),
        ({"tool": ["custom", "get_weather"]}, prompt("x", tools=[WEATHER]), False),
        ({"tool": ["function", "get_weather", None]}, prompt("x", tools=[WEATHER]), True),
        ({"tool": ["function", "get_weather", None]}, prompt("x", tools=[CRM]), False),
        ({"tool": ["custom", "patch", "crm"]}, prompt("x", tools=[CRM]), True),
        ({"tool": ["custom", "patch", "erp"]}, prompt("x", tools=[CRM]), False),
        ({"tool": ["web_search", None]}, prompt("x", tools=[{"type": "web_search"}]), True),
        ({"tool": ["namespace", "crm"]}, prompt("x", tools=[CRM]), True),
        ({"last": "message", "turn": 2}, prompt("x"), False),
        ({}, prompt("x"), True),
    ],
)
def test_a_condition_holds_or_not(when: dict[str, Any], given: Prompt, expected: bool) -> None:
    answer = text(acts_of(plan(given, says("it holds", **when))))
    assert (answer == "it holds") is expected


def test_a_tool_that_came_with_earlier_input_counts_as_offered() -> None:
    earlier = link([user("a"), {"type": "additional_tools", "tools": [CRM]}])
    given = prompt("x", after=earlier)
    rule = says("it holds", tool=["custom", "patch", "crm"])
    assert text(acts_of(plan(given, rule))) == "it holds"


# What a rule emits.


def test_emissions_come_in_order_each_closed() -> None:
    made = acts(
        prompt(),
        {"type": "reasoning", "text": "hm"},
        {"type": "message", "text": "hi"},
        {"type": "refusal", "text": "no"},
        {"type": "stall", "seconds": 2},
        {"type": "custom_tool_call", "name": "patch", "input": "x", "namespace": "crm"},
        {"type": "function_call", "name": "f", "arguments": {"a": 1}},
        {"type": "function_call", "name": "g", "arguments": "not json"},
    )
    assert [act for act in made if not isinstance(act, CallDelta)] == [
        ReasoningDelta("hm"),
        ItemEnd(),
        TextDelta("hi"),
        ItemEnd(),
        RefusalDelta("no"),
        ItemEnd(),
        Stall(seconds=2),
        CallStart(kind="custom_tool_call", name="patch", namespace="crm", tokens=1),
        ItemEnd(),
        CallStart(kind="function_call", name="f", tokens=1),
        ItemEnd(),
        CallStart(kind="function_call", name="g", tokens=1),
        ItemEnd(),
    ]
    assert arguments(made) == 'x{"a":1}not json'


def test_a_summary_of_a_thought_costs_nothing() -> None:
    made = acts(prompt(), {"type": "reasoning", "text": "1234", "summary": "12"})
    assert [act.text for act in made if isinstance(act, ReasoningDelta)] == ["1", "2", "3", "4"]
    assert [act.tokens for act in made if isinstance(act, SummaryDelta)] == [0, 0]


def test_a_thought_that_stays_hidden_is_as_long_as_its_summary() -> None:
    made = acts(prompt(), {"type": "reasoning", "summary": "123"})
    assert [act.tokens for act in made if isinstance(act, ReasoningDelta)] == [1, 1, 1]
    assert [act.text for act in made if isinstance(act, ReasoningDelta)] == ["", "", ""]
    assert "".join(act.text for act in made if isinstance(act, SummaryDelta)) == "123"


def test_placeholders_hold_the_user_the_output_and_the_exact_context() -> None:
    given = prompt(AFTER_TOOL)
    template = "{user} {output} {context}"
    raw = ",".join(item.raw.decode() for item in given.chain.items)
    expected = f'How warm? {{"t": "21 °C"}} [{raw}]'
    assert text(acts(given, {"type": "message", "text": template})) == expected
    assert json.loads(f"[{raw}]") == AFTER_TOOL


def test_the_context_is_that_of_the_whole_chain() -> None:
    first = link([user("one")])
    answer = link([{"role": "assistant", "content": "two"}], first, output=True)
    made = acts(prompt([user("three")], after=answer), {"type": "message", "text": "{context}"})
    contents = [item["content"] for item in json.loads(text(made))]
    assert contents == ["one", "two", "three"]


def test_placeholders_are_filled_in_names_and_namespaces_too() -> None:
    call = {"type": "function_call", "name": "f_{user}", "namespace": "{user}s"}
    (start, *_) = acts(prompt("x"), call)
    assert start == CallStart(kind="function_call", name="f_x", namespace="xs", tokens=1)


@given(st.text(), st.text(max_size=20))
def test_whatever_fills_them_arguments_that_are_an_object_stay_json(said: str, key: str) -> None:
    given = prompt([user(said)])
    call = {"type": "function_call", "name": "f", "arguments": {key: ["<{user}>", 1.5]}}
    made = json.loads(arguments(acts(given, call)))
    assert list(made.values()) == [[f"<{said}>", 1.5]]


def test_arguments_that_are_text_are_filled_as_they_stand() -> None:
    call = {"type": "function_call", "name": "f", "arguments": '{"q":{output}}'}
    assert arguments(acts(prompt(AFTER_TOOL), call)) == '{"q":{"t": "21 °C"}}'


def test_an_empty_text_is_no_token() -> None:
    assert acts(prompt(), {"type": "message", "text": ""}) == [ItemEnd()]


def test_a_refusal_waits_for_the_stalls_before_it() -> None:
    error = {"type": "error", "status": 429, "code": "queue_full", "message": "{user}!"}
    stall = {"type": "stall", "seconds": 2}
    made = plan(prompt("x"), {"emit": [stall, stall, error, stall]})
    assert made.delay == 4
    assert made.error is not None
    assert made.error.message == "x!"


def test_the_pace_is_the_rules_over_the_scripts() -> None:
    rule = {**says("x"), "pace": {"ttft_ms": 5}}
    made = plan(prompt(), rule, pace={"ttft_ms": 1, "tokens_per_second": 9})
    assert made.pace == Pace(ttft_ms=5, tokens_per_second=9)


def test_text_of_the_scripts_own_is_cut_once() -> None:
    given = prompt()
    facts = Reader(VOCABULARY.count).facts_of(given.chain)
    context = Context(given, facts, head_of(given.settings, VOCABULARY.count))
    author = Author(parse(json.dumps({"rules": [says("one two")]}).encode()), VOCABULARY)
    one, two = acts_of(author.plan(context)), acts_of(author.plan(context))
    assert [id(act) for act in one[:-1]] == [id(act) for act in two[:-1]]


# Without a rule.


def default(given: Prompt) -> list[Act]:
    return acts_of(plan(given))


def test_it_echoes_the_user() -> None:
    assert text(default(prompt("hello {output}"))) == "You said: hello {output}"


def test_it_says_so_when_nobody_spoke() -> None:
    made = text(default(prompt([{"role": "developer", "content": "x"}])))
    assert made == "Nothing was said."


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_after_a_tool_output_it_tells_the_output(choice: str) -> None:
    made = default(prompt(AFTER_TOOL, tools=[WEATHER], tool_choice=choice))
    assert text(made) == 'The tool returned: {"t": "21 °C"}'


LIST = {"type": "function", "name": "list_files", "parameters": {"type": "object"}}
NAMED = {"type": "function", "name": "list_files"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
MAY = {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}


@pytest.mark.parametrize(
    ("said", "choice", "called"),
    [
        ("hello", "auto", None),
        ("hello", "required", "get_weather"),
        ("hello", NAMED, "list_files"),
        ("hello", ALLOWED, "list_files"),
        ("hello", MAY, None),
        ("list files, please", "required", "list_files"),
        ("call get_weather", "auto", "get_weather"),
        ("Call GET-WEATHER now", "auto", "get_weather"),
        ("call get_weather_now", "auto", None),
        ("please use one of your tools", "auto", "get_weather"),
        ("please use one of your tools", MAY, "list_files"),
        ("call get_weather", MAY, None),
        ("call get_weather", "none", None),
    ],
)
def test_a_tool_is_called_when_the_request_or_the_user_asks(
    said: str, choice: Any, called: str | None
) -> None:
    made = default(prompt(said, tools=[WEATHER, LIST], tool_choice=choice))
    names = [act.name for act in made if isinstance(act, CallStart)]
    assert names == ([called] if called else [])


def test_the_arguments_satisfy_the_schema_and_use_the_users_words() -> None:
    made = default(prompt("Paris", tools=[WEATHER], tool_choice="required"))
    value = json.loads(arguments(made))
    Draft202012Validator(WEATHER["parameters"]).validate(value)
    assert value["city"] == "Paris"


@pytest.mark.parametrize("parameters", [None, {}])
def test_a_function_without_a_schema_gets_an_empty_object(parameters: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": parameters}
    made = default(prompt("x", tools=[tool], tool_choice="required"))
    assert arguments(made) == "{}"


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        (None, "do it"),
        ({"type": "text"}, "do it"),
        ({"type": "grammar", "syntax": "regex", "definition": "^v[0-9]+$"}, "v0"),
        ({"type": "grammar", "syntax": "lark", "definition": "start: X"}, "do it"),
    ],
)
def test_a_custom_tool_gets_the_users_words_or_what_its_pattern_matches(
    form: Any, sent: str
) -> None:
    tool = {"type": "custom", "name": "patch", **({"format": form} if form else {})}
    made = default(prompt("do it", tools=[tool], tool_choice="required"))
    assert made[0] == CallStart(kind="custom_tool_call", name="patch", tokens=1)
    assert arguments(made) == sent


@pytest.mark.parametrize("parameters", [{"type": "array"}, {"required": 5}, {"not": {}}])
def test_a_function_whose_schema_cannot_be_met_is_refused(parameters: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": parameters}
    with pytest.raises(EngineError, match="no arguments for the schema of 'f'") as refused:
        default(prompt("x", tools=[tool], tool_choice="required"))
    assert refused.value.code == "invalid_function_parameters"
    assert refused.value.param == "tools[0].parameters"


def test_a_custom_tool_whose_pattern_cannot_be_met_is_refused() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "(?=x)"}
    tool = {"type": "custom", "name": "patch", "format": form}
    with pytest.raises(EngineError, match="no text that this regular expression") as refused:
        default(prompt("x", tools=[tool], tool_choice="required"))
    assert (refused.value.code, refused.value.param) == ("invalid_value", "tools[0].format")


def test_a_format_whose_schema_cannot_be_met_is_refused() -> None:
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}
    with pytest.raises(EngineError, match="no value for this schema") as refused:
        default(prompt("x", text=form))
    assert refused.value.code == "invalid_json_schema"
    assert refused.value.param == "text.format.schema"


def test_a_tool_in_a_namespace_is_called_with_it() -> None:
    (start, *_) = default(prompt("x", tools=[CRM], tool_choice="required"))
    assert start == CallStart(kind="function_call", name="get_weather", namespace="crm", tokens=1)


def test_a_tool_that_came_with_the_input_can_be_called() -> None:
    given = prompt([{"type": "additional_tools", "tools": [WEATHER]}, user("use get_weather")])
    (start, *_) = default(given)
    assert isinstance(start, CallStart)


def test_a_hosted_tool_is_not_ours_to_call() -> None:
    given = prompt("x", tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
    assert text(default(given)) == "You said: x"


def test_a_format_shapes_the_message() -> None:
    schema = {
        "type": "object",
        "properties": {"reply": {"type": "string"}, "sure": {"type": "boolean"}},
        "required": ["reply", "sure"],
    }
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    assert json.loads(text(default(prompt("Paris", text=form)))) == {"reply": "Paris", "sure": True}
    form = {"format": {"type": "json_object"}}
    assert json.loads(text(default(prompt("Paris", text=form)))) == {"text": "You said: Paris"}


def test_many_tools_are_looked_for_in_a_long_message_soon() -> None:
    tools = [{"type": "function", "name": f"look_up_{nth}"} for nth in range(1000)]
    start = time.process_time()
    given = prompt("look up a word " * 20_000, tools=tools)
    assert text(acts_of(plan(given))).startswith("You said")
    assert time.process_time() - start < 5


def test_up_07_a_rule_calls_the_search_that_is_on_offer_and_else_a_function() -> None:
    rule = {"type": "function_call", "name": "tool_search", "arguments": {"query": "x"}}
    author = Author(parse(json.dumps({"rules": [{"emit": [rule]}]}).encode()), VOCABULARY)
    search = {"type": "tool_search", "execution": "client"}
    for tools, kind in (([search], "tool_search_call"), ([], "function_call")) * 2:
        given = prompt("hi", tools=tools)
        facts = Reader(VOCABULARY.count).facts_of(given.chain)
        context = Context(given, facts, head_of(given.settings, VOCABULARY.count))
        start = acts_of(author.plan(context))[0]
        assert isinstance(start, CallStart)
        assert (start.kind, start.name) == (kind, "tool_search")
