"""Forms of calls learnt from what a template writes: what is shown, and what is read back."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import chat_templates
from tests.support.chat_family import CALLS, OUTPUTS, TOOLS, ChatFamily
from tests.support.chat_syntaxes import syntax_of
from tests.support.engine_contract import prompt
from tests.support.grammar_matcher import Grammar
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.syntax import PLAIN
from tieline_server.engines.chat_format.syntax.base import LETTER, THOUGHT

ARGUMENTS: dict[str, Any] = {
    "at": 'x "y" </par\nz é',
    "count": 42,
    "deep": {"a": [1, None], "b": "</parameter>"},
    "list": ["a"],
    "sure": True,
    "code": "42",
    "gone": None,
}
"""One argument of each kind; what is text stays text."""

TYPES = {
    "at": {"type": "string"},
    "count": {"type": "integer"},
    "deep": {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}},
    "list": {"type": "array", "items": {"type": "string"}},
    "sure": {"type": "boolean"},
    "code": {"type": "string"},
    "gone": {"type": ["string", "null"]},
}

FULL: dict[str, Any] = {
    "type": "function",
    "name": "full",
    "parameters": {"type": "object", "properties": TYPES},
}

QWEN_CODER = """\
<tool_call>
<function=full>
<parameter=at>
x "y" </par
z é
</parameter>
<parameter=count>
42
</parameter>
<parameter=deep>
{"a":[1,null],"b":"</parameter>"}
</parameter>
<parameter=list>
["a"]
</parameter>
<parameter=sure>
True
</parameter>
<parameter=code>
42
</parameter>
<parameter=gone>
None
</parameter>
</function>
</tool_call>"""

GLM = (
    '<tool_call>full\n<arg_key>at</arg_key>\n<arg_value>x "y" </par\nz é</arg_value>'
    "\n<arg_key>count</arg_key>\n<arg_value>42</arg_value>"
    '\n<arg_key>deep</arg_key>\n<arg_value>{"a":[1,null],"b":"</parameter>"}</arg_value>'
    '\n<arg_key>list</arg_key>\n<arg_value>["a"]</arg_value>'
    "\n<arg_key>sure</arg_key>\n<arg_value>true</arg_value>"
    "\n<arg_key>code</arg_key>\n<arg_value>42</arg_value>"
    "\n<arg_key>gone</arg_key>\n<arg_value>null</arg_value>"
    "\n</tool_call>"
)

MINIMAX = """\
<minimax:tool_call>
<invoke name="full">
<parameter name="at">x "y" </par
z é</parameter>
<parameter name="count">42</parameter>
<parameter name="deep">{"a":[1,null],"b":"</parameter>"}</parameter>
<parameter name="list">["a"]</parameter>
<parameter name="sure">true</parameter>
<parameter name="code">42</parameter>
<parameter name="gone">null</parameter>
</invoke>
</minimax:tool_call>"""

DEEPSEEK = """\
<calls>
<invoke name="full">
<parameter name="at" string="true">x "y" </par
z é</parameter>
<parameter name="count" string="false">42</parameter>
<parameter name="deep" string="false">{"a":[1,null],"b":"</parameter>"}</parameter>
<parameter name="list" string="false">["a"]</parameter>
<parameter name="sure" string="false">true</parameter>
<parameter name="code" string="true">42</parameter>
<parameter name="gone" string="false">null</parameter>
</invoke>
</calls>"""

in_each_form = pytest.mark.parametrize(
    ("template", "written"),
    [
        (chat_templates.PARAMETERS, QWEN_CODER),
        (chat_templates.ARGUMENT_KEYS, GLM),
        (chat_templates.INVOKE, MINIMAX),
        (chat_templates.TYPED, DEEPSEEK),
    ],
    ids=["tp-01", "tp-02", "tp-02 invoke", "tp-02 typed"],
)


def full_call(arguments: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return {"type": "function_call", "call_id": "c", "name": "full", "arguments": text}


@in_each_form
def test_tp_01_parameters_are_shown_one_by_one_in_the_templates_own_form(
    template: str, written: str
) -> None:
    """TP-01, TP-02."""
    family = ChatFamily(template)
    assert family.template.cuts
    [shown] = family.shown([full_call(ARGUMENTS)])
    assert written in shown
    assert not family.template.cuts or "{" + '"at"' not in shown


@in_each_form
def test_tp_01_parameters_are_read_back_with_the_types_of_the_schema(
    template: str, written: str
) -> None:
    """TP-01, TP-02."""
    [(name, arguments)] = ChatFamily(template).heard(written, tools=[FULL])
    assert name == "full"
    assert json.loads(arguments) == ARGUMENTS
    again = ChatFamily(template).heard(f"Well.\n{written}", tools=[FULL])
    assert again == [("text", "Well.\n"), ("full", arguments)]


@pytest.mark.parametrize(
    ("template", "calls"),
    [
        (
            chat_templates.LIST,
            '<tool_calls>[{"name": "look", "arguments": {"at":"x"}, "id": "aB3dE6gH9"}, '
            '{"name": "shell", "arguments": {"input": "echo \\"a\\""}, "id": "000000000"}]'
            "</tool_calls>",
        ),
        (
            chat_templates.FUNCTIONARY,
            '<function=look>{"at":"x"}</function>'
            '<function=shell>{"input": "echo \\"a\\""}</function>',
        ),
        (
            chat_templates.NUMBERED,
            '<|calls|>functions.look:0<|args|>{"at":"x"}'
            'functions.shell:1<|args|>{"input": "echo \\"a\\""}<|over|>',
        ),
        (
            chat_templates.PARAMETERS,
            "<tool_call>\n<function=look>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>\n"
            '<tool_call>\n<function=shell>\n<parameter=input>\necho "a"\n</parameter>\n'
            "</function>\n</tool_call>",
        ),
    ],
    ids=["list", "functionary", "numbered", "parameters"],
)
def test_tp_02_calls_are_read_in_each_form_and_custom_ones_too(template: str, calls: str) -> None:
    """TP-02."""
    family = ChatFamily(template)
    assert family.heard(calls) == [("look", '{"at":"x"}'), ("shell", 'echo "a"')]
    assert [kind for kind, _ in family.heard(f"Well, {calls}")] == ["text", "look", "shell"]
    assert family.heard(calls, required=True) == family.heard(calls)


@pytest.mark.parametrize("template", [chat_templates.UNKNOWN, chat_templates.SILENT])
def test_tp_02_a_form_in_which_no_call_is_visible_is_no_other_familys(template: str) -> None:
    """TP-02."""
    syntax = syntax_of(template)
    assert (syntax.name, syntax.call, syntax.native) == (PLAIN.name, PLAIN.call, False)


def test_tp_01_white_space_before_calls_is_no_text() -> None:
    """TP-01."""
    family = ChatFamily(chat_templates.ARGUMENT_KEYS)
    assert family.heard(f"\n{GLM}", tools=[FULL])[0][0] == "full"
    assert family.heard(" \n ", tools=[FULL]) == [("text", " \n ")]


def test_tp_01_arguments_stream_as_they_come() -> None:
    """TP-01."""
    pieces = ChatFamily(chat_templates.PARAMETERS).pieces(QWEN_CODER, tools=[FULL])
    assert "".join(pieces) == json.dumps(ARGUMENTS, ensure_ascii=False, separators=(",", ":"))
    assert len(pieces) > len("x y z é") + len(ARGUMENTS)


@in_each_form
def test_tp_01_the_grammar_admits_parameters_alone_and_behind_text(
    template: str, written: str
) -> None:
    """TP-01, TP-02: though a tag that is no special token begins as text may."""
    tools = prompt(tools=[{**FULL, "parameters": {**FULL["parameters"], "required": ["at"]}}])
    grammar = Grammar(ChatFamily(template).template.speech, tools.settings)
    assert grammar.admits(written)
    assert grammar.admits(f"Well <to, < {written}")
    assert grammar.admits("Well <to")
    assert not grammar.admits(written.replace("count", "counts"))
    assert not grammar.admits(written.replace("42", "4.2", 1))
    assert not grammar.admits(written + "!")


def test_a_thought_can_be_closed_and_a_call_follow_text_in_each_form() -> None:
    sources = [chat_templates.HERMES, chat_templates.LIST, chat_templates.FUNCTIONARY]
    for source in sources:
        family = ChatFamily(source)
        speech = replace(
            family.template.speech, syntax=replace(family.template.speech.syntax, thought=THOUGHT)
        )
        grammar = Grammar(speech, prompt(tools=TOOLS).settings)
        syntax = speech.syntax
        head, tail = syntax.frame("look")
        tail = tail.replace(LETTER, "a")
        call = f'{syntax.opens}{head}{{"at":"x"}}{tail}{syntax.closes}'
        for text in (
            call,
            f"Well <to {call}",
            f"<think>a </thin b</think>\n{call}",
            "<think>a</think>Hi",
        ):
            assert grammar.admits(text), text


def test_a_name_that_is_no_parameter_is_an_error() -> None:
    wrong = QWEN_CODER.replace("parameter=count", "parameter=counts")
    with pytest.raises(EngineError, match="cannot follow the schema"):
        ChatFamily(chat_templates.PARAMETERS).heard(wrong, tools=[FULL])


@pytest.mark.parametrize("content", ['""', "None"])
@pytest.mark.parametrize("taken", ["mapping", "string"])
def test_calls_are_seen_whatever_a_template_takes(content: str, taken: str) -> None:
    """TP-01: arguments as an object or as text, content empty or None."""
    check = (
        "{%- for m in messages if m.tool_calls -%}"
        f"{{%- if m.content != {content.replace('None', 'none')} "
        f"or m.tool_calls[0].function.arguments is not {taken} %}}"
        "{{ raise_exception('not so') }}{% endif -%}{%- endfor -%}"
    )
    template = chat_templates.FUNCTIONARY.replace("{%- for message", check + "{%- for message", 1)
    if taken == "string":
        template = template.replace("arguments | tojson", "arguments")
    syntax = syntax_of(template)
    assert syntax.call == "<function=$NAME>$VALUE</function>"
    assert syntax.arguments == ("dict" if taken == "mapping" else "str")
    assert syntax.empty == ("" if content == '""' else None)


# Hermes.

HERMES = ChatFamily(chat_templates.HERMES)

HERMES_LOOK = '<tool_call>\n{"name": "look", "arguments": {"at":"x"}}\n</tool_call>'
HERMES_SHELL = (
    '<tool_call>\n{"name": "shell", "arguments": {"input": "echo \\"a\\""}}\n</tool_call>'
)


def test_hermes_calls_are_shown_between_tags_in_one_message() -> None:
    assert HERMES.shown(CALLS) == [
        f"<|im_start|>assistant\n{HERMES_LOOK}\n{HERMES_SHELL}<|im_end|>\n"
    ]


def test_hermes_calls_are_read_from_the_form_that_they_are_shown_in() -> None:
    assert HERMES.heard(f"{HERMES_LOOK}\n{HERMES_SHELL}") == [
        ("look", '{"at":"x"}'),
        ("shell", 'echo "a"'),
    ]


def test_hermes_text_may_come_before_a_call_and_is_text_without_one() -> None:
    assert HERMES.heard(f"Well, {HERMES_LOOK}") == [("text", "Well, "), ("look", '{"at":"x"}')]
    assert HERMES.heard("Well, <tool>") == [("text", "Well, <tool>")]


def test_hermes_outputs_that_follow_each_other_are_shown_in_one_message_of_the_user() -> None:
    first = '<tool_response>\na "b"\n</tool_response>'
    second = "<tool_response>\nc\n</tool_response>"
    assert HERMES.shown(OUTPUTS, after=CALLS) == [
        f"<|im_start|>user\n{first}\n{second}<|im_end|>\n"
    ]


# Llama3.

LLAMA3 = ChatFamily(
    chat_templates.LLAMA3,
    special=["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"],
)

LLAMA3_LOOK = '{"name": "look", "parameters": {"at":"x"}}'
LLAMA3_SHELL = '{"name": "shell", "parameters": {"input": "echo \\"a\\""}}'


def test_llama3_calls_are_shown_as_json_with_parameters() -> None:
    head = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert LLAMA3.shown(CALLS) == [f"{head}{LLAMA3_LOOK}; {LLAMA3_SHELL}<|eot_id|>"]


def test_llama3_calls_are_read_from_the_form_that_they_are_shown_in() -> None:
    assert LLAMA3.heard(f"{LLAMA3_LOOK}; {LLAMA3_SHELL}") == [
        ("look", '{"at":"x"}'),
        ("shell", 'echo "a"'),
    ]


def test_llama3_the_python_tag_before_a_call_is_passed_over() -> None:
    assert LLAMA3.heard(f"<|python_tag|>{LLAMA3_LOOK}") == [("look", '{"at":"x"}')]


def test_llama3_an_answer_that_begins_otherwise_is_text_to_its_end() -> None:
    assert LLAMA3.heard(f"So: {LLAMA3_LOOK}") == [("text", f"So: {LLAMA3_LOOK}")]


def test_llama3_each_output_is_shown_as_a_message_of_ipython() -> None:
    head = "<|start_header_id|>ipython<|end_header_id|>\n\n"
    assert LLAMA3.shown(OUTPUTS, after=CALLS) == [f'{head}a "b"<|eot_id|>', f"{head}c<|eot_id|>"]


# Mistral.

SPECIAL = ["[INST]", "[/INST]", "</s>", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
OLDER = ChatFamily(chat_templates.MISTRAL, special=SPECIAL)
LATER = ChatFamily(chat_templates.MISTRAL_ARGS, special=[*SPECIAL, "[ARGS]"])

LIST = (
    '[TOOL_CALLS][{"name": "look", "arguments": {"at":"x"}}, '
    '{"name": "shell", "arguments": {"input": "echo \\"a\\""}}]'
)
ROW = '[TOOL_CALLS]look[ARGS]{"at":"x"}[TOOL_CALLS]shell[ARGS]{"input": "echo \\"a\\""}'

in_each_form = pytest.mark.parametrize(
    ("family", "calls"), [(OLDER, LIST), (LATER, ROW)], ids=["a list", "each by itself"]
)


@in_each_form
def test_mistral_calls_are_shown_behind_their_tag(family: ChatFamily, calls: str) -> None:
    assert family.shown(CALLS) == [f"{calls}</s>"]


@in_each_form
def test_mistral_calls_are_read_from_the_form_that_they_are_shown_in(
    family: ChatFamily, calls: str
) -> None:
    assert family.heard(calls) == [("look", '{"at":"x"}'), ("shell", 'echo "a"')]


@in_each_form
def test_mistral_text_may_come_before_calls(family: ChatFamily, calls: str) -> None:
    assert [kind for kind, _ in family.heard(f"Well, {calls}")] == ["text", "look", "shell"]


def test_mistral_an_output_is_shown_as_json_in_the_older_form_and_as_text_in_the_later() -> None:
    assert OLDER.shown(OUTPUTS, after=CALLS) == [
        '[TOOL_RESULTS]{"content": "a \\"b\\""}[/TOOL_RESULTS]',
        '[TOOL_RESULTS]{"content": "c"}[/TOOL_RESULTS]',
    ]
    assert LATER.shown(OUTPUTS, after=CALLS) == [
        '[TOOL_RESULTS]a "b"[/TOOL_RESULTS]',
        "[TOOL_RESULTS]c[/TOOL_RESULTS]",
    ]
