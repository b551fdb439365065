"""Certificates for TLS tests, made anew by trustme."""

from pathlib import Path

import trustme
from msgspec import Struct


class Pem(Struct, frozen=True):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority, and what it signs, as files in ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._ca = trustme.CA(organization_name=name)
        self.pem = Pem(folder / f"{name}.pem", folder / f"{name}.key")
        self._ca.cert_pem.write_to_path(self.pem.certificate)
        self._ca.private_key_pem.write_to_path(self.pem.key)

    def sign(self, name: str) -> Pem:
        """A certificate for 127.0.0.1 and localhost."""
        pem = Pem(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signed = self._ca.issue_cert("127.0.0.1", "localhost", common_name=name)
        signed.cert_chain_pems[0].write_to_path(pem.certificate)
        signed.private_key_pem.write_to_path(pem.key)
        return pem
