"""Log probabilities as upstreams give them, to what a client of the Responses API can read.

An entry that is whole, and no more, goes as it came. One that lacks what can be known, or has
members of its server's own, is written anew; one that says nothing (minus infinity, say) is left
out, as the text is as good without it.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from tieline_server.engines.upstream.mending import sound

Byte = Annotated[int, Meta(ge=0, le=255)]


class _Likely(Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    bytes: list[Byte]
    logprob: float


class _Whole(_Likely, frozen=True, forbid_unknown_fields=True):
    top_logprobs: list[_Likely]


class _Loose(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[Byte] | None = None
    top_logprobs: "list[_Loose] | None" = None


_whole: Final = msgspec.json.Decoder(_Whole)
_loose: Final = msgspec.json.Decoder(_Loose)
_anything: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode


def given(entries: Iterable[Raw], *, most: int | None = None) -> tuple[Raw, ...]:
    """The entries of a chat's or a response's tokens, each with ``most`` others at the most."""
    return tuple(entry for each in entries if (entry := _entry(each, most)) is not None)


def paired(
    token: str, value: float | None, top: Mapping[str, float | None] | None, *, most: int
) -> Raw | None:
    """The entry of a completion's token; None where it has no value."""
    if value is None:
        return None
    known = [(name, each) for name, each in (top or {}).items() if each is not None]
    likeliest = sorted(known, key=lambda each: -each[1])[:most]
    others = [_named(name, each) for name, each in likeliest]
    return Raw(_encode({**_named(token, value), "top_logprobs": others}))


def _entry(raw: Raw, most: int | None) -> Raw | None:
    try:
        others = _whole.decode(raw).top_logprobs
        if most is None or len(others) <= most:
            return raw
    except (msgspec.MsgspecError, RecursionError):
        pass
    loose = _read(raw)
    if loose is None:
        return None
    named = _named(loose.token, loose.logprob, loose.bytes)
    likeliest = (loose.top_logprobs or [])[:most]
    named["top_logprobs"] = [_named(each.token, each.logprob, each.bytes) for each in likeliest]
    return Raw(_encode(named))


def _read(raw: Raw) -> _Loose | None:
    try:
        return _loose.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return _kept(_anything.decode(sound(raw)))
    except (msgspec.MsgspecError, RecursionError):
        return None


def _kept(entry: Any) -> _Loose | None:
    """What of an entry says something; None for one without a value that is a number."""
    if not isinstance(entry, dict):
        return None
    top = entry.get("top_logprobs")
    others = [_kept(each) for each in top] if isinstance(top, list) else []
    members = {name: entry.get(name) for name in ("token", "logprob")}
    try:
        likely = msgspec.convert(members, _Loose)
    except msgspec.ValidationError:
        return None
    return msgspec.structs.replace(likely, top_logprobs=[each for each in others if each])


def _named(token: str, value: float, known: list[int] | None = None) -> dict[str, Any]:
    text = list(token.encode()) if known is None else known
    return {"token": token, "bytes": text, "logprob": value}
