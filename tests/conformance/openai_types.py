"""What openai-python says an event is, taken at its word.

The library builds its objects without validation, so that a wrong event shows only where a
caller trips over it. Here its own models validate, strictly: a missing member, a wrong type and
a literal outside its closed list are all errors. What it does not know is excepted by name, and
only for a client that has asked for it.
"""

from collections.abc import Mapping, Set
from typing import Any, Final, get_args

import msgspec
from openai.types.responses import Response, ResponsesServerEvent
from pydantic import BaseModel

from tests.conformance.open_responses import MEMBERS

Json = dict[str, Any]


def _by_type() -> Mapping[str, type[BaseModel]]:
    union = get_args(ResponsesServerEvent)[0]
    return {
        name: model
        for model in get_args(union)
        for name in get_args(model.model_fields["type"].annotation)
    }


EVENTS: Final = _by_type()
"""``type`` -> model: the events of a stream, of steering, and the nested error."""

REASONS: Final[Mapping[str, str]] = {
    "superseded": "append",
    "held_timeout": "append",
    "deadline": "timeout_ms",
    "max_tool_calls": "grpc",
    "server_draining": "grpc",
}
"""Reasons of ours for ``incomplete_details`` -> what a client has used that meets them."""

CODES: Final = frozenset(
    {"context_length_exceeded", "server_is_overloaded", "insufficient_quota", "cyber_policy"}
)
"""Codes of ``response.error`` outside the closed list, which Codex acts upon (wire.md 4.2.3)."""


def check_event(event: Json, asked: Set[str]) -> None:
    """One event of a client that has used ``asked``; raises where it is none of OpenAI's."""
    kind = event["type"]
    if "response" in event:
        event = {**event, "response": _known(event["response"], asked)}
    if kind == "response.done" and "append" in asked:
        # The one event that append adds: a snapshot as the terminal events carry it.
        assert isinstance(event["sequence_number"], int)
        check_response(event["response"], asked)
        return
    assert kind in EVENTS, f"no event of OpenAI's: {kind}"
    EVENTS[kind].model_validate_json(msgspec.json.encode(event), strict=True)


def check_answer(answer: Json, asked: Set[str]) -> None:
    """A whole answer, as the event that would have ended its stream; or an error's envelope."""
    if answer["type"] == "error":
        check_event(answer, asked)
    else:
        check_response(answer["response"], asked)


def check_response(response: Json, asked: Set[str]) -> None:
    """A response by itself."""
    known = _known(response, asked)
    Response.model_validate_json(msgspec.json.encode(known), strict=True)


def _known(response: Json, asked: Set[str]) -> Json:
    """The response with what is excepted put into OpenAI's words; all members must be there."""
    missing = MEMBERS - response.keys()
    assert not missing, f"a response without {sorted(missing)}"
    reason = (response["incomplete_details"] or {}).get("reason", "")
    if REASONS.get(reason, "nothing") in asked:
        response = {**response, "incomplete_details": {"reason": "max_output_tokens"}}
    if response["error"] is not None and response["error"]["code"] in CODES:
        response = {**response, "error": {**response["error"], "code": "server_error"}}
    return response
