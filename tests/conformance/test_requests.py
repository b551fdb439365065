"""What clients send beside what matters: taken, echoed where it has an echo, else ignored."""

from typing import Any

import pytest

from tests.conformance.server import ECHO_CONTEXT, run, serve
from tests.conformance.wire import Json, Wire, ask, context, response, said
from tieline_server.core.create.limits import Limits

ECHOED: Json = {
    "instructions": "be terse",
    "max_output_tokens": 500,
    "max_tool_calls": 3,
    "metadata": {"k": "v"},
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "prompt_cache_key": "key",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "someone",
    "service_tier": "default",
    "temperature": 0.25,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": "none",
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
}
"""What a response says again, as it was said (wire.md 6.1)."""

IGNORED: Json = {
    "stream_options": {"include_obfuscation": False},
    "background": None,
    "conversation": None,
    "prompt": None,
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "client_metadata": {"session_id": "s", "x-codex-window-id": "w:1"},
    "prompt_cache_options": {"mode": "auto", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "user": "someone",
    "moderation": {"model": "m", "policy": "p"},
    "access_programs": {"cyber": True},
    "image": {"context_compression": True},
    "background_options": {"completion_window": "24h"},
    "an_unknown_member": {"a": [1, None]},
}
WITHOUT_EFFECT: Json = {
    "context_management": [{"type": "compaction", "compact_threshold": 100_000}],
}
"""What a short history does not feel, where it is offered."""

"""What has no meaning here, or none yet (wire.md 2.1.3); no response has it."""

NULLS = (
    "background",
    "include",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
)
"""Members whose null is their absence."""


async def test_what_a_create_sets_is_echoed_by_the_response_and_the_rest_is_ignored(
    wire: Wire,
) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        settings = {**ECHOED, **IGNORED}
        if "context_management" in wire.offers:
            settings |= WITHOUT_EFFECT
        events = await ask(peer, input="hi", store=True, **settings)
        stored = await peer.retrieve(response(events)["id"])

        for event in events:
            if "response" in event:
                assert {name: event["response"][name] for name in ECHOED} == ECHOED
        assert {name: stored[name] for name in ECHOED} == ECHOED
        assert not {"user", "an_unknown_member", "client_metadata"} & stored.keys()


SCHEMA: Json = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
FUNCTION: Json = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": SCHEMA,
    "strict": True,
}
GRAMMAR: Json = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
JSON_SCHEMA: Json = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}

SETTINGS: list[Json] = [
    {"tools": [FUNCTION]},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
    {
        "tools": [FUNCTION],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "f"}],
        },
    },
    {"text": {"format": JSON_SCHEMA}},
    {"text": {"format": {"type": "json_object"}}},
]
OPENAI_SETTINGS: list[Json] = [
    {"tools": [{"type": "custom", "name": "c", "description": "d", "format": {"type": "text"}}]},
    {"tools": [{"type": "custom", "name": "c", "format": GRAMMAR}]},
    {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}]},
    {"tools": [{"type": "web_search"}, {"type": "local_shell"}, {"type": "apply_patch"}]},
    {
        "tools": [FUNCTION, {"type": "custom", "name": "c"}],
        "tool_choice": {"type": "custom", "name": "c"},
    },
]


async def _echoes(wire: Wire, settings: Json) -> None:
    """Whatever has been set is a response that clients can read, and says what was set."""
    async with serve() as served, wire(served) as peer:
        events = await ask(peer, input="hi", **settings)
        assert response(events)["status"] == "completed"
        for name, value in settings.items():
            assert response(events)[name] == value


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tools_and_formats_are_echoed_as_types_that_clients_know(
    wire: Wire, settings: Json
) -> None:
    run(_echoes(wire, settings))


@pytest.mark.needs("custom_tools")
@pytest.mark.parametrize("settings", OPENAI_SETTINGS, ids=str)
def test_openais_other_tools_are_echoed_as_types_that_clients_know(
    wire: Wire, settings: Json
) -> None:
    run(_echoes(wire, settings))


async def test_null_is_the_same_as_nothing(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        bare = response(await ask(peer, input="hi", store=True))
        nulls: dict[str, Any] = dict.fromkeys(NULLS)
        null = response(await ask(peer, input="hi", **nulls))

        own = {"id", "created_at", "completed_at", "output", "usage"}
        assert {k: v for k, v in null.items() if k not in own} == {
            k: v for k, v in bare.items() if k not in own
        }


@pytest.mark.needs("connection")
@pytest.mark.parametrize("stream", [True, False, None])
async def test_a_line_streams_whatever_a_create_says_of_it(wire: Wire, stream: bool | None) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        events = await ask(peer, input="hi", stream=stream)
        assert len(events) > 5
        assert events[-1]["type"] == "response.completed"


@pytest.mark.needs("warm_up")
async def test_a_warm_up_may_be_empty_and_so_may_what_follows_it(wire: Wire) -> None:
    """As Codex does: state first, and an empty delta where nothing is new."""

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        warm = response(await ask(peer, generate=False, input=[]))
        first = await ask(peer, generate=False, previous_response_id=warm["id"], input="one")
        events = await ask(peer, previous_response_id=response(first)["id"], input=[])

        assert said(context(events)) == [("user", "one")]


@pytest.mark.needs("messages", "lanes")
async def test_an_acknowledgement_of_a_response_is_taken_in_silence(wire: Wire) -> None:
    """``response.processed``, which Codex sent for a time (wire.md 2)."""

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        done = response(await ask(peer, input="one"))["id"]
        await peer.send({"type": "response.processed", "response_id": done})
        events = await ask(peer, previous_response_id=done, input="two")

        assert events[0]["type"] == "response.created"
        assert ("user", "one") in said(context(events))


async def test_an_image_and_a_file_are_no_reason_to_refuse_a_message(wire: Wire) -> None:
    """A model that reads text only must still answer (wire.md 8.6)."""
    parts = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
    ]

    async with serve() as served, wire(served) as peer:
        events = await ask(peer, input=[{"role": "user", "content": parts}])
        assert response(events)["status"] == "completed"


async def test_lenient_items_of_other_servers_are_input_too(wire: Wire) -> None:
    """An answer without annotations, ids or statuses; a tool without ``strict`` (wire.md 2.1.5)."""

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        events = await ask(
            peer,
            input=[
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "three"},
                {"role": "user", "content": [{"type": "input_text", "text": "four"}]},
            ],
            tools=[{"type": "function", "name": "f"}],
        )

        assert [text for _, text in said(context(events))] == [
            "one",
            "two",
            "{}",
            "three",
            "four",
        ]
        (tool,) = response(events)["tools"]
        absent = {"description": None, "parameters": None}
        assert {name: tool[name] for name in absent} == absent
        assert "strict" in tool


UNHEEDED: list[tuple[Json, str]] = [
    ({"tempratur": 1}, "tempratur"),
    ({"text": {"formatt": {}}}, "text.formatt"),
    ({"tools": [{**FUNCTION, "parametres": {}}]}, "tools[0].parametres"),
]


@pytest.mark.parametrize(("members", "param"), UNHEEDED)
async def test_in_07_what_nothing_acts_on_is_taken_or_refused_by_name_as_the_setting_says(
    wire: Wire, members: Json, param: str
) -> None:
    async with serve(limits=Limits(ignores=False)) as served, wire(served) as peer:
        refused = (await ask(peer, input="hi", **members))[-1]
        assert (refused["type"], refused["status"]) == ("error", 400)
        assert refused["error"]["code"] == "unknown_parameter"
        assert refused["error"]["param"] == param
        assert (await ask(peer, input="hi"))[-1]["type"] == "response.completed"
    async with serve() as served, wire(served) as peer:
        assert (await ask(peer, input="hi", **members))[-1]["type"] == "response.completed"


@pytest.mark.needs("custom_tools")
async def test_in_07_so_is_a_tool_that_nothing_runs_before_any_upstream(wire: Wire) -> None:
    tools = [FUNCTION, {"type": "web_search"}]
    async with serve(limits=Limits(ignores=False)) as served, wire(served) as peer:
        last = (await ask(peer, input="hi", tools=tools))[-1]
        assert (last["type"], last["status"]) == ("error", 400)
        assert last["error"]["code"] == "unsupported_tool"
        assert last["error"]["param"] == "tools[1].type"
    async with serve() as served, wire(served) as peer:
        done = (await ask(peer, input="hi", tools=tools))[-1]
        assert done["type"] == "response.completed"
