"""From Python values to requests: what callers may pass, and the JSON that it becomes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec
from msgspec import Raw, Struct

from tieline.items import CustomToolCallOutput, FunctionCallOutput, Item, encode
from tieline.requests import MEMBERS, Create

Json: TypeAlias = Mapping[str, Any]
"""A JSON object."""

Input: TypeAlias = str | Sequence[Item | Json | Raw]
"""Text (one user message), or items: mappings, raw JSON, or what :func:`tool_output` makes."""


class TurnSettings(TypedDict, total=False):
    """Settings of one create; all optional, none inherited from an earlier response.

    Names and meanings are those of OpenAI's ``POST /v1/responses``; the last group is ours.
    A member given as :class:`msgspec.Raw` is sent as that JSON, unread.
    """

    instructions: str | None
    parallel_tool_calls: bool | None
    text: Json | Raw | None
    reasoning: Json | Raw | None
    include: Sequence[str] | None
    metadata: Mapping[str, str] | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    top_logprobs: int | None
    truncation: Literal["auto", "disabled"] | None
    store: bool | None
    service_tier: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    user: str | None
    client_metadata: Mapping[str, str] | None
    generate: bool | None
    timeout_ms: int | None
    """The turn's own deadline."""
    resumable: bool | None
    idempotency_key: str | None
    trace_context: Mapping[str, str] | None
    """W3C trace context of this turn: traceparent, tracestate, baggage."""


ToolChoice: TypeAlias = str | Json | Raw
"""auto, none or required; or an object that names a tool or a set of them."""


class Settings(TurnSettings, total=False):
    """:class:`TurnSettings`, and those that an agent decides by itself."""

    tools: Sequence[Json | Raw] | Raw | None
    tool_choice: ToolChoice | None
    append: bool | None
    """One response for the whole rollout: held at tool calls, continued by ``stream.append``."""


def to_create(
    *,
    lane: str | None,
    input: Input | None,
    model: str | None,
    previous_response_id: str | None,
    settings: Settings,
) -> Create:
    """The create that these values describe; raises TypeError for a setting that is none."""
    members = {
        name: _MEMBERS[name](value) if name in _MEMBERS else value
        for name, value in settings.items()
        if value is not None
    }
    if input is not None:
        members["input"] = to_json(input)
    return Create(
        stream_id=lane,
        model=model,
        previous_response_id=previous_response_id,
        **members,  # type: ignore[arg-type]
    )


def to_json(value: object) -> Raw:
    """The JSON of a value: text, items, a mapping; raw JSON stays as it is.

    Raises TypeError for a value that has no JSON.
    """
    if isinstance(value, Raw):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = [Raw(item.raw) if isinstance(item, Item) else item for item in value]
    return Raw(msgspec.json.encode(value, enc_hook=_plain))


def to_items(value: Input) -> list[Raw]:
    """The items of an input, each as its JSON; text is one user message."""
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": value}]
    return [to_json(item) if not isinstance(item, Item) else Raw(item.raw) for item in value]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


_MEMBERS: Final[dict[str, Callable[[Any], object]]] = {
    **{each.name: to_json for each in MEMBERS if each.free_form},
    "include": list,
    "metadata": dict,
    "trace_context": dict,
}
"""Settings that a request keeps in another form than callers give them."""


class Call(Struct, frozen=True, kw_only=True):
    """A tool call that waits for its output."""

    call_id: str
    name: str
    arguments: str
    """JSON text of a function's arguments, or the free text of a custom tool."""
    namespace: str | None = None
    type: str = "function_call"


def tool_output(call: Call, output: str) -> Item:
    """The item that answers a call.

    >>> tool_output(Call(call_id="c1", name="add", arguments="{}"), "3").raw
    b'{"type":"function_call_output","call_id":"c1","output":"3"}'
    """
    kind = CustomToolCallOutput if call.type == "custom_tool_call" else FunctionCallOutput
    return encode(kind(call_id=call.call_id, output=output))
