"""API keys: who may ask, as whom, for which models.

The file holds hashes only. It is TOML::

    [[keys]]
    hash = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    owner = "search-team"
    models = ["scripted"]        # optional; without it the key may use every model

and is read again within a second of a change, so that a key can be revoked while
its owner has connections open.
"""

import asyncio
import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tieline.errors import ApiError, TielineError
from tieline_server.core.values import Caller, Principal

RECHECK: Final = 1.0
"""Seconds between two looks at the file."""

FREE: Final = 5
"""Wrong keys of an address that are answered at once."""

EACH: Final = 1.0
"""Seconds that each further one takes, one after the other."""

SLOWEST: Final = 5.0
"""Seconds that one may have to wait for its refusal."""

ADDRESSES: Final = 4096
"""Addresses that are remembered; past it the one that was refused longest ago is forgotten."""

WAITING: Final = 32
"""Refusals that wait at once; further ones are answered at once, as they hold what waits."""

SAID: Final = 10.0
"""Seconds between two log lines about an address that goes on."""

_HASH: Final = re.compile(r"sha256:[0-9a-fA-F]{64}\Z")
_LOCAL: Final = Principal()


class KeyFileError(TielineError):
    """The key file cannot be used; the message is one line, written for who runs the server."""


class Refused(Struct):
    """What is remembered of an address that was refused."""

    at_rest: float
    """When it is as good as never refused."""
    count: int = 0
    said_at: float = float("-inf")


class Refusals:
    """Slows down who guesses keys, by address. A right key never waits here.

    ``clock`` gives seconds. ``count`` is called for each refusal with its transport, ``say`` for
    those that the log shows, with transport, address, and how often that was refused.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        count: Callable[[str], None],
        say: Callable[[str, str, int], None],
    ) -> None:
        self._clock = clock
        self._count = count
        self._say = say
        self._waiting = 0
        self._addresses: dict[str, Refused] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    async def answer(self, error: ApiError, address: str, transport: str) -> None:
        """Returns when a call may be told that it failed so; only wrong keys wait."""
        if error.code != "invalid_api_key":
            return
        seconds = self.refuse(address, transport)
        if seconds > 0 and self._waiting < WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self._waiting -= 1

    def refuse(self, address: str, transport: str) -> float:
        """Counts a refusal; returns the seconds that it has to wait."""
        now, place = self._clock(), _place(address)
        found = self._addresses.pop(place, None)
        if found is None or found.at_rest <= now:
            found = Refused(at_rest=now)
        self._addresses[place] = found
        if len(self._addresses) > ADDRESSES:
            del self._addresses[next(iter(self._addresses))]
        found.count += 1
        found.at_rest = min(found.at_rest + EACH, now + FREE * EACH + SLOWEST)
        self._count(transport)
        if found.count <= FREE or now - found.said_at >= SAID:
            found.said_at = now
            self._say(transport, address, found.count)
        return max(0.0, found.at_rest - now - FREE * EACH)


def _place(address: str) -> str:
    """What counts as one address: of IPv6 a network, which is what one client has.

    >>> _place("2001:db8::1") == _place("2001:db8::2")
    True
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))


class _Key(Struct, frozen=True, forbid_unknown_fields=True):
    hash: str
    owner: str
    models: list[str] | None = None


class _KeyFile(Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[_Key]


class Keys:
    """The keys of one file, kept current.

    ``path`` None means no keys: every caller is the owner ``local`` (the configuration admits
    that on loopback only). ``clock`` gives seconds. ``warn`` is called with one line when a
    changed file cannot be used; the last good keys then stay. Raises :class:`KeyFileError`
    when the first reading fails.
    """

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float], warn: Callable[[str], None]
    ) -> None:
        self._path = path
        self._clock = clock
        self._warn = warn
        self._checked_at = clock()
        self._stamp = _stamp(path) if path else None
        self._principals = read(path) if path else {}

    def authenticate(self, authorization: str | None) -> Principal:
        """Who sends this ``Authorization`` header; raises :class:`ApiError` 401.

        >>> Keys(None, clock=lambda: 0.0, warn=print).authenticate(None).owner
        'local'
        """
        return self.caller(authorization)()

    def caller(
        self, authorization: str | None, call: Caller | None = None
    ) -> Callable[[], Principal]:
        """What tells, each time anew, who sends this header: only its hash is made once.

        ``call`` is the call that the header came with, which the principal then names.
        """
        digest = None if self._path is None else _digest(authorization)
        return partial(self._holder, digest, call)

    def _holder(self, digest: bytes | None, call: Caller | None) -> Principal:
        """Looks up a hash, never a key: how long that takes says nothing of either."""
        found = _LOCAL if self._path is None else self._find(self._path, digest)
        return Principal(owner=found.owner, models=found.models, caller=call)

    def _find(self, path: Path, digest: bytes | None) -> Principal:
        self._refresh(path)
        if digest is None:
            raise ApiError.of(
                "invalid_api_key",
                "Missing API key: send it as 'authorization: Bearer <key>'.",
            )
        principal = self._principals.get(digest)
        if principal is None:
            raise ApiError.of("invalid_api_key", "Incorrect API key provided.")
        return principal

    def _refresh(self, path: Path) -> None:
        now = self._clock()
        if now - self._checked_at < RECHECK:
            return
        self._checked_at = now
        stamp = _stamp(path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._principals = read(path)
        except KeyFileError as error:
            self._warn(f"{error}; the last good keys stay in use")


def _digest(authorization: str | None) -> bytes | None:
    """The SHA-256 of the key in a header, or None where it has none."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        return None
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read(path: Path) -> Mapping[bytes, Principal]:
    """The keys in a file: SHA-256 digest -> principal; raises :class:`KeyFileError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    try:
        keys = msgspec.toml.decode(data, type=_KeyFile).keys
    except (msgspec.MsgspecError, ValueError) as error:
        raise KeyFileError(f"{path} is not a key file: {error}") from None
    principals: dict[bytes, Principal] = {}
    for index, key in enumerate(keys):
        if not _HASH.match(key.hash):
            raise KeyFileError(f"{path}: keys[{index}].hash is not 'sha256:' and 64 hex digits")
        if not key.owner:
            raise KeyFileError(f"{path}: keys[{index}].owner is empty")
        models = frozenset(key.models) if key.models is not None else None
        digest = bytes.fromhex(key.hash.removeprefix("sha256:"))
        if digest in principals:
            raise KeyFileError(f"{path}: keys[{index}].hash appears twice")
        principals[digest] = Principal(owner=key.owner, models=models)
    return principals


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when the file does, or None while there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
