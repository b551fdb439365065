"""Chunks and events that are not of the usual form, brought to it as far as they say something.

Only what could not be read comes here, so that an upstream that keeps to the form pays nothing.
That is a form that some server has of its own, and text that is JSON to many and not to us: NaN
and Infinity, numbers beyond a double, and half a character. A server that cuts its model's text
into tokens may cut an emoji into two chunks, each with half a surrogate pair (RFC 8259 8.2): such
a half waits for the other one, which comes with the next piece of the same text.
"""

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec import Raw

from tieline_server.engines.upstream.stated import readable

_anything: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode

_DIGITS: Final = 19
"""Of a whole number that 64 bits hold; a longer one is read as a double."""

_CHAT: Final = ("reasoning_content", "reasoning", "content", "refusal")
"""The members of a delta that are text."""

_ALONE: Final = "\ufffd"
"""What half a character comes to."""

Key = tuple[str, Any]
"""Which text it is that a piece goes on with."""

Place = tuple[Key, dict[str, Any], str]
"""That, the object that the piece is in, and its name there."""


class Mender:
    """What the chunks or events of one answer come to."""

    __slots__ = ("halves",)

    def __init__(self) -> None:
        self.halves: dict[Key, str] = {}
        """Halves of characters that wait for the other one: what comes next is to be mended."""

    def chunk(self, data: bytes) -> bytes:
        """A chunk of a completion. Raises as its decoder where it is no chunk at all."""
        chunk = lenient(data)
        if not isinstance(chunk, dict):
            raise msgspec.ValidationError("no object")
        if "usage" in chunk:
            chunk["usage"] = readable(chunk["usage"])
        choices = chunk.get("choices")
        if isinstance(choices, list):
            mine = [choice for choice in choices if isinstance(choice, dict)]
            for choice in mine:
                _mend_choice(choice)
            first = [choice for choice in mine if choice.get("index", 0) == 0]
            places = [place for choice in first for place in _in_choice(choice)]
            ends = any(choice.get("finish_reason") is not None for choice in first)
            alone = self._join(places, says=ends or bool(places), ends=ends)
            chunk["choices"] = [*map(_choice_of, alone), *choices]
        return _encode(_sound(chunk))

    def rest(self) -> bytes:
        """The answer is over: a chunk with what still waits."""
        alone, self.halves = [*self.halves], {}
        return _encode({"choices": [*map(_choice_of, alone)]})

    def event(self, data: bytes) -> list[bytes]:
        """An event of a response, behind what it ends. Raises where it is no event at all."""
        event = lenient(data)
        if not isinstance(event, dict):
            raise msgspec.ValidationError("no object")
        kind = str(event.get("type", ""))
        places: list[Place] = []
        if kind.endswith(".delta") and isinstance(event.get("delta"), str):
            places = [((kind, event.get("item_id")), event, "delta")]
        alone = self._join(places, says=kind != "keepalive", ends=False)
        before = ({"type": name, "item_id": id, "delta": _ALONE} for name, id in alone)
        return [_encode(_sound(each)) for each in (*before, event)]

    def _join(self, places: list[Place], *, says: bool, ends: bool) -> list[Key]:
        """Joins these pieces to what waited for them; which halves stay alone.

        None waits past what ``says`` anything, nor begins to where the answer ``ends``.
        """
        if not says:
            return []
        waited, self.halves = self.halves, {}
        for key, holder, name in places:
            text = waited.pop(key, "") + holder[name]
            if not ends and "\ud800" <= text[-1:] <= "\udbff":
                self.halves[key] = text[-1]
                text = text[:-1]
            holder[name] = text
        return [*waited]


def lenient(data: bytes | Raw) -> Any:
    """JSON as many write it: with NaN and Infinity, with numbers and text that are beyond it.

    Raises :class:`msgspec.MsgspecError` for what is none, :class:`RecursionError` for what nests
    too deep. What of it is no value to us is still in it (:func:`_sound`).
    """
    try:
        return json.loads(bytes(data).decode(errors="replace"), parse_int=_whole)
    except ValueError:
        raise msgspec.DecodeError("no JSON") from None


def sound(raw: bytes | Raw) -> bytes:
    """Such JSON as JSON that everybody reads. Raises as :func:`lenient`."""
    return _encode(_sound(lenient(raw)))


def is_json(text: str) -> bool:
    """Whether a model's arguments are JSON: numbers of any size, and any escapes (RFC 8259)."""
    try:
        _anything.decode(text)
    except RecursionError:
        return False
    except msgspec.MsgspecError:
        try:
            json.loads(text, parse_int=_whole, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _sound(value: Any) -> Any:
    """Without what is no JSON: a number that is none is null, half a character is U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, list):
        return [*map(_sound, value)]
    if isinstance(value, dict):
        return {_sound(name): _sound(each) for name, each in value.items()}
    return value


def written(arguments: object) -> object:
    """Arguments as text, where an upstream sends the object itself."""
    return _encode(_sound(arguments)).decode() if isinstance(arguments, dict) else arguments


def _in_choice(choice: dict[str, Any]) -> Iterator[Place]:
    """Where a choice of a chunk has pieces of text."""
    if isinstance(choice.get("text"), str):
        yield ("text", None), choice, "text"
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return
    for name in _CHAT:
        if isinstance(delta.get(name), str) and delta[name]:
            yield (name, None), delta, name
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            yield ("arguments", call.get("index")), function, "arguments"


def _choice_of(key: Key) -> dict[str, Any]:
    """A choice that says of this text that half a character was all."""
    name, index = key
    if name == "text":
        return {"text": _ALONE}
    if name == "arguments":
        return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": _ALONE}}]}}
    return {"delta": {name: _ALONE}}


def _mend_choice(choice: dict[str, Any]) -> None:
    if choice.get("index", 0) is None:
        del choice["index"]
    if not isinstance(choice.get("logprobs"), dict):
        choice.pop("logprobs", None)
    # Who does not stream has it all in a message.
    delta = choice.setdefault("delta", choice.get("message"))
    if isinstance(delta, dict):
        _mend_delta(delta)


def _mend_delta(delta: dict[str, Any]) -> None:
    content = delta.get("content")
    if isinstance(content, list):
        # Parts, as Mistral's reasoning models have them.
        delta["content"] = _text_of(content, "text")
        thought = _text_of(content, "thinking")
        if thought:
            delta["reasoning_content"] = thought
    for name in ("reasoning", "reasoning_content"):
        if not isinstance(delta.get(name), str):
            delta.pop(name, None)
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            _mend_call(call)


def _mend_call(call: dict[str, Any]) -> None:
    if isinstance(call.get("id"), int):
        call["id"] = str(call["id"])
    function = call.get("function")
    if isinstance(function, dict) and "arguments" in function:
        function["arguments"] = written(function["arguments"])


def _text_of(parts: list[Any], member: str) -> str:
    """The text of these parts; a thought is text, or parts of it."""
    found = [part.get(member) for part in parts if isinstance(part, dict)]
    texts = (_text_of(each, "text") if isinstance(each, list) else each for each in found)
    return "".join(text for text in texts if isinstance(text, str))
