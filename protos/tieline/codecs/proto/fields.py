"""How one JSON member and one proto field say the same thing, and how a message is made of them.

Three forms meet here: JSON text, a protobuf message, and our structs. A :class:`Kind` knows the
four ways between the field and the other two; a :class:`Spec` is the table of one message, read
off its descriptor, so that the schema itself is the list of members.

What the typed field cannot say goes to ``extra_json`` of the message's ``unknown``; a member that
JSON would always write and that the original lacked is named in ``absent`` there. So JSON -> proto
-> JSON gives equal JSON, whatever came in.
"""

import re
from collections.abc import Callable, Container, Mapping
from decimal import Decimal
from enum import Enum, auto
from math import isfinite
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from msgspec import UNSET, Raw, Struct

from tieline.codecs.json import check, fitting, invalid_json, join, members
from tieline.errors import ApiError

NULL: Final = Raw(b"null")
UNKNOWN: Final = "unknown"
"""The field for what the others cannot say."""

_JSON: Final = "_json"
"""How the name of a field of JSON text ends: the member of JSON is named without it."""

dumps: Final = msgspec.json.Encoder().encode
_raws: Final = msgspec.json.Decoder(list[Raw])


class Mode(Enum):
    """What an unset field means in JSON."""

    OPTIONAL = auto()
    """The member is not there."""
    NULLABLE = auto()
    """The member is null."""
    ASKED = auto()
    """The member is not there, and null would mean the same (client events)."""
    ALWAYS = auto()
    """The member has the zero of its type: the field cannot be unset."""


class Kind:
    """One kind of field. ``raw`` is JSON text; ``value`` is what our structs hold."""

    zero: Any = None
    """The value that an ALWAYS field has when nothing was sent."""

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        """JSON -> field. False, and the field untouched, when it cannot say this value."""
        raise NotImplementedError

    def load(self, field: Any, param: str) -> Any:
        """Field -> what encodes as its JSON; raises :class:`ApiError` (400) for what JSON lacks."""
        raise NotImplementedError

    def write(self, message: Any, slot: str, value: Any) -> bool:
        """Struct member -> field; False as in ``store``."""
        raise NotImplementedError

    def read(self, field: Any, param: str) -> Any:
        """Field -> struct member; raises as ``load`` does."""
        return self.load(field, param)


class Scalar(Kind):
    """A field that holds one value as Python does."""

    def __init__(self, kind: Any, zero: Any) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self.zero = zero

    def _exact(self, raw: bytes, value: Any) -> bool:
        return True

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        try:
            value = self._decode(raw)
        except msgspec.MsgspecError:
            return False
        return self._exact(raw, value) and self.write(message, slot, value)

    def load(self, field: Any, param: str) -> Any:
        return field

    def write(self, message: Any, slot: str, value: Any) -> bool:
        setattr(message, slot, value)
        return True


class Whole(Scalar):
    """An integer from 0 of ``bits`` bits; any other number is said in ``extra_json``."""

    def __init__(self, bits: int) -> None:
        super().__init__(int, 0)
        self._end = 1 << bits

    def write(self, message: Any, slot: str, value: Any) -> bool:
        return 0 <= value < self._end and super().write(message, slot, value)


class Real(Scalar):
    """A double; a number that a double cannot hold exactly as decimal is said in ``extra_json``."""

    def __init__(self) -> None:
        super().__init__(float, 0.0)

    def _exact(self, raw: bytes, value: Any) -> bool:
        # Fifteen significant digits always survive.
        if len(raw) <= 15 and raw.lower().find(b"e") < 0:
            return True
        return Decimal(raw.decode()) == Decimal(repr(value))

    def load(self, field: Any, param: str) -> Any:
        if not isfinite(field):
            raise ApiError.of("invalid_value", f"'{param}' is not a finite number.", param=param)
        return field


class Choice(Scalar):
    """An enum: one of its words in JSON; another word is said in ``extra_json``."""

    def __init__(self, descriptor: EnumDescriptor) -> None:
        super().__init__(str, "")
        prefix = _prefix(descriptor.name)
        # The value that stands for none has the name of no word.
        self.numbers: Final = {
            name.removeprefix(prefix).lower() if value.number else "": value.number
            for name, value in descriptor.values_by_name.items()
        }
        """A word -> its number."""
        self._words = {number: word for word, number in self.numbers.items()}

    def write(self, message: Any, slot: str, value: Any) -> bool:
        number = self.numbers.get(value)
        return number is not None and super().write(message, slot, number)

    def load(self, field: Any, param: str) -> Any:
        return self._words.get(field, "")


def _prefix(name: str) -> str:
    """What the values of an enum begin with.

    >>> _prefix("HeartbeatPhase")
    'HEARTBEAT_PHASE_'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() + "_"


class JsonText(Kind):
    """A ``*_json`` field: JSON text that is carried as it came, null included."""

    zero = NULL

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        setattr(message, slot, raw.decode())
        return True

    def load(self, field: Any, param: str) -> Any:
        return checked(field, f"{param}{_JSON}", param=param, outer=1)

    def write(self, message: Any, slot: str, value: Any) -> bool:
        return self.store(message, slot, bytes(value))


def checked(text: str, field: str, *, param: str, outer: int) -> Raw:
    """JSON text that is carried as it came; raises 400 ``invalid_json`` that names its field too.

    ``param`` is the member of the JSON that it is, ``outer`` how deep that stands.
    """
    raw = text.encode()
    try:
        check(raw, param=param, outer=outer)
    except ApiError as error:
        message = f"{error.message} The field is '{field}'."
        raise ApiError.of(error.code, message, param=param) from None
    return Raw(raw)


class JsonTexts(Kind):
    """A repeated ``*_json`` field: an array whose elements are carried as they came."""

    zero: Any = ()

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        elements = array(raw)
        return elements is not None and self.write(message, slot, elements)

    def load(self, field: Any, param: str) -> Any:
        return tuple(
            checked(text, f"{param}{_JSON}[{index}]", param=f"{param}[{index}]", outer=1)
            for index, text in enumerate(field)
        )

    def write(self, message: Any, slot: str, value: Any) -> bool:
        if value:
            getattr(message, slot).extend([bytes(raw).decode() for raw in value])
        return True


class Texts(Kind):
    """A repeated string."""

    def __init__(self, kind: Any = list[str], zero: Any = ()) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self.zero = zero

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        try:
            return self.write(message, slot, self._decode(raw))
        except msgspec.MsgspecError:
            return False

    def load(self, field: Any, param: str) -> Any:
        return list(field)

    def write(self, message: Any, slot: str, value: Any) -> bool:
        getattr(message, slot).extend(value)
        return True


class Mapped(Texts):
    """A map from strings to ``kind`` (str, or int of 64 bits without sign)."""

    def __init__(self, kind: type[str] | type[int]) -> None:
        super().__init__(dict[str, kind], {})  # type: ignore[valid-type]

    def load(self, field: Any, param: str) -> Any:
        return dict(field)

    def write(self, message: Any, slot: str, value: Mapping[str, Any]) -> bool:
        if any(isinstance(count, int) and not 0 <= count < 1 << 64 for count in value.values()):
            return False
        getattr(message, slot).update(value)
        return True


class AsRaw(Kind):
    """A typed field whose struct member is JSON text."""

    def __init__(self, inner: Kind) -> None:
        self._inner = inner
        self.zero = Raw(dumps(inner.zero))

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        return self._inner.store(message, slot, raw)

    def load(self, field: Any, param: str) -> Any:
        return self._inner.load(field, param)

    def write(self, message: Any, slot: str, value: Any) -> bool:
        return self._inner.store(message, slot, bytes(value))

    def read(self, field: Any, param: str) -> Any:
        return Raw(dumps(self._inner.load(field, param)))


class Word(AsRaw):
    """Text beside a field of JSON text: one of a few words, none of which looks like JSON."""

    def read(self, field: Any, param: str) -> Any:
        if field.lstrip()[:1] in ("{", "[", '"'):
            text = f"Invalid value for '{param}': it takes a word; JSON goes into '{param}{_JSON}'."
            raise ApiError.of("invalid_value", text, param=param)
        return super().read(field, param)


TEXT: Final = Scalar(str, "")
FLAG: Final = Scalar(bool, False)
REAL: Final = Real()
JSON_TEXT: Final = JsonText()
JSON_TEXTS: Final = JsonTexts()
TEXTS: Final = Texts()


def array(raw: bytes) -> list[Raw] | None:
    """The elements of a JSON array, or None when it is none."""
    try:
        return _raws.decode(raw)
    except msgspec.MsgspecError:
        return None


class Nested(Kind):
    """A message that mirrors an object."""

    def __init__(self, spec: "Spec") -> None:
        self.spec = spec

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        given = members(raw)
        if given is None:
            return False
        inner = getattr(message, slot)
        inner.SetInParent()
        self.spec.fill(inner, given)
        return True

    def load(self, field: Any, param: str) -> Any:
        return self.spec.members(field, param)

    def write(self, message: Any, slot: str, value: Any) -> bool:
        inner = getattr(message, slot)
        inner.SetInParent()
        self.spec.write(inner, value)
        return True

    def read(self, field: Any, param: str) -> Any:
        return self.spec.build(field, param)


class NestedList(Kind):
    """A repeated message that mirrors an array of objects."""

    zero: Any = ()

    def __init__(self, spec: "Spec") -> None:
        self.spec = spec

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        given = [members(each) for each in array(raw) or ()]
        if not given or None in given:
            return False
        for each in given:
            self.spec.fill(getattr(message, slot).add(), each or {})
        return True

    def load(self, field: Any, param: str) -> Any:
        return [self.spec.members(each, f"{param}[{at}]") for at, each in enumerate(field)]

    def write(self, message: Any, slot: str, value: Any) -> bool:
        for each in value:
            self.spec.write(getattr(message, slot).add(), each)
        return True

    def read(self, field: Any, param: str) -> Any:
        return tuple(self.spec.build(each, f"{param}[{at}]") for at, each in enumerate(field))


class Slot(NamedTuple):
    """A proto field: the JSON member that it says, and how."""

    name: str
    kind: Kind
    mode: Mode
    bare: bool
    """Whether unset and zero are one: the field has no presence."""


class Spec:
    """The table of one message.

    ``constants`` are members that the message's type implies; ``struct`` is our class of it.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        slots: Mapping[str, Slot],
        *,
        constants: Mapping[str, bytes] = {},
        struct: type[Struct] | None = None,
    ) -> None:
        self.descriptor: Final = descriptor
        self.slots: Final = slots
        self.struct: Final = struct
        self._constants: Final = constants
        self._extensible: Final = UNKNOWN in descriptor.fields_by_name
        # A oneof has several slots of one name, in the order in which they are tried.
        names = dict.fromkeys(slot.name for slot in slots.values())
        self._by_name: Final[dict[str, Choices]] = {
            name: tuple((field, slot) for field, slot in slots.items() if slot.name == name)
            for name in names
        }
        implied = {slot.name: slot for slot in slots.values() if slot.mode in _IMPLIED}
        self._blank_json: Final[dict[str, Any]] = {
            **{name: Raw(raw) for name, raw in constants.items()},
            **{name: _blank_json(slot) for name, slot in implied.items()},
        }
        self._blank: Final[dict[str, Any]] = {name: _blank(slot) for name, slot in implied.items()}
        self._always: Final = frozenset(n for n in implied if implied[n].mode is Mode.ALWAYS)
        writable = [] if struct is None else [n for n in names if n in struct.__struct_fields__]
        # Scalars are the many and the cheap: they are fetched in one call.
        self._scalars: Final = tuple(n for n in writable if _is_scalar(n, self._by_name[n]))
        self._scalars_of: Final = getter(self._scalars)
        self._writers: Final = tuple(
            (name, _writer(self._by_name[name])) for name in writable if name not in self._scalars
        )
        # Field -> its member, and how it is read where that is more than its value. Found by its
        # descriptor: while these are held, a message lists the same ones and makes none anew.
        fields = descriptor.fields_by_name
        self.readers: Final[Readers] = {
            fields[field]: (slot.name, None if type(slot.kind) in _AS_IS else slot.kind.read)
            for field, slot in slots.items()
        }
        self._loaders: Final[Readers] = {
            fields[field]: (slot.name, None if type(slot.kind) in _AS_IS else slot.kind.load)
            for field, slot in slots.items()
        }
        self._beside: Final = fields.get(UNKNOWN)

    def only(self, names: Container[str]) -> "Spec":
        """The same table with these members alone, for writing."""
        slots = {field: slot for field, slot in self.slots.items() if slot.name in names}
        return Spec(self.descriptor, slots, constants=self._constants, struct=self.struct)

    def without(self, *names: str) -> "Spec":
        """The same table without these members, for writing."""
        return self.only({slot.name for slot in self.slots.values()} - {*names})

    def fill(self, message: Any, given: Mapping[str, Raw]) -> None:
        """JSON members -> message."""
        extra = self.take(message, given)
        if extra:
            message.unknown.extra_json = join(extra).decode()
        if not self._blank_json.keys() <= given.keys():
            message.unknown.absent.extend(sorted(self._blank_json.keys() - given.keys()))

    def take(self, message: Any, given: Mapping[str, Raw]) -> dict[str, Raw]:
        """JSON members -> message; those that its fields cannot say are handed back."""
        store = self._store
        return {name: raw for name, raw in given.items() if not store(message, name, bytes(raw))}

    def _store(self, message: Any, name: str, raw: bytes) -> bool:
        if name in self._constants:
            return self._constants[name] == raw
        for field, slot in self._by_name.get(name, ()):
            if raw == b"null" and slot.mode is Mode.NULLABLE:
                return True
            if slot.kind.store(message, field, raw):
                # A zero in a field without presence would read as not there.
                return slot.mode is Mode.ALWAYS or not slot.bare or bool(getattr(message, field))
        return False

    def members(self, message: Any, param: str = "") -> dict[str, Any]:
        """Message -> JSON members; raises :class:`ApiError` (400) with the member as param."""
        said = self._blank_json.copy()
        beside = False
        for descriptor, field in message.ListFields():
            loader = self._loaders.get(descriptor)
            if loader is None:
                beside = True
                continue
            name, load = loader
            said[name] = field if load is None else load(field, _path(param, name))
        if beside and self._extensible:
            for name in message.unknown.absent:
                said.pop(name, None)
            said.update(extras(message, param))
        return said

    def dump(self, message: Any, param: str = "") -> bytes:
        """Message -> JSON object."""
        return dumps(self.members(message, param))

    def write(self, message: Any, struct: Struct) -> None:
        """Struct -> message."""
        extra: dict[str, bytes | Raw] = {}
        for name, value in zip(self._scalars, self._scalars_of(struct), strict=False):
            if value is not None and value is not UNSET:
                try:
                    setattr(message, name, value)
                except ValueError:
                    extra[name] = dumps(value)
            elif value is None and name in self._always:
                message.unknown.absent.append(name)
        for name, write in self._writers:
            value = getattr(struct, name)
            if value is not None and value is not UNSET and not write(message, value):
                extra[name] = value if isinstance(value, Raw) else dumps(value)
        if extra:
            message.unknown.extra_json = join(extra).decode()

    def read(self, message: Any, param: str = "") -> dict[str, Any] | None:
        """Message -> the members of its struct, or None when it has members beside its fields."""
        values = self._blank.copy()
        for descriptor, field in message.ListFields():
            reader = self.readers.get(descriptor)
            if reader is None:
                if descriptor is self._beside:
                    return None
                continue
            name, read = reader
            values[name] = field if read is None else read(field, _path(param, name))
        return values

    def build(self, message: Any, param: str = "") -> Any:
        """Message -> its struct, by defaults where it can; TypeError where a member is missing."""
        assert self.struct is not None
        values = self.read(message, param)
        if values is not None:
            return self.struct(**values)
        fit = fitting(self.struct, members(self.dump(message, param)) or {})
        if fit is None:
            raise TypeError(f"{self.struct.__name__} lacks a member")
        return fit

    def blanks(self, message: Any) -> dict[str, Any]:
        """The struct members that are there although nothing was sent for them."""
        absent = message.unknown.absent if self._blank and self._extensible else ()
        return {name: zero for name, zero in self._blank.items() if name not in absent}


Choices = tuple[tuple[str, Slot], ...]
Readers = dict[FieldDescriptor, tuple[str, Callable[[Any, str], Any] | None]]


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What fetches all these attributes at once."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda holder: tuple(getattr(holder, name) for name in names)


def _is_scalar(name: str, choices: Choices) -> bool:
    return len(choices) == 1 and choices[0][0] == name and type(choices[0][1].kind) in _PLAIN


_PLAIN: Final = (Scalar, Whole, Real)
"""Kinds whose field takes the value itself, or raises ValueError."""

_AS_IS: Final = (Scalar, Whole)
_IMPLIED: Final = (Mode.NULLABLE, Mode.ALWAYS)


def _writer(choices: Choices) -> Callable[[Any, Any], bool]:
    """What puts a struct member that is not None into the first slot that can say it."""
    if any(slot.mode in (Mode.NULLABLE, Mode.ASKED) for _, slot in choices):
        return lambda message, value: value == NULL or _write_any(choices, message, value)
    if len(choices) > 1:
        return lambda message, value: _write_any(choices, message, value)
    ((field, slot),) = choices
    write = slot.kind.write
    return lambda message, value: write(message, field, value)


def _write_any(choices: Choices, message: Any, value: Any) -> bool:
    for field, slot in choices:
        if slot.kind.write(message, field, value):
            return not slot.bare or slot.mode is Mode.ALWAYS or bool(getattr(message, field))
    return False


def _path(param: str, name: str) -> str:
    return f"{param}.{name}" if param else name


def _blank_json(slot: Slot) -> Any:
    return None if slot.mode is Mode.NULLABLE else slot.kind.zero


def _blank(slot: Slot) -> Any:
    if slot.mode is Mode.NULLABLE:
        return NULL if isinstance(slot.kind, AsRaw) else None
    zero = slot.kind.zero
    return [] if type(slot.kind) is Texts else zero


def extras(message: Any, param: str = "") -> dict[str, Raw]:
    """The members in ``extra_json``; raises 400 ``invalid_json`` when it is no JSON object."""
    text = message.unknown.extra_json
    if not text:
        return {}
    where = _path(param, f"{UNKNOWN}.extra_json")
    raw = text.encode()
    check(raw, param=where)
    given = members(raw)
    if given is None:
        raise invalid_json("it is no object", where)
    return given
