"""A model of some family, as far as it is text: what it is shown, and what is read of it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from tests.support.engine_contract import link, prompt
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.chat_template import ChatTemplate
from tieline_server.engines.chat_format.constrain import constraint_of
from tieline_server.engines.chat_format.sampled_text import Piece
from tieline_server.models.packaged import find

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
    {"type": "custom", "name": "shell"},
]

CALLS: list[dict[str, Any]] = [
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"at":"x"}'},
    {"type": "custom_tool_call", "call_id": "d", "name": "shell", "input": 'echo "a"'},
]

OUTPUTS: list[dict[str, Any]] = [
    {"type": "function_call_output", "call_id": "c", "output": 'a "b"'},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "c"},
]


@cache
def _packaged() -> gguf_metadata.Metadata:
    return gguf_metadata.read(find())


class ChatFamily:
    """The packaged model's vocabulary with the chat template of a family.

    ``special`` are further special tokens; ``bos`` and ``eos`` those of them that begin and end
    everything, unless it is the packaged model's.
    """

    def __init__(
        self, template: str, *, special: Sequence[str] = (), bos: str = "", eos: str = ""
    ) -> None:
        metadata = _packaged()
        more = {token: 90_000 + at for at, token in enumerate(special)}
        told = replace(metadata, template=template, special={**metadata.special, **more})
        self.template = ChatTemplate(
            replace(told, bos=bos or metadata.bos, eos=eos or metadata.eos)
        )

    def shown(self, items: Sequence[dict[str, Any]], *, after: Any = None) -> list[str]:
        """The messages, as texts, by which the model is shown some items."""
        tip = link(items, None if after is None else link(after))
        return ["".join(parts) for parts in self.template.parts_of(tip)]

    def heard(
        self, text: str, *, required: bool = False, tools: Sequence[dict[str, Any]] = TOOLS
    ) -> list[tuple[str, str]]:
        """What is read of an answer that comes letter by letter: its items, each with its text."""
        items: list[tuple[str, str]] = []
        for delta in self._deltas(text, required=required, tools=tools):
            match delta:
                case CallStart(name=name):
                    items.append((name, ""))
                case TextDelta() | ReasoningDelta() | CallDelta():
                    kind = {TextDelta: "text", ReasoningDelta: "thought"}.get(type(delta))
                    if kind is not None and (not items or items[-1][0] != kind):
                        items.append((kind, ""))
                    items[-1] = (items[-1][0], items[-1][1] + delta.text)
                case ItemEnd():
                    pass
                case other:
                    raise AssertionError(other)
        return items

    def pieces(self, text: str, *, tools: Sequence[dict[str, Any]] = TOOLS) -> list[str]:
        """The deltas of the calls in an answer that comes letter by letter."""
        deltas = self._deltas(text, required=True, tools=tools)
        return [delta.text for delta in deltas if isinstance(delta, CallDelta)]

    def _deltas(self, text: str, *, required: bool, tools: Sequence[dict[str, Any]]) -> list[Delta]:
        choice = "required" if required else "auto"
        settings = prompt(tools=[*tools], tool_choice=choice).settings
        speech = self.template.speech
        reader = constraint_of(settings.tools.offered, settings, speech).reader()
        deltas = [delta for letter in text for delta in reader.feed(Piece(letter, 1))]
        rest, reason = reader.end("stop")
        assert reason == "stop"
        return [*deltas, *rest]
