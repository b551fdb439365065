"""What is wrong with JSON from outside, as OpenAI's API says it, and never as our decoder does."""

import re
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
    (r"Expected `str` of length <=", "string_above_max_length"),
    (r"Expected `(array|object)` of length <=", "array_above_max_length"),
)

_MISSING: Final = re.compile(r"Object missing required field `(.+)`")


def refusal(error: Exception, *, at: str = "", what: str = "message") -> ApiError:
    """A decoder's complaint as OpenAI's 400 with ``param`` and ``code``.

    ``at`` is where in the request the JSON stands, ``what`` is what it is called there.

    >>> refusal(msgspec.ValidationError("Expected `float`, got `str` - at `$.top_p`")).param
    'top_p'
    >>> refusal(msgspec.ValidationError("Object missing required field `name`"), at="input[3]").code
    'missing_required_parameter'
    """
    if not isinstance(error, msgspec.ValidationError):
        return ApiError.of("invalid_json", f"The {what} is not valid JSON.", param=at or None)
    complaint, _, where = str(error).replace("at `key` in `$", "at `$").partition(" - at `$")
    path = (at + where.rstrip("`")).lstrip(".")
    if missing := _MISSING.fullmatch(complaint):
        absent = f"{path}.{missing[1]}".lstrip(".")
        message = f"Missing required parameter: '{absent}'."
        return ApiError.of("missing_required_parameter", message, param=absent)
    param = path or None
    name = f"the {what}" if param is None else f"'{param}'"
    for pattern, code in _BOUNDS:
        if re.match(pattern, complaint):
            return ApiError.of(code, f"Invalid {name}: {_plain(complaint)}.", param=param)
    message = f"Invalid type for {name}: {_plain(complaint)}."
    return ApiError.of("invalid_type", message, param=param)


def _plain(complaint: str) -> str:
    text = re.sub(r"`([\w |]+)`", lambda match: _named(match[1]), complaint)
    return text[:1].lower() + text[1:]


def _named(types: str) -> str:
    """Types in words. That null would do as well is not said: it means absent."""
    each = types.split(" | ")
    wanted = [one for one in each if one != "null"] or each
    return " or ".join(_WORDS.get(one, one) for one in wanted)
