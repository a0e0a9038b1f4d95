"""TLS to Qdrant, the same for both of its clients: whom to trust, and what a failed handshake means."""

import ssl

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.errors import SpecInvalid, StoreUntrusted

# A server that went away in the middle says nothing about trust.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def trust_of(url: str, ca_pem: str | None) -> ssl.SSLContext | None:
    """Return how to check a server's certificate, None where nothing is encrypted.

    Args:
        url: of the server.
        ca_pem: certificates of the authorities to trust; None is the system's.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """
    if not url.startswith("https://"):
        return None
    if ca_pem is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError, TypeError) as exc:
        raise SpecInvalid(
            Reason.INVALID_CA,
            "spec.tls.caSecretRef: the Secret's value is no certificate: put PEM there (-----BEGIN CERTIFICATE-----)",
        ) from exc
    return context


def untrusted(error: BaseException | None) -> StoreUntrusted | None:
    """Return what to raise where a failed handshake is behind the error, else None."""
    found = None
    # The innermost is the interpreter's own; the clients' say less.
    while error is not None:
        found = error if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDED) else found
        error = error.__cause__ or error.__context__
    if isinstance(found, ssl.SSLCertVerificationError):
        return StoreUntrusted(
            f"the server's certificate is refused ({found.verify_message}): correct the authority in"
            " spec.tls.caSecretRef, spec.url, or the server's certificate"
        )
    if found is not None:
        return StoreUntrusted(f"no TLS with the server ({found.reason}): correct spec.url, or the server's TLS")
    return None
