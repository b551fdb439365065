"""The text of messages and tool outputs. The model reads text only: anything else is refused."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from tieline_server.engines.base import EngineError


class ContentPart(Struct, frozen=True):
    """The members of a content part that decide whether it can be read."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


_part: Final = msgspec.json.Decoder(ContentPart)


def text_of(content: str | list[Raw]) -> str:
    """The text of some content; raises :class:`EngineError` for a part that is none."""
    if isinstance(content, str):
        return content
    return "".join(_text_of_part(_part.decode(part)) for part in content)


def _text_of_part(part: ContentPart) -> str:
    text = part.text if part.text is not None else part.refusal
    if text is None:
        kind = (part.type or "")[:64]
        raise EngineError(
            "unsupported_value",
            f"This model reads text only: content of type '{kind}' is not supported.",
            param="input",
        )
    return text
