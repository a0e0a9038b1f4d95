"""Certificate authorities of a test's own, and servers' certificates by them."""

import pathlib
import tempfile
from dataclasses import dataclass

import trustme

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """What a TLS server is given."""

    certificate: pathlib.Path
    key: pathlib.Path


class Authority:
    """Vouches for servers.

    Args:
        folder: keeps the servers' files.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()

    @property
    def pem(self) -> str:
        """Its own certificate, as it stands in a Secret."""
        return self._ca.cert_pem.bytes().decode()

    def issue(self, *, host: str = HOST) -> ServerFiles:
        """Return a certificate for a host, and its key."""
        leaf = self._ca.issue_cert(host)
        return self._write(b"".join(part.bytes() for part in leaf.cert_chain_pems), leaf.private_key_pem.bytes())

    def self_signed(self) -> ServerFiles:
        """Return a certificate that nobody but itself vouches for, and its key."""
        return self._write(self._ca.cert_pem.bytes(), self._ca.private_key_pem.bytes())

    def _write(self, certificate: bytes, key: bytes) -> ServerFiles:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        files = ServerFiles(folder / "cert.pem", folder / "key.pem")
        files.key.write_bytes(key)
        files.certificate.write_bytes(certificate)
        return files
