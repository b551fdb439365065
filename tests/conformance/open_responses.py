"""The closed union of the open-responses profile as a table of our own (wire.md 3.1, 6 and 8).

A schema is a type, a set of values that are allowed, or a shape made of these. Members beyond
the required ones may be there: that specification lets readers strip them. An event's type may
not be another.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any, Final

Json = dict[str, Any]
Schema = Callable[[Any, str], None]
"""Raises :class:`AssertionError` for a value that does not fit; told where it was found."""


def one_of(*values: Any) -> Schema:
    """One of these values."""

    def check(value: Any, at: str) -> None:
        assert value in values, f"{at}: {value!r} is none of {values}"

    return check


def _typed(name: str, *kinds: type) -> Schema:
    def check(value: Any, at: str) -> None:
        # In Python a bool is an int; in JSON it is none.
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        assert fits, f"{at}: {value!r} is no {name}"

    return check


STRING: Final = _typed("string", str)
INTEGER: Final = _typed("integer", int)
NUMBER: Final = _typed("number", int, float)
BOOLEAN: Final = _typed("boolean", bool)
OBJECT: Final = _typed("object", dict)


def nullable(schema: Schema) -> Schema:
    """This, or null."""

    def check(value: Any, at: str) -> None:
        if value is not None:
            schema(value, at)

    return check


def either(first: Schema, second: Schema) -> Schema:
    """A string of the first kind, or anything else of the second."""

    def check(value: Any, at: str) -> None:
        (first if isinstance(value, str) else second)(value, at)

    return check


def list_of(schema: Schema) -> Schema:
    """A list of these."""

    def check(value: Any, at: str) -> None:
        assert isinstance(value, list), f"{at}: {value!r} is no list"
        for index, each in enumerate(value):
            schema(each, f"{at}[{index}]")

    return check


def members(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """An object with all of the required members; others may be there."""

    def check(value: Any, at: str) -> None:
        assert isinstance(value, dict), f"{at}: {value!r} is no object"
        missing = required.keys() - value.keys()
        assert not missing, f"{at} lacks {sorted(missing)}"
        for name, schema in {**required, **optional}.items():
            if name in value:
                schema(value[name], f"{at}.{name}")

    return check


def tagged(kinds: Mapping[str, Schema]) -> Schema:
    """An object whose ``type`` says which of these it is; no other type may be there."""

    def check(value: Any, at: str) -> None:
        assert isinstance(value, dict), f"{at}: {value!r} is no object"
        kind = value.get("type", "")
        assert kind in kinds, f"{at}.type: {kind!r} is not in the union"
        kinds[kind](value, f"{at}({kind})")

    return check


ITEM_STATUS: Final = one_of("in_progress", "completed", "incomplete")

PART: Final = tagged(
    {
        "output_text": members({"text": STRING, "annotations": list_of(OBJECT)}),
        "refusal": members({"refusal": STRING}),
        "reasoning_text": members({"text": STRING}),
        "summary_text": members({"text": STRING}),
    }
)

ITEM: Final = tagged(
    {
        "message": members(
            {
                "id": STRING,
                "status": ITEM_STATUS,
                "role": one_of("assistant"),
                "content": list_of(PART),
            }
        ),
        "function_call": members(
            {
                "id": STRING,
                "status": ITEM_STATUS,
                "call_id": STRING,
                "name": STRING,
                "arguments": STRING,
            }
        ),
        "reasoning": members(
            {"id": STRING, "summary": list_of(PART)}, content=list_of(PART), status=ITEM_STATUS
        ),
        "compaction": members({"id": STRING, "encrypted_content": STRING}),
    }
)

USAGE: Final = members(
    {
        "input_tokens": INTEGER,
        "input_tokens_details": members({"cached_tokens": INTEGER}),
        "output_tokens": INTEGER,
        "output_tokens_details": members({"reasoning_tokens": INTEGER}),
        "total_tokens": INTEGER,
    }
)

TOOL: Final = members(
    {
        "type": one_of("function"),
        "name": STRING,
        "description": nullable(STRING),
        "parameters": nullable(OBJECT),
        "strict": nullable(BOOLEAN),
    }
)

MEMBERS: Final[Mapping[str, Schema]] = {
    "id": STRING,
    "object": one_of("response"),
    "created_at": INTEGER,
    "completed_at": nullable(INTEGER),
    "status": one_of("completed", "failed", "in_progress", "cancelled", "queued", "incomplete"),
    "model": STRING,
    "output": list_of(ITEM),
    "error": nullable(members({"code": STRING, "message": STRING})),
    "incomplete_details": nullable(members({"reason": STRING})),
    "previous_response_id": nullable(STRING),
    "instructions": nullable(STRING),
    "tools": list_of(TOOL),
    "tool_choice": either(one_of("none", "auto", "required"), members({"type": STRING})),
    "parallel_tool_calls": BOOLEAN,
    "truncation": one_of("auto", "disabled"),
    "text": members({"format": members({"type": STRING})}),
    "temperature": NUMBER,
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": INTEGER,
    "reasoning": nullable(members({"effort": nullable(STRING), "summary": nullable(STRING)})),
    "usage": nullable(USAGE),
    "max_output_tokens": nullable(INTEGER),
    "max_tool_calls": nullable(INTEGER),
    "store": BOOLEAN,
    "background": BOOLEAN,
    "service_tier": STRING,
    "metadata": nullable(OBJECT),
    "safety_identifier": nullable(STRING),
    "prompt_cache_key": nullable(STRING),
}
"""All 31 members of a response (wire.md 6.1)."""

RESPONSE: Final = members(MEMBERS)

ERROR: Final = members(
    {
        "status": INTEGER,
        "error": members({"code": STRING, "message": STRING}, type=STRING, param=nullable(STRING)),
        "sequence_number": INTEGER,
    }
)

_NUMBER: Final[Mapping[str, Schema]] = {"sequence_number": INTEGER}
_ITEM: Final[Mapping[str, Schema]] = {**_NUMBER, "output_index": INTEGER, "item": ITEM}
_PLACE: Final[Mapping[str, Schema]] = {**_NUMBER, "item_id": STRING, "output_index": INTEGER}
_CONTENT: Final[Mapping[str, Schema]] = {**_PLACE, "content_index": INTEGER}
_SUMMARY: Final[Mapping[str, Schema]] = {**_PLACE, "summary_index": INTEGER}


def _lifecycle(*statuses: str) -> Schema:
    whole = members({**_NUMBER, "response": RESPONSE})

    def check(event: Any, at: str) -> None:
        whole(event, at)
        one_of(*statuses)(event["response"]["status"], f"{at}.response.status")

    return check


EVENTS: Final[Mapping[str, Schema]] = {
    "response.created": _lifecycle("in_progress", "queued"),
    "response.queued": _lifecycle("queued"),
    "response.in_progress": _lifecycle("in_progress"),
    "response.completed": _lifecycle("completed"),
    "response.failed": _lifecycle("failed"),
    # The union has no event of its own for what was cancelled, and the schema has the status.
    "response.incomplete": _lifecycle("incomplete", "cancelled"),
    "response.output_item.added": members(_ITEM),
    "response.output_item.done": members(_ITEM),
    "response.content_part.added": members({**_CONTENT, "part": PART}),
    "response.content_part.done": members({**_CONTENT, "part": PART}),
    "response.output_text.delta": members({**_CONTENT, "delta": STRING}),
    "response.output_text.done": members({**_CONTENT, "text": STRING}),
    "response.output_text.annotation.added": members({**_CONTENT, "annotation_index": INTEGER}),
    "response.refusal.delta": members({**_CONTENT, "delta": STRING}),
    "response.refusal.done": members({**_CONTENT, "refusal": STRING}),
    "response.function_call_arguments.delta": members({**_PLACE, "delta": STRING}),
    "response.function_call_arguments.done": members({**_PLACE, "arguments": STRING}),
    "response.reasoning_summary_part.added": members({**_SUMMARY, "part": PART}),
    "response.reasoning_summary_part.done": members({**_SUMMARY, "part": PART}),
    "response.reasoning_summary_text.delta": members({**_SUMMARY, "delta": STRING}),
    "response.reasoning_summary_text.done": members({**_SUMMARY, "text": STRING}),
    "response.reasoning.delta": members({**_CONTENT, "delta": STRING}),
    "response.reasoning.done": members({**_CONTENT, "text": STRING}),
    "error": ERROR,
}
"""The 24 types of the union, each with what it must have."""

EVENT: Final = tagged(EVENTS)


def check_event(event: Json, _asked: Set[str]) -> None:
    """One event; this profile has no extensions that could be asked for."""
    EVENT(event, "event")


def check_answer(answer: Json, asked: Set[str]) -> None:
    """A whole answer, as the event that would have ended its stream; or an error's envelope."""
    if answer["type"] == "error":
        check_event(answer, asked)
    else:
        check_response(answer["response"], asked)


def check_response(response: Json, _asked: Set[str]) -> None:
    """A response by itself."""
    RESPONSE(response, "response")
