"""AES-256-GCM for what clients carry: bound to its owner, with keys that can be replaced.

Sealed text is base64 of key id, nonce, ciphertext and tag (NIST SP 800-38D). The owner is
associated data, so that no other owner's request opens it. The key id is a hash of the key: a
server that has a new key and still knows the old one opens what either has sealed.
"""

import binascii
import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tieline.errors import ApiError
from tieline_server.config import ConfigError
from tieline_server.core.history.sealed import unverified

KEY: Final = 32
KEY_ID: Final = 8
NONCE: Final = 12
TAG: Final = 16
ALIAS: Final = 32
"""Characters of hex: no two owners have the same."""

LONGEST: Final = 16 * 1024 * 1024
"""Characters of sealed text."""

_FORM: Final = b"tieline.sealed.1\0"
"""Stands before the owner in the associated data: another form of sealing is another prefix."""


class Keyring:
    """The keys of a server: the first one seals, each of them opens.

    ``entropy(n)`` returns ``n`` random bytes. A key may seal 2**32 times (SP 800-38D 8.3).
    """

    def __init__(self, keys: Sequence[bytes], *, entropy: Callable[[int], bytes]) -> None:
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self._first = _id_of(keys[0])
        self._entropy = entropy
        self._names = hmac.digest(keys[0], b"tieline.owner.alias", "sha256")

    @classmethod
    def parse(cls, text: str, *, entropy: Callable[[int], bytes] = os.urandom) -> Self:
        """The keys of a file, one a line; raises :class:`ConfigError` without repeating any."""
        keys = [_key_of(line) for line in text.split() if line]
        if not keys:
            raise ConfigError("there is no key in it")
        return cls(keys, entropy=entropy)

    @classmethod
    def read(cls, path: Path | None, *, otherwise: str | None = None) -> Self:
        """The keys of a file, else the ones given, else one that lives as long as the process.

        Raises :class:`ConfigError`.
        """
        if path is None:
            return cls.random(os.urandom) if otherwise is None else cls.parse(otherwise)
        try:
            return cls.parse(path.read_text(encoding="ascii"))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: it is not base64") from None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None

    @classmethod
    def random(cls, entropy: Callable[[int], bytes]) -> Self:
        """Makes a key that no other process has and that is gone with this one."""
        return cls([entropy(KEY)], entropy=entropy)

    def alias(self, owner: str) -> str:
        """A name for an owner, from which only a holder of the key can tell the owner."""
        return hmac.digest(self._names, owner.encode(), "sha256").hex()[:ALIAS]

    def seal(self, owner: str, content: bytes) -> str:
        """The content as text; raises :class:`ApiError` 413 for more than can be opened again."""
        if len(content) > LONGEST // 4 * 3 - KEY_ID - NONCE - TAG:
            raise ApiError.of("request_too_large", "There is too much to be sealed in one item.")
        nonce = self._entropy(NONCE)
        sealed = self._ciphers[self._first].encrypt(nonce, content, _associated(owner))
        return b64encode(self._first + nonce + sealed).decode()

    def open(self, owner: str, sealed: str) -> bytes:
        """The content; raises :func:`~tieline_server.core.history.sealed.unverified` otherwise."""
        data = _decode(sealed)
        cipher = self._ciphers.get(data[:KEY_ID])
        if cipher is None or len(data) < KEY_ID + NONCE + TAG:
            raise unverified()
        nonce, rest = data[KEY_ID : KEY_ID + NONCE], data[KEY_ID + NONCE :]
        try:
            return cipher.decrypt(nonce, rest, _associated(owner))
        except InvalidTag:
            raise unverified() from None


def _decode(sealed: str) -> bytes:
    if len(sealed) > LONGEST:
        raise unverified()
    try:
        data = b64decode(sealed.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise unverified() from None
    # The last character has bits that decoding drops (RFC 4648 3.5): one text for one content.
    if b64encode(data).decode() != sealed:
        raise unverified()
    return data


def _associated(owner: str) -> bytes:
    return _FORM + owner.encode()


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"tieline.key.id\0" + key).digest()[:KEY_ID]


def _key_of(line: str) -> bytes:
    try:
        key = b64decode(line.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        key = b""
    if len(key) != KEY:
        raise ConfigError(f"a key is not {KEY} bytes in base64")
    return key
