"""Chunks that are not of the usual form, brought to it as far as they say something.

Only what could not be read comes here, so that an upstream that keeps to the form pays nothing.
"""

from typing import Any, Final

import msgspec

from tieline_server.engines.upstream.stated import readable

_anything: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode


def mended(data: bytes) -> bytes:
    """The chunk in the usual form. Raises as its decoder where it is no chunk at all."""
    chunk = _anything.decode(data)
    if not isinstance(chunk, dict):
        raise msgspec.ValidationError("no object")
    if "usage" in chunk:
        chunk["usage"] = readable(chunk["usage"])
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            _mend_choice(choice)
    return _encode(chunk)


def written(arguments: object) -> object:
    """Arguments as text, where somebody sends the object itself."""
    return _encode(arguments).decode() if isinstance(arguments, dict) else arguments


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
