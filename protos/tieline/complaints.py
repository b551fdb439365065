"""What is wrong with JSON from outside, as OpenAI's API says it, and never as our decoder does."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from tieline.errors import ApiError

_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

_BOUNDS: Final[tuple[tuple[str, str], ...]] = (
    (r"Expected `int` >=? ", "integer_below_min_value"),
    (r"Expected `int` <=? ", "integer_above_max_value"),
    (r"Expected `float` >=? ", "decimal_below_min_value"),
    (r"Expected `float` <=? ", "decimal_above_max_value"),
    (r"Expected `str` of length >= 1$", "empty_string"),
    (r"Expected `str` of length <=", "string_above_max_length"),
    (r"Expected `(array|object)` of length <=", "array_above_max_length"),
)

_MISSING: Final = re.compile(r"Object missing required field `(.+)`")
_NO_MEMBER: Final = re.compile(r"Invalid (?:enum )?value '(.*)'", re.DOTALL)
_INDEX: Final = re.compile(r"\[\d+\]")
_OF_ANY_NAME: Final = "[...]"
"""What our decoder writes in a path for a name that it does not repeat."""
_WORD: Final = re.compile(r"[a-z][a-z0-9_.-]{0,31}")
"""A value that can be repeated: a word as an API has them, which no text and no key is."""


def refusal(
    error: Exception,
    *,
    at: str = "",
    what: str = "message",
    known: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> ApiError:
    """A decoder's complaint as OpenAI's 400 with ``param`` and ``code``.

    ``at`` is where in the request the JSON stands, ``what`` is what it is called there, ``known``
    are the values that a member of this name, or of this one in that, may have.

    >>> refusal(msgspec.ValidationError("Expected `float`, got `str` - at `$.top_p`")).param
    'top_p'
    >>> refusal(msgspec.ValidationError("Object missing required field `name`"), at="input[3]").code
    'missing_required_parameter'
    """
    if not isinstance(error, msgspec.ValidationError):
        return ApiError.of("invalid_json", f"The {what} is not valid JSON.", param=at or None)
    complaint, _, where = str(error).replace("at `key` in `$", "at `$").rpartition(" - at `$")
    if not complaint:
        complaint, where = where, ""
    path = (at + where.rstrip("`").replace(_OF_ANY_NAME, "")).lstrip(".")
    if absent := _MISSING.fullmatch(complaint):
        return missing(f"{path}.{absent[1]}".lstrip("."))
    if found := _NO_MEMBER.fullmatch(complaint):
        names = _INDEX.sub("", path).split(".")
        values = known.get(".".join(names[-2:])) or known.get(names[-1], ())
        return invalid_value(path, found[1], values)
    param = path or None
    name = f"the {what}" if param is None else f"'{param}'"
    for pattern, code in _BOUNDS:
        if re.match(pattern, complaint):
            plain = _plain(complaint) if code != "empty_string" else "an empty string"
            return ApiError.of(code, f"Invalid {name}: {plain}.", param=param)
    message = f"Invalid type for {name}: {_plain(complaint)}."
    return ApiError.of("invalid_type", message, param=param)


def invalid_value(param: str, value: str, known: Sequence[str]) -> ApiError:
    """The refusal of a word that is none of those ``known``.

    What may be a text, a name or a key that came in the wrong member is not repeated.

    >>> invalid_value("truncation", "on", ("auto", "disabled")).message
    "Invalid value: 'on'. Supported values are: 'auto' and 'disabled'."
    """
    said = f": '{value}'" if _WORD.fullmatch(value) else f" for '{param}'"
    message = f"Invalid value{said}.{_supported(known)}"
    return ApiError.of("invalid_value", message, param=param or None)


def _supported(known: Sequence[str]) -> str:
    quoted = [f"'{each}'" for each in known]
    if not quoted:
        return ""
    if len(quoted) == 1:
        return f" The supported value is: {quoted[0]}."
    last = ", and " if len(quoted) > 2 else " and "
    return f" Supported values are: {', '.join(quoted[:-1])}{last}{quoted[-1]}."


def missing(param: str, *others: str) -> ApiError:
    """The refusal of an object without a member that it needs, where no other one would do."""
    names = " or ".join(f"'{each}'" for each in (param, *others))
    message = f"Missing required parameter: {names}."
    return ApiError.of("missing_required_parameter", message, param=param)


def _plain(complaint: str) -> str:
    text = re.sub(r"`([\w |]+)`", lambda match: _named(match[1]), complaint)
    return text[:1].lower() + text[1:]


def _named(types: str) -> str:
    """Types in words. That null would do as well is not said: it means absent."""
    each = types.split(" | ")
    wanted = [one for one in each if one != "null"] or each
    return " or ".join(_WORDS.get(one, one) for one in wanted)


BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_AT: Final = re.compile(r"JSON is malformed: (.+) \(byte (\d+)\)")
_ESCAPE: Final = 6
"""Bytes of a character that is written as an escape; half a pair is one."""
_WINDOW: Final = 4096
"""Backslashes in a row that are counted."""
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_HALF_ALONE: Final = re.compile(_HALF.pattern + rb"(?=[^\\]|\\[^u])")
_NO_NUMBERS: Final = (b"-Infinity", b"Infinity", b"NaN")
_LITERAL: Final = re.compile(rb"(?:(?<=[\s:,\[])|\A)[tfn].{3,4}\Z", re.DOTALL)
"""A word that is none of ``true``, ``false`` and ``null``: our decoder stumbles behind it."""
_FAULTS: Final = {
    "trailing characters": "text behind its end",
    "object keys must be strings": "a member without a quoted name",
    "trailing comma in object": "a comma with no member behind it",
    "trailing comma in array": "a comma with no value behind it",
    "invalid number": "a number that is not written as JSON has it",
    "invalid escaped character": "an escape that JSON does not have",
    "invalid escape character in string": "an escape that JSON does not have",
    "invalid character in unicode escape": "a \\u without four hexadecimal digits",
    "expected ':'": "a name without a colon behind it",
    "expected ',' or '}'": "a member without a comma or a brace behind it",
    "expected ',' or ']'": "a value without a comma or a bracket behind it",
}
"""Our decoder's words -> ours."""


def fault(text: bytes, error: Exception) -> str:
    """What is wrong with ``text``, which our decoder took for no JSON, and at which byte.

    Nothing of the text is repeated: the server cannot know what it is.

    >>> fault(b'{"a": NaN}', msgspec.DecodeError("JSON is malformed: invalid character (byte 6)"))
    'NaN at byte 6, which is no number in JSON (write null)'
    """
    if text.startswith(BYTE_ORDER_MARK):
        return "a byte-order mark at byte 0 (JSON begins without one)"
    try:
        text.decode()
    except UnicodeDecodeError as broken:
        return f"no UTF-8 at byte {broken.start}"
    found = _AT.search(str(error))
    if found is None:
        half = _HALF_ALONE.search(text, max(0, len(text) - 2 * _ESCAPE))
        if half is not None and _escapes(text, half.start()):
            return _lone(half.start())
        return f"it ends too soon, at byte {len(text)}"
    at = int(found[2])
    if "surrogate" in found[1]:
        first = at - 2 * _ESCAPE
        paired = first >= 0 and _HALF.match(text, first) and _escapes(text, first)
        return _lone(first if "invalid" in found[1] and paired else at - _ESCAPE)
    return _told(text, at, found[1])


def _escapes(text: bytes, at: int) -> bool:
    """Whether the backslash at ``at`` is no second one, that the first escapes."""
    before = text[max(0, at - _WINDOW) : at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def _lone(at: int) -> str:
    return f"a lone surrogate at byte {at} (write the character, or both of its halves)"


def _told(text: bytes, at: int, complaint: str) -> str:
    for each in _NO_NUMBERS:
        start = at - each.startswith(b"-")
        if start >= 0 and text.startswith(each, start):
            return f"{each.decode()} at byte {start}, which is no number in JSON (write null)"
    if complaint == "invalid character":
        if text[at : at + 1] < b" " and at < len(text):
            return f"a control character at byte {at} (in a string it has to be escaped)"
        start = max(0, at - _ESCAPE)
        if literal := _LITERAL.search(text[start:at]):
            at = start + literal.start()
    elif complaint == "trailing characters":
        # Our decoder has read it already.
        at -= 1
    elif "escape" in complaint:
        at = text.rfind(b"\\", 0, at)
    return f"{_FAULTS.get(complaint, 'a character that JSON does not have there')} at byte {at}"
