"""What a create asks for: checked with OpenAI's codes, remembered by its bytes."""

from typing import Any

import msgspec
import pytest

from tests.support.core import create_of, raw
from tieline.errors import ApiError
from tieline.items import decode
from tieline.responses import Response
from tieline_server.core.create.settings import (
    EFFORTS,
    INCLUDE,
    LOGPROBS,
    TIERS,
    TRUNCATIONS,
    Compacting,
    Settings,
    SettingsCache,
    check_words,
    parse_reasoning,
    settle,
)
from tieline_server.core.create.tools import MAX_TOOLS, Tool, ToolChoice
from tieline_server.core.values import Work


def settled(**members: Any) -> Settings:
    """The settings of a create with some input."""
    return settle(create_of(**{"input": "hi", **members}), SettingsCache(Work()), model="m")


def refusal(**members: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        settled(**members)
    assert refused.value.status == 400
    assert refused.value.type == "invalid_request_error"
    return refused.value


def tool(name: str, kind: str = "function", **members: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **members}


GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}


def echoed(settings: Settings) -> dict[str, Any]:
    """The Response members that repeat the settings, as a client reads them."""
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(Response(**settings.echo)))
    return whole


def test_tools_have_a_longest_length() -> None:
    most = [tool(f"f{at}") for at in range(MAX_TOOLS)]
    assert len(settled(tools=most).tools.offered) == MAX_TOOLS
    error = refusal(tools=[*most, tool("f")])
    assert (error.code, error.param) == ("array_above_max_length", "tools")


class TestRefusals:
    @pytest.mark.parametrize(
        ("member", "value", "code"),
        [
            ("temperature", "warm", "invalid_type"),
            ("temperature", 2.1, "decimal_above_max_value"),
            ("temperature", -0.1, "decimal_below_min_value"),
            ("top_p", 1.5, "decimal_above_max_value"),
            ("top_logprobs", 21, "integer_above_max_value"),
            ("max_output_tokens", 0, "integer_below_min_value"),
            ("max_output_tokens", 1.5, "invalid_type"),
            ("max_tool_calls", 0, "integer_below_min_value"),
            ("timeout_ms", 0, "integer_below_min_value"),
            ("store", "yes", "invalid_type"),
            ("parallel_tool_calls", 1, "invalid_type"),
            ("include", "all", "invalid_type"),
            ("previous_response_id", 7, "invalid_type"),
            ("safety_identifier", "x" * 129, "string_above_max_length"),
            ("tools", "all", "invalid_type"),
            ("instructions", ["be", "terse"], "invalid_type"),
            ("text", "plain", "invalid_type"),
            ("reasoning", 3, "invalid_type"),
            ("tool_choice", 3, "invalid_type"),
            ("tool_choice", "some", "invalid_value"),
            ("truncation", "always", "invalid_value"),
        ],
    )
    def test_a_wrong_member_is_named(self, member: str, value: object, code: str) -> None:
        error = refusal(**{member: value})
        assert (error.code, error.param) == (code, member)
        assert f"'{member}'" in error.message or code == "invalid_value"

    @pytest.mark.parametrize(
        ("members", "code", "param"),
        [
            ({"tools": [{"name": "f"}]}, "missing_required_parameter", "tools[0].type"),
            ({"tools": [tool("f"), 7]}, "invalid_type", "tools[1]"),
            ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
            ({"tools": [{"type": "custom", "name": ""}]}, "empty_string", "tools[0].name"),
            ({"tools": [tool("f", strict="no")]}, "invalid_type", "tools[0].strict"),
            ({"tools": [tool("f", parameters=[])]}, "invalid_function_parameters",
             "tools[0].parameters"),
            ({"tools": [tool("n", "namespace", tools=[{"type": "function"}])]},
             "missing_required_parameter", "tools[0].tools[0].name"),
            ({"tool_choice": {"type": "function"}}, "missing_required_parameter",
             "tool_choice.name"),
            ({"tool_choice": {"type": "allowed_tools", "mode": "never", "tools": []}},
             "invalid_value", "tool_choice.mode"),
            ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function"}]}},
             "missing_required_parameter", "tool_choice.tools[0].name"),
            ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
            ({"text": {"format": {"type": "json_schema", "name": "n"}}},
             "missing_required_parameter", "text.format.schema"),
            ({"text": {"format": {"type": 1}}}, "invalid_type", "text.format.type"),
            ({"reasoning": {"effort": 1}}, "invalid_type", "reasoning.effort"),
            ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
            ({"reasoning": {"effort": ""}}, "invalid_value", "reasoning.effort"),
            ({"reasoning": {"summary": "long"}}, "invalid_value", "reasoning.summary"),
            ({"text": {"verbosity": "loud"}}, "invalid_value", "text.verbosity"),
            ({"text": {"format": {}}}, "missing_required_parameter", "text.format.type"),
            ({"tools": [tool("f", "funtion", parameters={})]}, "invalid_value", "tools[0].type"),
            ({"tools": [tool("n", "namespace")]}, "missing_required_parameter", "tools[0].tools"),
            ({"tools": [tool("c", "custom", format={"type": "bnf"})]}, "invalid_value",
             "tools[0].format.type"),
            ({"tools": [tool("c", "custom", format={**GRAMMAR, "syntax": "bnf"})]},
             "invalid_value", "tools[0].format.syntax"),
            ({"tools": [tool("c", "custom", format={"type": "grammar", "syntax": "lark"})]},
             "missing_required_parameter", "tools[0].format.definition"),
            ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}},
             "missing_required_parameter", "tool_choice.tools"),
            ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "empty_array",
             "tool_choice.tools"),
            ({"metadata": {"k": 1}}, "invalid_type", "metadata"),
            ({"metadata": {"k": "v" * 513}}, "string_above_max_length", "metadata"),
            ({"metadata": {"k" * 65: "v"}}, "string_above_max_length", "metadata"),
            ({"metadata": {str(at): "v" for at in range(17)}}, "array_above_max_length",
             "metadata"),
            ({"idempotency_key": ""}, "empty_string", "idempotency_key"),
        ],
    )  # fmt: skip
    def test_a_wrong_member_inside_another_is_named_by_its_path(
        self, members: dict[str, Any], code: str, param: str
    ) -> None:
        error = refusal(**members)
        assert (error.code, error.param) == (code, param)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("conversation", "conv_1"),
            ("conversation", {"id": "conv_1"}),
            ("prompt", {"id": "pmpt_1"}),
        ],
    )
    def test_what_does_not_exist_yet_is_refused(self, name: str, value: object) -> None:
        error = refusal(**{name: value})
        assert (error.code, error.param) == ("unsupported_parameter", name)

    def test_a_background_response_has_to_be_stored(self) -> None:
        error = refusal(background=True, store=False)
        assert (error.code, error.param) == ("invalid_value", "background")
        assert settled(background=True).background

    @pytest.mark.parametrize(
        ("name", "value"),
        [("conversation", None), ("prompt", None), ("background", None), ("background", False)],
    )
    def test_asking_for_none_of_it_is_fine(self, name: str, value: object) -> None:
        assert settled(**{name: value}).model == "m"

    def test_input_is_required_where_there_is_nothing_to_go_on_from(self) -> None:
        with pytest.raises(ApiError) as refused:
            settle(create_of(), SettingsCache(Work()), model="m")
        assert refused.value.code == "missing_required_parameter"
        assert refused.value.param == "input"

    @pytest.mark.parametrize("members", [{"generate": False}, {"previous_response_id": "r"}])
    def test_input_may_be_missing_elsewhere(self, members: dict[str, Any]) -> None:
        assert settle(create_of(**members), SettingsCache(Work()), model="m").model == "m"

    def test_an_unknown_member_is_ignored(self) -> None:
        assert settled(telepathy=True).model == "m"

    def test_a_long_value_is_not_echoed_whole(self) -> None:
        assert len(refusal(truncation="x" * 5000).message) < 200


class TestTools:
    def test_functions_customs_and_those_in_namespaces_are_offered(self) -> None:
        schema = {"type": "object", "properties": {}}
        offered = settled(
            tools=[
                tool("f", parameters=schema, strict=True, description="d"),
                tool("c", "custom", format=GRAMMAR),
                tool("n", "namespace", tools=[tool("g", parameters=None)]),
                {"type": "web_search"},
            ]
        ).tools.offered
        assert offered == (
            Tool(
                type="function",
                name="f",
                description="d",
                parameters=msgspec.json.encode(schema),
                strict=True,
                param="tools[0]",
            ),
            Tool(type="custom", name="c", format=msgspec.json.encode(GRAMMAR), param="tools[1]"),
            Tool(type="function", name="g", namespace="n", param="tools[2].tools[0]"),
            Tool(type="web_search", param="tools[3]"),
        )

    def test_the_echo_of_a_function_has_all_four_members(self) -> None:
        """wire.md 6.3: name, description, parameters and strict, null where absent."""
        (echo,) = echoed(settled(tools=[tool("f", extra=[1])]))["tools"]
        assert echo == {
            "type": "function",
            "name": "f",
            "description": None,
            "parameters": None,
            "strict": None,
            "extra": [1],
        }

    def test_what_is_no_function_is_echoed_as_it_came(self) -> None:
        hosted = [{"type": "web_search", "size": "low"}, tool("n", "namespace", tools=[tool("g")])]
        assert echoed(settled(tools=hosted))["tools"] == hosted

    @pytest.mark.parametrize(
        ("tools", "param"),
        [
            ([tool("f"), tool("g"), tool("f", description="another")], "tools[2].name"),
            ([tool("f"), tool("f")], "tools[1].name"),
            ([tool("f"), tool("f", "custom")], "tools[1].name"),
            ([tool("n", "namespace", tools=[tool("f"), tool("f")])], "tools[0].tools[1].name"),
            (
                [tool("n", "namespace", tools=[tool("f")])] * 2,
                "tools[1].tools[0].name",
            ),
        ],
    )
    def test_in_03_two_tools_of_one_name_in_one_namespace_are_refused(
        self, tools: list[dict[str, Any]], param: str
    ) -> None:
        error = refusal(tools=tools)
        assert (error.code, error.param) == ("invalid_value", param)
        assert "unique" in error.message

    def test_in_03_one_name_in_two_namespaces_is_two_tools(self) -> None:
        spaces = [tool(name, "namespace", tools=[tool("f")]) for name in "mn"]
        offered = settled(tools=[tool("f"), *spaces]).tools.offered
        assert [each.namespace for each in offered] == [None, "m", "n"]

    def test_a_search_for_tools_may_say_its_parameters(self) -> None:
        search = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
        assert echoed(settled(tools=[search]))["tools"] == [search]

    def test_in_03_hosted_tools_have_no_names_to_be_unique(self) -> None:
        servers = [{"type": "mcp", "server_label": name} for name in "ab"]
        assert len(settled(tools=servers).tools.offered) == 2


class TestInclude:
    @pytest.mark.parametrize("name", INCLUDE)
    def test_what_openai_has_is_taken(self, name: str) -> None:
        assert settled(include=[name]).include == {name}

    def test_ours_is_among_them(self) -> None:
        assert LOGPROBS in INCLUDE

    def test_in_03_an_unknown_one_is_refused_by_its_place(self) -> None:
        error = refusal(include=[LOGPROBS, "bogus"])
        assert (error.code, error.param) == ("invalid_value", "include[1]")
        assert LOGPROBS in error.message

    @pytest.mark.parametrize("include", [None, []])
    def test_none_is_fine(self, include: list[str] | None) -> None:
        assert settled(include=include).include == frozenset()


class TestServiceTier:
    @pytest.mark.parametrize("tier", [None, "auto", "default", "flex", "scale", "priority"])
    def test_in_02_every_tier_of_openai_is_served_and_the_one_that_serves_is_told(
        self, tier: str | None
    ) -> None:
        assert echoed(settled(service_tier=tier))["service_tier"] == "default"

    @pytest.mark.parametrize("tier", ["bogus", "", "Flex", "sk-Secret0123456789"])
    def test_in_02_a_tier_that_nobody_knows_is_refused(self, tier: str) -> None:
        error = refusal(service_tier=tier)
        assert (error.status, error.code, error.param) == (400, "invalid_value", "service_tier")
        assert "'flex'" in error.message
        assert "Secret" not in error.message


class TestToolChoice:
    function = Tool(type="function", name="f")
    other = Tool(type="function", name="g")
    hosted = Tool(type="web_search")

    def choice(self, value: object) -> ToolChoice:
        offered = [tool("f"), tool("g"), {"type": "web_search"}]
        return settled(tool_choice=value, tools=offered).tool_choice

    def test_without_one_the_model_decides(self) -> None:
        assert self.choice(None) == ToolChoice(mode="auto")
        assert echoed(settled())["tool_choice"] == "auto"

    @pytest.mark.parametrize("word", ["auto", "none", "required"])
    def test_a_word_is_the_mode(self, word: str) -> None:
        choice = self.choice(word)
        assert choice.mode == word
        assert choice.admits(self.function) is (word != "none")

    def test_a_named_tool_is_required_and_alone(self) -> None:
        choice = self.choice(tool("f"))
        assert choice.mode == "required"
        assert choice.admits(self.function)
        assert not choice.admits(self.other)

    def test_allowed_tools_narrow_what_is_offered(self) -> None:
        named = {"type": "allowed_tools", "mode": "auto", "tools": [tool("g")]}
        choice = self.choice(named)
        assert choice.mode == "auto"
        assert [choice.admits(each) for each in (self.function, self.other)] == [False, True]

    def test_in_03_what_only_the_input_may_bring_is_left_to_it(self) -> None:
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [tool("f"), tool("h")]}
        settings = settled(tools=[tool("f")], tool_choice=allowed)
        assert settings.unmet
        brings = decode(raw({"type": "additional_tools", "tools": [tool("h")]}))
        settings.meet([brings])
        with pytest.raises(ApiError) as refused:
            settings.meet([])
        assert (refused.value.code, refused.value.param) == (
            "invalid_value",
            "tool_choice.tools[1]",
        )
        assert not settled(tools=[tool("f"), tool("h")], tool_choice=allowed).unmet

    def test_a_hosted_tool_is_chosen_by_its_type(self) -> None:
        choice = self.choice({"type": "web_search"})
        assert choice.admits(self.hosted)
        assert not choice.admits(self.function)


class TestValues:
    def test_defaults_are_openais(self) -> None:
        settings = settled()
        assert settings.store
        assert settings.generate
        assert settings.parallel_tool_calls
        assert not settings.append
        assert settings.truncation == "disabled"
        assert settings.instructions is None

    def test_the_echo_of_nothing_has_no_null_where_a_client_needs_a_value(self) -> None:
        """wire.md 6.1 and 6.3."""
        echo = echoed(settled())
        assert echo["text"] == {"format": {"type": "text"}}
        assert echo["reasoning"] == {"effort": None, "summary": None}
        assert echo["service_tier"] == "default"
        assert echo["metadata"] == {}
        assert (echo["temperature"], echo["top_p"], echo["top_logprobs"]) == (1.0, 1.0, 0)

    def test_a_count_past_what_grpc_has_a_field_for_is_the_largest_that_it_has(self) -> None:
        asked = settled(max_output_tokens=2**31, max_tool_calls=2**63)
        assert asked.max_output_tokens == asked.max_tool_calls == 2**31 - 1
        echo = echoed(asked)
        assert echo["max_output_tokens"] == echo["max_tool_calls"] == 2**31 - 1
        assert settled(max_output_tokens=2**31 - 1, max_tool_calls=None).max_tool_calls is None

    def test_what_was_asked_for_is_echoed(self) -> None:
        asked = {
            "instructions": "be terse",
            "temperature": 0.0,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "max_output_tokens": 9,
            "max_tool_calls": 2,
            "metadata": {"k": "v"},
            "store": False,
            "parallel_tool_calls": False,
            "service_tier": "flex",
            "prompt_cache_key": "key",
            "safety_identifier": "me",
            "truncation": "auto",
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        }
        echo = echoed(settled(**asked))
        # The tier that serves is told, not the one that was asked for.
        assert {name: echo[name] for name in asked} == {**asked, "service_tier": "default"}

    @pytest.mark.parametrize("summary", [None, "none"])
    def test_no_summary_is_echoed_as_null_however_it_is_said(self, summary: str | None) -> None:
        echo = echoed(settled(reasoning={"summary": summary, "effort": "low"}))
        assert echo["reasoning"] == {"effort": "low", "summary": None}

    def test_a_schema_stays_the_bytes_that_came(self) -> None:
        schema = {"type": "object", "properties": {"a": {"const": 1.0}}}
        form = settled(
            text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
        ).format
        assert (form.type, form.name, form.strict) == ("json_schema", "n", True)
        assert form.schema == msgspec.json.encode(schema)

    def test_text_with_a_verbosity_alone_still_names_a_format(self) -> None:
        echo = echoed(settled(text={"verbosity": "low"}))["text"]
        assert echo == {"format": {"type": "text"}, "verbosity": "low"}

    @pytest.mark.parametrize("effort", EFFORTS)
    def test_effort_is_read_from_reasoning(self, effort: str) -> None:
        assert settled(reasoning={"effort": effort}).reasoning_effort == effort

    def test_an_effort_that_a_model_has_by_default_can_be_asked_for_there(self) -> None:
        asked = b'{"effort":"deep"}'
        assert parse_reasoning(asked, default="deep")[0] == "deep"
        with pytest.raises(ApiError, match="'deep'"):
            parse_reasoning(asked, default="low")

    def test_following_settings_have_no_deadline_and_sample(self) -> None:
        """A steer's successor samples, whatever its response's own deadline was."""
        settings = settled(timeout_ms=5, generate=False).following()
        assert settings.timeout_ms is None
        assert settings.generate


class TestSettingsCache:
    def test_the_same_settings_are_the_same_object(self) -> None:
        """What is about one turn alone makes no difference."""
        recall = SettingsCache(Work())
        one = settle(create_of(input="hi", temperature=0.5, tools=[tool("f")]), recall, model="m")
        again = create_of(temperature=0.5, tools=[tool("f")], input="other", event_id="e")
        assert settle(again, recall, model="m") is one

    @pytest.mark.parametrize(
        "members",
        [{"temperature": 0.25}, {"store": False}, {"metadata": {"a": "b"}}, {"tools": []}],
    )
    def test_any_other_setting_makes_other_settings(self, members: dict[str, Any]) -> None:
        recall = SettingsCache(Work())
        asked = {"temperature": 0.5, "tools": [tool("f")]}
        one = settle(create_of(input="hi", **asked), recall, model="m")
        other = settle(create_of(input="hi", **{**asked, **members}), recall, model="m")
        assert other != one
        assert other == settled(**{**asked, **members})
        assert settle(create_of(input="hi", **asked), recall, model="n").model == "n"

    def test_equal_bytes_are_not_read_again(self) -> None:
        work = Work()
        recall = SettingsCache(work)
        tools = [tool("f", description="x" * 20_000)]
        create = create_of(input="hi", tools=tools, instructions="be terse")
        first = settle(create, recall, model="m")
        assert work.validate > 20_000
        before = work.validate
        again = create_of(input="other", tools=tools, instructions="be terse", temperature=0.5)
        second = settle(again, recall, model="m")
        assert work.validate == before
        assert second.tools is first.tools
        assert second.instructions is first.instructions

    def test_other_bytes_are_read_and_take_the_place_of_the_last(self) -> None:
        recall = SettingsCache(Work())
        parsed: list[bytes] = []

        def parse(data: bytes) -> int:
            parsed.append(data)
            return len(parsed)

        assert [recall.read("tools", raw([n]), parse) for n in (1, 1, 2, 2, 1)] == [1, 1, 2, 2, 3]

    def test_what_was_refused_is_not_remembered(self) -> None:
        work = Work()
        recall = SettingsCache(work)
        for _ in range(2):
            with pytest.raises(ApiError):
                settle(create_of(input="hi", tools=[{"type": "function"}]), recall, model="m")
        assert work.validate == 2 * len(msgspec.json.encode([{"type": "function"}]))

    def test_one_member_does_not_answer_for_another(self) -> None:
        recall = SettingsCache(Work())
        assert recall.read("text", raw(None), lambda data: "text") == "text"
        assert recall.read("tools", raw(None), lambda data: "tools") == "tools"


class TestContextManagement:
    @pytest.mark.parametrize(
        ("entries", "found"),
        [
            (None, None),
            ([], None),
            ([{"type": "compaction", "compact_threshold": 1000}], Compacting(1000)),
            ([{"type": "compaction", "compact_threshold": None}], Compacting(None)),
            ([{"type": "compaction"}, {"type": "compaction", "compact_threshold": 2000}],
             Compacting(2000)),
        ],
    )  # fmt: skip
    def test_compaction_is_asked_for_by_its_threshold(
        self, entries: object, found: Compacting | None
    ) -> None:
        assert settled(context_management=entries).compaction == found

    @pytest.mark.parametrize(
        ("entries", "code", "param"),
        [
            ([{"type": "compaction", "compact_threshold": 999}],
             "integer_below_min_value", "context_management[0].compact_threshold"),
            ([{"type": "compaction"}, {"type": "forgetting"}],
             "invalid_value", "context_management[1].type"),
            ([{}], "missing_required_parameter", "context_management[0].type"),
            ({"type": "compaction"}, "invalid_type", "context_management"),
            (7, "invalid_type", "context_management"),
        ],
    )  # fmt: skip
    def test_anything_else_is_refused_by_its_place(
        self, entries: object, code: str, param: str
    ) -> None:
        refused = refusal(context_management=entries)
        assert (refused.code, refused.param) == (code, param)


def test_every_word_of_a_list_passes() -> None:
    for tier in TIERS:
        check_words(create_of(service_tier=tier, include=list(INCLUDE)))
    for truncation in TRUNCATIONS:
        check_words(create_of(truncation=truncation))
    check_words(create_of())


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
        check_words(create_of(**members))
    assert (refused.value.code, refused.value.param) == ("invalid_value", param)
    assert all(f"'{each}'" in refused.value.message for each in known)
