"""Authenticated encryption and keyed hashes: AES-256-GCM of the library `cryptography`, HMAC-SHA-256.

The library is imported where something is sealed: the operator starts without its 8 MiB.
"""

import hashlib
import hmac
import os

from agentmemory_operator.errors import Unreadable

NONCE_BYTES = 12
TAG_BYTES = 16


def seal(key: bytes, plaintext: bytes, aad: bytes) -> bytes:
    """Encrypt; return nonce, ciphertext and tag: 28 bytes more than the plaintext.

    Args:
        key: 32 bytes. Nonces are random: a key is not to seal more than 2^32 times.
        aad: what the ciphertext is bound to; it opens with the same alone.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, aad)


def open_sealed(key: bytes, blob: bytes, aad: bytes) -> bytes:
    """Decrypt what `seal` returned.

    Raises:
        Unreadable: it was changed, or sealed with another key, or bound to something else.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(blob) < NONCE_BYTES + TAG_BYTES:
        raise Unreadable("too short to be sealed")
    try:
        return AESGCM(key).decrypt(blob[:NONCE_BYTES], blob[NONCE_BYTES:], aad)
    except InvalidTag as exc:
        raise Unreadable("not sealed with this key for this place, or changed since") from exc


def keyed_hash(mac: bytes, text: str) -> str:
    """HMAC-SHA-256 in hex: who has no key cannot try words."""
    return hmac.new(mac, text.encode(), hashlib.sha256).hexdigest()
