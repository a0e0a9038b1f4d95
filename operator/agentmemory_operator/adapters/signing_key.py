"""A key that signs user tokens, as text and as value."""

import base64
import binascii
import hashlib
import secrets

from agentmemory_operator.ports.access import SigningKey

BYTES = 32


def new_key() -> str:
    """The text of a key that nobody knows."""
    return base64.b64encode(secrets.token_bytes(BYTES)).decode()


def key_from(text: str) -> SigningKey | None:
    """The key of a text; None where that holds too little."""
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(secret) < BYTES:
        return None
    return SigningKey(hashlib.sha256(b"agentmemory key id\n" + secret).hexdigest()[:16], secret)
