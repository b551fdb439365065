"""What holds of every kind of field, of those of one value as of those of a message."""

from typing import Any

from tieline.codecs.proto.fields import Kind, dumps


def says(kind: Kind, make: Any, slot: str, raw: bytes) -> None:
    """The field takes this JSON, and gives equal JSON and an equal struct member back."""
    message, copy, typed = make(), make(), make()
    assert kind.store(message, slot, raw)
    field = getattr(message, slot)
    assert kind.store(copy, slot, dumps(kind.load(field, "p")))
    assert kind.write(typed, slot, kind.read(field, "p"))
    assert message == copy == typed


def leaves_alone(kind: Kind, make: Any, slot: str, raw: bytes) -> None:
    """The field cannot say this JSON and stays as it was."""
    message = make()
    assert not kind.store(message, slot, raw)
    assert message == make()
