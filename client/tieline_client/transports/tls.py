"""TLS as every transport has it: whom we trust, and who we are."""

import errno
import os
import re
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

from tieline_client.transports.base import Tls

_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")
"""What OpenSSL looks up in a folder of authorities."""
_CERTIFICATE: Final = re.compile(
    b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)


def context(tls: Tls) -> ssl.SSLContext:
    """The settings as OpenSSL has them.

    Raises OSError, with the name of the file, for one that cannot be read or holds nothing.
    """
    if tls.key is not None and tls.cert is None:
        raise _unusable(tls.key, "it is a key, and its certificate (cert) is not given")
    made = ssl.create_default_context(cadata=_authorities_of(tls))
    if tls.cert is not None:
        _certificates(tls.cert)
        read(tls.key or tls.cert)
        try:
            made.load_cert_chain(tls.cert, tls.key)
        except ssl.SSLError as error:
            name = tls.key or tls.cert
            raise _unusable(name, "no PEM of the key of the certificate is in it") from error
    return made


def _authorities_of(tls: Tls) -> str | None:
    return None if tls.ca is None else _certificates(tls.ca).decode("ascii", "replace")


def _certificates(path: str) -> bytes:
    """The certificates of a file; OpenSSL's own complaint would not name it."""
    found = _CERTIFICATE.findall(read(path))
    if not found:
        raise _unusable(path, "no PEM of a certificate is in it")
    pem = b"\n".join(found)
    try:
        ssl.create_default_context(cadata=pem.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise _unusable(path, "a PEM of a certificate in it is broken") from error
    return pem


def _unusable(path: str, why: str) -> OSError:
    return OSError(errno.EINVAL, why, path)


def read(path: str) -> bytes:
    """A file; the error of one that cannot be read has its name."""
    return Path(path).read_bytes()


def authorities() -> bytes | None:
    """Whom OpenSSL trusts by itself, for a library that has a list of its own; None for none.

    They are the file of ``SSL_CERT_FILE`` and the folders of ``SSL_CERT_DIR``, else what the
    system has in their place.
    """
    known = ssl.get_default_verify_paths()
    file = Path(os.environ.get(known.openssl_cafile_env) or known.openssl_cafile)
    folders = os.environ.get(known.openssl_capath_env) or known.openssl_capath
    paths = [
        path
        for folder in map(Path, folders.split(os.pathsep))
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if _HASHED.fullmatch(path.name)
    ]
    found: dict[bytes, None] = {}
    for path in (file, *paths):
        # One that cannot be read is passed over, as by OpenSSL.
        with suppress(OSError):
            found.update(dict.fromkeys(_CERTIFICATE.findall(path.read_bytes())))
    return b"\n".join(found) or None
