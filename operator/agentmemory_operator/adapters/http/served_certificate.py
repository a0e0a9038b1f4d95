"""Certificate and key of a server. They are read again when the files change, as those of a mounted Secret do.

Connections that are open keep the certificate of their handshake. If the new files are invalid or do not belong to each
other, the server keeps the last certificate and logs a warning.
"""

import logging
import ssl
from pathlib import Path

from agentmemory_operator.errors import AgentMemoryError

log = logging.getLogger(__name__)

_Versions = tuple[tuple[int, int, int], ...]


class ServedCertificate:
    """Certificate of a server, and the TLS context with it.

    Args:
        certificate: PEM file with the certificate, followed by those of intermediate authorities.
        key: PEM file with its private key, without a passphrase.

    Attributes:
        context: TLS context for the server. New handshakes use the certificate that was read last.

    Raises:
        AgentMemoryError: If a file is missing or not PEM, or if the key does not match the certificate.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        # Versions before contents: files that change in between are read again.
        self._versions = self._read_versions()
        try:
            self.context = self._latest = self._read()
        except OSError as exc:
            raise AgentMemoryError(f"{self._describe()}: {_explain(exc)}") from exc
        # OpenSSL calls `_select` in each handshake, also if the client names no host.
        self.context.sni_callback = self._select

    def refresh(self) -> None:
        """Read the files if they have changed since the last call. If they are unusable, keep the last certificate."""
        versions = self._read_versions()
        if versions == self._versions:
            return
        self._versions = versions
        try:
            self._latest = self._read()
        except OSError as exc:
            log.warning("kept the certificate read before: %s: %s", self._describe(), _explain(exc))
        else:
            log.info("read a new certificate: %s", self._certificate)

    def _select(self, connection: ssl.SSLObject, _host: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._latest

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Pass an empty passphrase: if the key has one, OpenSSL would otherwise ask for it on the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        return context

    def _read_versions(self) -> _Versions | None:
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError:
            return None
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)

    def _describe(self) -> str:
        return f"--tls-cert {self._certificate}, --tls-key {self._key}"


def _explain(error: OSError) -> str:
    """Return the reason in words; `ssl.SSLError` is an OSError."""
    if isinstance(error, ssl.SSLError):
        return f"not a PEM certificate with its key ({error.reason or error})"
    return error.strerror or str(error)
