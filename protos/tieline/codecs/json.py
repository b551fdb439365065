"""The JSON codec: events and client events as OpenAI's API writes them (wire.md 2 and 3).

What comes from outside is refused with 400 ``invalid_json`` when it is no JSON, holds a lone
surrogate or a number beyond a double, or nests deeper than ``MAX_DEPTH``. What is well formed
but unknown is carried: an event without a class becomes :class:`tieline.events.Opaque`.
"""

import functools
import gc
import operator
import re
from array import array
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from tieline import events, requests
from tieline.codecs.repeat_cache import MAX_BYTES, MAX_NAME, RepeatCache
from tieline.complaints import fault
from tieline.errors import ApiError
from tieline.events import ErrorDetail, ErrorEvent, Event
from tieline.requests import ABSENT, Request, raw_members

_S = TypeVar("_S", bound=Struct)

MAX_DEPTH: Final = 256
"""How deep arrays and objects from outside may nest (msgspec's own bound moves with the stack)."""

MAX_VALUES: Final = 250_000
"""How many JSON values one client event may hold.

Ten million tiny ones fit into a message of the largest size, and would keep everybody waiting
for seconds while they are read; a history of a million tokens has some fifty thousand.
"""

_LARGE: Final = 64 * 1024
_SHORTEST: Final = len("1e309")
_STRIDE: Final = 75
_INFINITE: Final = (float("inf"), float("-inf"))
_NOT_BRACKETS: Final = bytes(code for code in range(256) if code not in b"[]{}")
_STEPS: Final = bytes({91: 1, 123: 1, 93: 255, 125: 255}.get(code, 0) for code in range(256))
"""A bracket that opens -> 1, one that closes -> -1 (as a signed byte)."""
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBERS: Final = re.compile(_STRINGS.pattern + rb"|-?\d[\d.eE+-]*")
_BRACKETS: Final = re.compile(_STRINGS.pattern + rb"|[\[\]{}]")
_DEEPER: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_NOT_VALUES: Final = bytes(code for code in range(256) if code not in b",[{")
_LONG_NUMBER: Final = re.compile(rb"\d{4}")


def _nested(levels: int) -> Any:
    """The type of JSON that nests no deeper, and whose whole numbers have at most 64 bits."""
    scalar = None | bool | _Whole | float | str
    if levels == 0:
        return scalar
    inner: Any = _nested(levels - 1)
    return scalar | list[inner] | dict[str, inner]


_LARGEST: Final = (1 << 63) - 1
_Whole = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
_USUAL_DEPTH: Final = 6
_usual: Final = msgspec.json.Decoder(_nested(_USUAL_DEPTH))
"""What it can read is sound: nothing is left to check."""
_any: Final = msgspec.json.Decoder()
_members: Final = msgspec.json.Decoder(dict[str, Raw])
_string: Final = msgspec.json.Decoder(str)
_encoder: Final = msgspec.json.Encoder()
_events: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(
    functools.reduce(operator.or_, events.CLASSES)
)


def invalid_json(what: str, param: str | None = None) -> ApiError:
    """The one refusal of text that is not JSON as we take it."""
    return ApiError.of("invalid_json", f"Invalid JSON: {what}.", param=param)


def check(raw: bytes, *, param: str | None = None, outer: int = 0) -> None:
    """Refuses with 400 ``invalid_json`` what no later reader could rely on.

    ``outer`` is the number of levels that already enclose ``raw``.

    >>> check(b'{"a": [1, 2.5, "x"]}')
    """
    _check_values(raw, param)
    _check_text(raw, param, outer)


def _check_text(raw: bytes, param: str | None, outer: int) -> None:
    try:
        _parse(_usual, raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        _check_unusual(raw, param, outer)


def _check_unusual(raw: bytes, param: str | None, outer: int) -> None:
    try:
        _parse(_any, raw)
    except msgspec.ValidationError:
        _check_numbers(raw, param)
        raise invalid_json("a number is out of range", param) from None
    except RecursionError:
        raise _too_deep(raw, param, MAX_DEPTH - outer) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise invalid_json(fault(raw, error), param) from None
    if len(raw) > MAX_DEPTH - outer:
        _check_depth(raw, param, MAX_DEPTH - outer)
        _check_digits(raw, param)


def _parse(decoder: msgspec.json.Decoder[Any], raw: bytes) -> None:
    if len(raw) < _LARGE or not gc.isenabled():
        decoder.decode(raw)
        return
    # What is built is dropped at once and has no cycles. The collector would look at all of it
    # again and again: ten million small arrays take two seconds without it and twelve with it.
    gc.disable()
    try:
        decoder.decode(raw)
    finally:
        gc.enable()


def _check_values(raw: bytes | Raw, param: str | None = None) -> None:
    """Refuses more than ``MAX_VALUES`` values; text that is smaller than that cannot have them."""
    if memoryview(raw).nbytes <= MAX_VALUES:
        return
    text = bytes(raw)
    # A value stands behind a comma or is the first in what opens before it, so that these count
    # the values (an empty array as two). Counting those in strings too is one quick pass; only
    # text that exceeds the bound so is looked at without its strings.
    if len(text.translate(None, _NOT_VALUES)) < MAX_VALUES:
        return
    bare = _without_strings(text)
    if bare is None or len(bare.translate(None, _NOT_VALUES)) >= MAX_VALUES:
        raise invalid_json(f"it holds more than {MAX_VALUES} values", param)


def _without_strings(text: bytes) -> bytes | None:
    """What stands between the strings of JSON text; None where there are too many of them."""
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes a string, and at most two strings a value: a member's name and its text.
    if plain.count(b'"') > 4 * MAX_VALUES:
        return None
    return b"".join(plain.split(b'"')[::2])


def _too_deep(raw: bytes | Raw, param: str | None, limit: int = MAX_DEPTH) -> ApiError:
    depth, where = 0, ""
    for match in _BRACKETS.finditer(bytes(raw)):
        depth += _DEEPER.get(match[0], 0)
        if depth > limit:
            where = f" at byte {match.start()}"
            break
    return invalid_json(f"it nests deeper than {MAX_DEPTH} levels{where}", param)


def _check_depth(raw: bytes, param: str | None, limit: int) -> None:
    # The number of brackets, strings included, is a bound from above that costs one quick pass;
    # only in text that exceeds it are the levels counted.
    if len(raw.translate(None, _NOT_BRACKETS)) <= 2 * limit:
        return
    bare = _without_strings(raw)
    assert bare is not None, "its values have been counted"
    steps = array("b", bare.translate(_STEPS, _NOT_BRACKETS))
    if max(accumulate(steps), default=0) > limit:
        raise _too_deep(raw, param, limit)


def _check_digits(raw: bytes, param: str | None) -> None:
    # The decoder bounds floats but not integers. More than 308 digits in a row put a digit on
    # at least four neighbours of any sample of every 75th byte.
    if _LONG_NUMBER.search(raw[::_STRIDE]) is not None:
        _check_numbers(raw, param)


def _check_numbers(raw: bytes, param: str | None) -> None:
    for match in _NUMBERS.finditer(raw):
        token = match[0]
        if len(token) >= _SHORTEST and token[:1] != b'"' and float(token) in _INFINITE:
            raise invalid_json(f"a number beyond a double at byte {match.start()}", param)


def members(raw: bytes | Raw) -> dict[str, Raw] | None:
    """The members of a JSON object, the last of equal names; None when it is no object.

    Raises :class:`ApiError` (400 ``invalid_json``) when it begins as an object and is no JSON.
    """
    try:
        return _members.decode(raw)
    except msgspec.ValidationError:
        return None
    except RecursionError:
        raise _too_deep(raw, None) from None
    except (msgspec.MsgspecError, ValueError) as error:
        # A decoder that skips what it carries stumbles elsewhere than one that reads all of it.
        _check_unusual(bytes(raw), None, 0)
        raise invalid_json(fault(bytes(raw), error)) from None


def join(pairs: Mapping[str, bytes | Raw]) -> bytes:
    """A JSON object of members that are JSON text already."""
    parts = [_encoder.encode(name) + b":" + bytes(raw) for name, raw in pairs.items()]
    return b"{" + b",".join(parts) + b"}"


def encode(message: Event | Request) -> bytes:
    """One event or client event as JSON text.

    Members of a client event that are None are left out; an opaque one is its own bytes.

    >>> encode(requests.Cancel(response_id="resp_1"))
    b'{"type":"response.cancel","response_id":"resp_1"}'
    """
    if type(message) in _PLAIN:
        return _encoder.encode(message)
    if isinstance(message, events.Opaque | requests.Opaque):
        return bytes(message.raw)
    given: dict[str, Any] = {"type": message.type}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if value is not None and value is not UNSET and value != ABSENT and name != _UNKNOWN:
            given[name] = value
    return _encoder.encode(given)


_UNKNOWN: Final = "unknown"
"""What a create says of other members; it is none itself."""

_PLAIN: Final[frozenset[type]] = frozenset((*events.CLASSES, events.RequestRefused))


def decode_event(raw: bytes | Raw) -> Event:
    """Reads one event of a server.

    A type without a class, or one whose members do not fit its class, becomes
    :class:`tieline.events.Opaque`; members that no class needs may have any type.
    Raises :class:`ApiError` (400 ``invalid_json``) when the text is no JSON.

    >>> decode_event(b'{"type":"codex.keepalive"}').type
    'codex.keepalive'
    """
    try:
        event: Event = _events.decode(raw)
    except msgspec.ValidationError:
        event = _unfit(raw)
    except RecursionError:
        raise _too_deep(raw, None) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise invalid_json(fault(bytes(raw), error)) from None
    name = _OBJECTS.get(type(event))
    if name is not None and not bytes(getattr(event, name)).startswith(b"{"):
        return _opaque(raw, event.type)
    return event


_OBJECTS: Final[dict[type[Event], str]] = {
    kind: name
    for kind in events.CLASSES
    for name in ("item", "part")
    if name in kind.__struct_fields__
}
"""Events that are nothing without an object: the member that must be one."""


def _unfit(raw: bytes | Raw) -> Event:
    """The event of its class with the members that fit, else an opaque one."""
    given = members(raw)
    if given is None:
        check(bytes(raw))
        return _opaque(raw, "")
    name = text_of(given.get("type"))
    kind = events.BY_TYPE.get(name)
    if kind is None:
        return _opaque(raw, name)
    if kind is ErrorEvent and members(given.get("error", ABSENT)) is None:
        # The documented form on SSE is flat: code, message and param beside the type.
        given = {**given, "error": Raw(join({**given, "type": _ERROR_TYPE}))}
    return fitting(kind, given) or _opaque(raw, name)


_ERROR_TYPE: Final = Raw(_encoder.encode(ErrorDetail().type))


def _opaque(raw: bytes | Raw, name: str) -> events.Opaque:
    return events.Opaque(name=name, raw=Raw(bytes(raw)))


def text_of(raw: Raw | None) -> str:
    """A JSON string's text; empty for any other value, and for none."""
    try:
        return "" if raw is None else _string.decode(raw)
    except (msgspec.MsgspecError, ValueError):
        return ""


def fitting(kind: type[_S], given: dict[str, Raw]) -> _S | None:
    """``kind`` from the members that fit it, or None when a required one does not."""
    values: dict[str, Any] = {}
    for field in structs.fields(kind):
        raw = given.get(field.encode_name)
        value = UNSET if raw is None else _value(raw, field.type)
        if value is not UNSET:
            values[field.name] = value
    try:
        return kind(**values)
    except TypeError:
        return None


def _value(raw: Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError):
        given = members(raw)
        # A type is a struct, or a union of one with None.
        for inner in (kind, *get_args(kind)):
            if given is not None and isinstance(inner, type) and issubclass(inner, Struct):
                return fitting(inner, given) or UNSET
        return UNSET


def decode_request(raw: bytes | Raw) -> Request:
    """Reads one client event.

    Raises :class:`ApiError` (400): ``invalid_json``; ``invalid_event`` for a missing, unknown or
    non-string ``type``; ``invalid_type`` and its kin, with ``param``, for a member that we read.

    >>> decode_request(b'{"type":"response.cancel","response_id":"resp_1"}').response_id
    'resp_1'
    """
    return RequestDecoder().decode(raw)


class RequestDecoder:
    """Reads the client events of one connection and remembers their members.

    Tools and instructions come again in full with every create. A member that equals the last
    one of its name is neither checked nor read again, and is handed out as the same object.
    """

    __slots__ = ("_repeats", "work")

    def __init__(self) -> None:
        self._repeats = RepeatCache[Raw]()
        self.work = 0
        """Bytes really checked, without what was remembered."""

    def decode(self, raw: bytes | Raw) -> Request:
        """Reads one client event; raises as :func:`decode_request` does."""
        _check_values(raw)
        create = self._at_once(raw, _creates)
        if create is not None:
            return create
        given = members(raw)
        if given is None:
            check(bytes(raw))
            raise invalid_event("A client event is a JSON object.")
        try:
            return self._build(text_of(given.get("stream_id"))[:MAX_NAME], given)
        except ApiError as error:
            raise _located(raw, error) from None

    def create(self, raw: bytes) -> requests.Create:
        """Reads the body of an HTTP create, which has no ``type``; raises as ``decode`` does.

        >>> RequestDecoder().create(b'{"model": "m", "input": "hi"}').model
        'm'
        """
        _check_values(raw)
        create = self._at_once(raw, _bodies)
        if create is not None:
            return create
        given = members(raw)
        if given is None:
            check(raw)
            raise ApiError.of("invalid_type", "The request body must be a JSON object.")
        try:
            built = self._build("", {**given, "type": _CREATE})
        except ApiError as error:
            raise _located(raw, error) from None
        assert isinstance(built, requests.Create)
        return built

    def _at_once(
        self, raw: bytes | Raw, decoder: msgspec.json.Decoder[Any]
    ) -> requests.Create | None:
        """A create whose members are all known and sound; None for what takes a closer look."""
        try:
            create = decoder.decode(raw)
            if type(create) is not requests.Create or create.unknown is not UNSET:
                return None
            lane = (create.stream_id or "")[:MAX_NAME]
            for name, said in zip(FREE, _free_of(create), strict=True):
                if said is ABSENT or said is UNSET:
                    continue
                sound = _UNSAID[name] if said == ABSENT else self._sound(lane, name, said)
                if sound is not said:
                    # No other code has seen it yet, and a copy costs as much as reading it.
                    structs.force_setattr(create, name, sound)
            most = max(
                create.max_output_tokens or 0, create.max_tool_calls or 0, create.timeout_ms or 0
            )
            return create if most <= _LARGEST else None
        except (ApiError, msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _build(self, lane: str, given: dict[str, Raw]) -> Request:
        """The client event of these members, once they are known to be sound."""
        kind = requests.BY_TYPE.get(text_of(given.get("type")))
        raws = _RAW_FIELDS.get(kind, _NONE)
        free: dict[str, Raw] = {}
        plain: dict[str, Raw] = {}
        for name, raw in given.items():
            if name not in raws:
                plain[name] = raw
            elif raw != ABSENT:
                free[name] = self._sound(lane, name, raw)
        text = _encoder.encode(plain)
        self.work += len(text)
        _check_members(text, plain)
        if kind is None:
            known = ", ".join(f"'{name}'" for name in requests.BY_TYPE)
            raise invalid_event(f"Missing or unknown event type. Supported values are: {known}.")
        if kind is requests.Create:
            text = _encoder.encode({name: raw for name, raw in plain.items() if name in _KNOWN})
        request: Request = requests.decode(text, kind)
        if kind is requests.Create:
            return structs.replace(request, unknown=requests.unknown_of(plain), **free)
        return structs.replace(request, **free) if free else request

    def _sound(self, lane: str, name: str, raw: Raw) -> Raw:
        """``raw`` once it is known to be sound, as the object of last time where it is equal."""
        remembered = name in requests.REPEATED
        last = self._repeats.recall(lane, name, raw) if remembered else None
        if last is not None:
            return last
        text = bytes(raw)
        _check_text(text, name or None, 1)
        self.work += len(text)
        if not remembered or len(text) > MAX_BYTES:
            return raw
        # A copy: the member as decoded keeps the whole client event in memory.
        own = Raw(text)
        self._repeats.keep(lane, name, own, own)
        return own


def _located(raw: bytes | Raw, error: ApiError) -> ApiError:
    """The refusal of a member that is no JSON, with the byte counted in the whole text."""
    if error.code != "invalid_json":
        return error
    try:
        check(bytes(raw), param=error.param)
    except ApiError as whole:
        return whole
    return error


_CREATE: Final = Raw(b'"response.create"')
_bodies: Final = msgspec.json.Decoder(requests.Create)
# Of a union, unlike of one class alone, the type must be said.
_creates: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(
    requests.Create | requests.Processed
)
_KNOWN: Final = frozenset({"type", *requests.Create.__struct_encode_fields__} - {""})
_UNSAID: Final = {each.name: each.default for each in requests.MEMBERS if each.free_form}
"""Free-form member of a create -> what stands for one that was not given."""
FREE: Final = tuple(_UNSAID)
_free_of: Final = operator.attrgetter(*FREE)


def invalid_event(message: str) -> ApiError:
    """The refusal of a client event that no one here knows."""
    return ApiError.of("invalid_event", message, param="type")


def _check_members(text: bytes, given: Mapping[str, Raw]) -> None:
    """Checks members by the ``text`` of them all; one that is not sound is named."""
    try:
        _check_text(text, None, 0)
    except ApiError:
        for name, raw in given.items():
            _check_text(bytes(raw), name or None, 1)


_NONE: Final[frozenset[str]] = frozenset()
_RAW_FIELDS: Final[dict[type[Request] | None, frozenset[str]]] = {
    kind: raw_members(kind) for kind in requests.CLASSES
}
"""Client event -> its members that stay JSON text."""
