"""The vocabulary as a client sees it, as text: errors, JSON members, protobuf fields.

All of it is derived from what the product itself reads and writes by (the error table, the msgspec
classes, the descriptors), so that a member, a code or a number that changes changes this text.
Names of classes are not in it: no client sees them.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import grpc
import msgspec
from google.protobuf import descriptor
from msgspec import NODEFAULT, UNSET, Struct, inspect

from tieline import errors, events, items, requests, responses
from tieline.v1 import events_pb2, items_pb2, models_pb2, requests_pb2, responses_pb2, service_pb2

_FILES: Final = (items_pb2, requests_pb2, responses_pb2, events_pb2, service_pb2, models_pb2)
_APART: Final[dict[type, str]] = {responses.Response: "response"}
"""Objects that stand in several others, and have a heading of their own."""

_BOUNDS: Final = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "multiple_of": "multiple of"}
_LENGTHS: Final = {"min_length": "length >=", "max_length": "length <="}
_LABELS: Final = {
    descriptor.FieldDescriptor.TYPE_DOUBLE: "double",
    descriptor.FieldDescriptor.TYPE_FLOAT: "float",
    descriptor.FieldDescriptor.TYPE_INT64: "int64",
    descriptor.FieldDescriptor.TYPE_UINT64: "uint64",
    descriptor.FieldDescriptor.TYPE_INT32: "int32",
    descriptor.FieldDescriptor.TYPE_UINT32: "uint32",
    descriptor.FieldDescriptor.TYPE_BOOL: "bool",
    descriptor.FieldDescriptor.TYPE_STRING: "string",
    descriptor.FieldDescriptor.TYPE_BYTES: "bytes",
}


def error_codes() -> Iterator[str]:
    """Each code with its faces, then the codes that stand for a status alone."""
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    for code, row in errors.ERRORS.items():
        again = ", retryable" if row.retryable else ""
        yield f"{code}: {row.status} {row.type}, {names[row.grpc]}{again}"
    yield ""
    yield f"ErrorInfo.domain: {errors.DOMAIN}"
    for status, code in errors.BY_STATUS.items():
        yield f"a bare {status}: {code}"
    for number, code in errors.BY_GRPC.items():
        yield f"a bare {names[number]}: {code}"


def request_members() -> Iterator[str]:
    """The members of each client event, and those of a create that are taken and ignored."""
    for kind in requests.CLASSES:
        yield from _object(_tag(kind), kind)
    yield f"taken in a create, without effect: {', '.join(sorted(requests.ACCEPTED))}"


def event_members() -> Iterator[str]:
    """The members of each server event."""
    for kind in events.CLASSES:
        yield from _object(_tag(kind), kind)


def object_members() -> Iterator[str]:
    """The members of a response, and of each type of item that the server looks into."""
    for kind, name in _APART.items():
        yield from _object(name, kind)
    for name, view in items.VIEWS.items():
        yield from _object(f"item {name}", view)
    yield from _object("any other item", items.Opaque)
    for call, output in items.CALL_KINDS.items():
        yield f"{call} is answered by {output}"


def protobuf() -> Iterator[str]:
    """Services, messages and fields, with their numbers."""
    for module in _FILES:
        file: Any = module.DESCRIPTOR
        for service in file.services_by_name.values():
            yield f"service {service.full_name}"
            for method in service.methods:
                yield f"    {method.name}: {_stream(method, 'client')}{method.input_type.full_name}"
                yield f"        -> {_stream(method, 'server')}{method.output_type.full_name}"
        for message in file.message_types_by_name.values():
            yield from _message(message)
        for enum in file.enum_types_by_name.values():
            yield f"enum {enum.full_name}"
            yield from (f"    {value.number} {value.name}" for value in enum.values)


def _tag(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _object(title: str, kind: type[Struct]) -> Iterator[str]:
    yield title
    yield from (f"    {line}" for line in _members(kind, ""))


def _members(kind: type, before: str) -> Iterator[str]:
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    for member in shape.fields:
        # One without a name is not a member: it is filled in by the server.
        if not member.encode_name:
            continue
        path = f"{before}{member.encode_name}"
        yield f"{path}: {' | '.join(_kinds(member.type))}{_presence(member)}"
        for inner in _inner(member.type):
            yield from _members(inner, f"{path}.")


def _presence(member: inspect.Field) -> str:
    if member.required:
        return ""
    default = member.default
    if default is NODEFAULT:
        default = member.default_factory() if callable(member.default_factory) else UNSET
    if default is UNSET:
        return ", optional"
    return f" = {msgspec.json.encode(default).decode()}"


def _kinds(kind: inspect.Type) -> Iterator[str]:
    """A type as JSON has it, each way of a union by itself."""
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _kinds(each)
        case inspect.StructType(cls=cls):
            yield _APART.get(cls, "object")
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield f"[{' | '.join(_kinds(item))}]"
        case inspect.DictType(key_type=key, value_type=value):
            pair = f"{' | '.join(_kinds(key))}: {' | '.join(_kinds(value))}"
            yield f"{{{pair}}}{_bounds(kind)}"
        case inspect.RawType() | inspect.AnyType():
            yield "any"
        case inspect.NoneType():
            yield "null"
        case _:
            yield f"{type(kind).__name__.removesuffix('Type').lower()}{_bounds(kind)}"


def _bounds(kind: Any) -> str:
    said = [
        f" {words} {limit}"
        for name, words in {**_BOUNDS, **_LENGTHS}.items()
        if (limit := getattr(kind, name, None)) is not None
    ]
    return "".join(said)


def _inner(kind: inspect.Type) -> Iterator[type]:
    """The objects inside that have no heading of their own."""
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _inner(each)
        case inspect.StructType(cls=cls) if cls not in _APART:
            yield cls
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _inner(item)


def _stream(method: Any, side: str) -> str:
    return "stream " if getattr(method, f"{side}_streaming") else ""


def _message(message: Any) -> Iterator[str]:
    yield f"message {message.full_name}"
    for field in sorted(message.fields, key=lambda field: field.number):
        yield f"    {field.number} {field.name}: {_field(field)}"
    for inner in message.nested_types:
        if not inner.GetOptions().map_entry:
            yield from _message(inner)


def _field(field: Any) -> str:
    """Label and type of a field, and the oneof that it is an arm of."""
    oneof = field.containing_oneof
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_number.values()
        return f"map<{_type(key)}, {_type(value)}>"
    if field.is_repeated:
        return f"repeated {_type(field)}"
    if oneof is None:
        return _type(field)
    # proto3's `optional` is a oneof of its own, whose name begins with an underscore.
    if oneof.name == f"_{field.name}":
        return f"optional {_type(field)}"
    return f"{_type(field)}, an arm of {oneof.name}"


def _type(field: Any) -> str:
    named = field.message_type or field.enum_type
    return str(named.full_name) if named is not None else _LABELS[field.type]


def joined(lines: Iterable[str]) -> str:
    """Lines as one text."""
    return "".join(f"{line}\n" for line in lines)
