"""JSON text compared by its values, and strategies that make hostile variants of it."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

FIXTURES: Final = Path(__file__).parents[1] / "protocol" / "fixtures"


def fixture(name: str) -> list[dict[str, Any]]:
    """The rows of one golden file: each says its proto arm and its JSON."""
    rows: list[dict[str, Any]] = json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))
    return rows


def value(raw: bytes | str) -> object:
    """What the text says: numbers as decimals, the last of equal names, no bool as a number."""
    return _tagged(json.loads(raw, parse_float=Decimal, parse_int=Decimal))


def _tagged(said: object) -> object:
    if isinstance(said, dict):
        return {name: _tagged(inner) for name, inner in said.items()}
    if isinstance(said, list):
        return [_tagged(inner) for inner in said]
    return ("bool", said) if isinstance(said, bool) else said


def dumps(said: object) -> bytes:
    """Compact JSON text."""
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


_TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

values: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
"""Any JSON value."""


@st.composite
def variants(draw: st.DrawFn, rows: list[dict[str, Any]]) -> bytes:
    """JSON text of one fixture with members dropped, replaced, nulled, added or retyped."""
    said = json.loads(dumps(draw(st.sampled_from(rows))["json"]))
    for _ in range(draw(st.integers(0, 4))):
        _mutate(draw, draw(st.sampled_from(_objects(said))))
    spell: Callable[[Any], bytes] = draw(st.sampled_from(_SPELLINGS))
    return spell(said)


def _objects(said: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [said] if isinstance(said, dict) else []
    children = said.values() if isinstance(said, dict) else said if isinstance(said, list) else ()
    return found + [inner for child in children for inner in _objects(child)]


def _mutate(draw: st.DrawFn, target: dict[str, Any]) -> None:
    name = draw(st.sampled_from([*target, "type", "zz", "extra_json", "absent", ""]))
    deed = draw(st.sampled_from(["drop", "null", "value", "zero"]))
    if deed == "drop":
        target.pop(name, None)
    else:
        zero = draw(st.sampled_from([0, "", [], {}, False, 0.0, [None], {"type": 5}]))
        target[name] = {"null": None, "value": draw(values), "zero": zero}[deed]


def _twice(said: dict[str, Any]) -> bytes:
    """The same object after an earlier one of the same names: the last ones count."""
    earlier = dumps(dict.fromkeys(said, "earlier"))
    return earlier[:-1] + (b"," if said else b"") + dumps(said)[1:]


_SPELLINGS: Final[tuple[Callable[[Any], bytes], ...]] = (
    dumps,
    lambda said: json.dumps(said, ensure_ascii=True, indent=1).encode(),
    _twice,
)
