"""What the modes read of items, whatever else stands in them."""

from typing import Final

import msgspec
from msgspec import Raw, Struct


class Message(Struct, frozen=True):
    """A message: who speaks, and what."""

    role: str
    content: Raw = Raw(b'""')
    phase: str | None = None


class Call(Struct, frozen=True):
    """A call of a function or of a custom tool."""

    call_id: str
    name: str
    arguments: Raw = Raw(b'""')
    input: str = ""
    namespace: str | None = None


class Output(Struct, frozen=True):
    """The answer to a call."""

    call_id: str
    output: Raw


MESSAGE: Final = msgspec.json.Decoder(Message)
CALL: Final = msgspec.json.Decoder(Call)
OUTPUT: Final = msgspec.json.Decoder(Output)
