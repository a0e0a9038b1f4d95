"""Encryption of memories: the fields that each zone encrypts, and the data that bind a ciphertext to its memory.

The payload of a memory with a zone contains its encrypted fields as one text under `SEALED_KEY`: the id of the data
key, then nonce and ciphertext in base64. The plaintext is a JSON object, so no field can replace another. The
associated data bind the ciphertext to agent, user, memory and zone.

AES-256-GCM is implemented by `cryptography`, which is imported on first use. This saves the operator 8 MiB of RAM.
"""

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.errors import DecryptionFailed
from agentmemory_operator.spec.zones import KEY_CREATED_KEY, Zone

Payload = dict[str, Any]

ZONE_KEY, SEALED_KEY = "zone", "sealed"
HASH_KEY = "contentHash"

_TEXT_KEYS = frozenset({"content", "metadata", "context", "key", "subject", "statusValue", "sourceIds", "itemVersions"})
# Include entities and connections, which reveal the content. A memory may have them before it gets a zone.
_ENCRYPTED = _TEXT_KEYS | {"connections", "entities"}
_SENSITIVE = _ENCRYPTED | {"tags", "category", "knowledgeCategory", "eventType", "domain", "source", "speaker"}

SENSITIVE, PERSONAL, PROFESSIONAL = Zone.SENSITIVE, Zone.PERSONAL, Zone.PROFESSIONAL
USER_ZONES = (SENSITIVE, PERSONAL)
"""Zones with one key for each user."""

ZONES = (PROFESSIONAL, PERSONAL, SENSITIVE)
"""All zones, in ascending order of protection."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Encrypted fields of a memory.

    Attributes:
        key_id: Id of the data key.
        blob: Nonce, ciphertext and tag.
    """

    key_id: str
    blob: bytes

    def text(self) -> str:
        """Render the envelope as the text that is stored in a payload."""
        return f"{self.key_id}.{base64.b64encode(self.blob).decode()}"


def rank_of(zone: str | None) -> int:
    """Return the rank of a zone by protection, from 1 to 3 (SENSITIVE). 0 if `zone` is None or unknown."""
    return ZONES.index(zone) + 1 if zone in ZONES else 0


def sealed_keys(zone: str) -> frozenset[str]:
    """Return the payload keys that a memory of the zone stores only encrypted."""
    return _SENSITIVE if zone == SENSITIVE else _ENCRYPTED


def is_sealed_anywhere(keys: Iterable[str]) -> bool:
    """Return whether any zone encrypts at least one of these payload keys."""
    return not _SENSITIVE.isdisjoint(keys)


def is_locked(payload: Mapping[str, Any]) -> bool:
    """Return whether a payload still contains its ciphertext. Decryption removes it."""
    return SEALED_KEY in payload


def parse_envelope(payload: Mapping[str, Any]) -> Envelope | None:
    """Parse the encrypted text of a payload; None if it is absent or malformed."""
    key_id, dot, text = str(payload.get(SEALED_KEY) or "").partition(".")
    try:
        return Envelope(key_id, base64.b64decode(text, validate=True)) if dot else None
    except ValueError:
        return None


def associated_data(scope: str, payload: Mapping[str, Any]) -> bytes:
    """Return the associated data of a memory's ciphertext: agent, user, memory and zone.

    Args:
        scope: Slug of the agent that the memory's id is derived from; for a clone, the original agent.

    Raises:
        KeyError, TypeError: If the payload lacks user, id or zone, or one of them is not a string.
    """
    fields = ("agentmemory memory 1", scope, payload["userId"], payload["id"], payload[ZONE_KEY])
    return "\x00".join(fields).encode()


def split_encrypted(payload: Mapping[str, Any]) -> tuple[Payload, bytes]:
    """Return the fields of a payload that stay plain, and the JSON of the fields to encrypt.

    Fields that are None are dropped from the JSON.
    """
    encrypted_keys = sealed_keys(payload[ZONE_KEY])
    encrypted = {key: value for key, value in payload.items() if key in encrypted_keys and value is not None}
    unencrypted = {key: value for key, value in payload.items() if key not in encrypted_keys}
    return unencrypted, json.dumps(encrypted, ensure_ascii=False, separators=(",", ":")).encode()


def merge_decrypted(payload: Mapping[str, Any], inner: bytes) -> Payload:
    """Return a payload with the decrypted fields, without the ciphertext and the creation time of its key."""
    unencrypted = {key: value for key, value in payload.items() if key not in (SEALED_KEY, KEY_CREATED_KEY)}
    decrypted: Payload = json.loads(inner)
    return unencrypted | decrypted


NONCE_BYTES = 12
TAG_BYTES = 16


def seal(key: bytes, plaintext: bytes, aad: bytes) -> bytes:
    """Encrypt; return nonce, ciphertext and tag: 28 bytes more than the plaintext.

    Args:
        key: 32 bytes. Nonces are random, so a key must not be used for more than 2^32 calls.
        aad: Associated data. Decryption requires the same.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, aad)


def open_sealed(key: bytes, blob: bytes, aad: bytes) -> bytes:
    """Decrypt the result of `seal`.

    Raises:
        DecryptionFailed: If `blob` was modified, or encrypted with another key or other associated data.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(blob) < NONCE_BYTES + TAG_BYTES:
        raise DecryptionFailed("too short to be sealed")
    try:
        return AESGCM(key).decrypt(blob[:NONCE_BYTES], blob[NONCE_BYTES:], aad)
    except InvalidTag as exc:
        raise DecryptionFailed("not sealed with this key for this location, or changed") from exc


def keyed_hash(mac: bytes, text: str) -> str:
    """Return the hex HMAC-SHA-256 of a text. Without the key, candidate texts cannot be tested against it."""
    return hmac.new(mac, text.encode(), hashlib.sha256).hexdigest()
