"""What a guard reads of an item and of the settings: every text in it, as a model would read it."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tieline.items import CALL_KINDS, Item
from tieline_server.core.create.settings import Settings
from tieline_server.guards.base import Piece
from tieline_server.guards.escapes import unescaped

_decode: Final = msgspec.json.Decoder().decode

NAMES: Final = frozenset(
    {"type", "id", "call_id", "role", "status", "detail", "encrypted_content", "file_id"}
)
"""Members that say what something is, not what it says."""

BINARY: Final = frozenset({"file_data", "data", "image_data"})
"""Members that hold bytes in a form of text."""

IMAGES: Final = frozenset({"image_url"})

NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Members of a schema whose own members have names that an author chose."""

RUNS: Final = frozenset({"content", "output"})
"""Members whose parts a model reads without anything between them."""


def piece_of(item: Item) -> Piece:
    """All that an item says."""
    reader = _Reader()
    reader.read(_decode(item.raw))
    return Piece("\n".join(reader.texts), tuple(reader.images))


def is_models_own(item: Item) -> bool:
    """Whether an item is of a kind that models write."""
    if item.type == "message":
        return bool(_decode(item.raw).get("role") == "assistant")
    return item.type == "reasoning" or item.type in CALL_KINDS


def heads_of(settings: Settings) -> Iterator[tuple[str, Piece]]:
    """What comes with each create beside its input: the parameter, and what it says."""
    if settings.instructions:
        yield "instructions", Piece(settings.instructions)
    texts: list[str] = []
    for tool in settings.tools.offered:
        texts += [text for text in (tool.namespace, tool.name, tool.description) if text]
        for raw in (tool.parameters, tool.format):
            if raw is not None:
                texts += _texts_in(raw)
    if texts:
        yield "tools", Piece("\n".join(texts))
    if settings.format.schema is not None:
        name = [settings.format.name] if settings.format.name else []
        yield "text", Piece("\n".join([*name, *_texts_in(settings.format.schema)]))


def _texts_in(raw: bytes) -> list[str]:
    reader = _Reader(schema=True)
    reader.read(_decode(raw))
    return reader.texts


class _Reader:
    """Collects the texts of some JSON in order; of a ``schema`` also how its members are named."""

    def __init__(self, *, schema: bool = False) -> None:
        self._schema = schema
        self.texts: list[str] = []
        self.images: list[str] = []

    def read(self, value: Any, name: str = "") -> None:
        """Reads a value, which is the member ``name`` of something."""
        if isinstance(value, str):
            self._text(value, name)
        elif isinstance(value, dict):
            if self._schema and name in NAMED:
                self.texts += value
            for key, each in value.items():
                self.read(each, "url_of_image" if name in IMAGES and key == "url" else key)
        elif isinstance(value, list):
            if name in RUNS:
                self._run(value)
            for each in value:
                self.read(each, name)

    def _run(self, parts: list[Any]) -> None:
        """Texts of several parts also as one: what is split over them is one text to a model."""
        texts = [text for part in parts if isinstance(part, dict) and (text := _own(part))]
        if len(texts) > 1:
            self.texts.append("".join(texts))

    def _text(self, text: str, name: str) -> None:
        if name in IMAGES or name == "url_of_image":
            self.images.append(text)
        elif text and name not in NAMES and name not in BINARY:
            self.texts.append(text)
            if name == "arguments" and "\\" in text:
                self.texts.append(unescaped(text))


def _own(part: dict[str, Any]) -> str:
    text = part.get("text") or part.get("refusal")
    return text if isinstance(text, str) else ""
