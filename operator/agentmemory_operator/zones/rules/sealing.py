"""What of a memory lies sealed, by its zone, and what binds the sealed text to its place. Pure.

A payload with a zone bears its sealed fields as one text under `SEALED_KEY`: the id of the data key, then nonce and
ciphertext in base64. Each field lies in it under its own name, so none can pass for another; the associated data bind
the whole to agent, user, memory and zone.

AES-256-GCM is the library's, `cryptography`, which is imported where something is sealed: the operator starts without
its 8 MiB.
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.errors import Unreadable
from agentmemory_operator.spec.zones import KEY_MADE_KEY, Zone

Payload = dict[str, Any]

ZONE_KEY, SEALED_KEY = "zone", "sealed"
HASH_KEY = "contentHash"

_SAID = frozenset({"content", "metadata", "context", "key", "subject", "statusValue", "sourceIds", "itemVersions"})
# What is said of it tells what it says: a plain memory that rises may bear some.
_ALWAYS = _SAID | {"connections", "entities"}
_SENSITIVE = _ALWAYS | {"tags", "category", "knowledgeCategory", "eventType", "domain", "source", "speaker"}

SENSITIVE, PERSONAL, PROFESSIONAL = Zone.SENSITIVE, Zone.PERSONAL, Zone.PROFESSIONAL
USER_ZONES = (SENSITIVE, PERSONAL)
"""Those whose keys are a user's."""

ZONES = (PROFESSIONAL, PERSONAL, SENSITIVE)
"""From the lowest to the highest."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A sealed text: the id of its data key, and what that key opens."""

    key_id: str
    blob: bytes

    def text(self) -> str:
        """As it lies on a point."""
        return f"{self.key_id}.{base64.b64encode(self.blob).decode()}"


def rank_of(zone: str | None) -> int:
    """The place of a zone among all: 0 is none, SENSITIVE is the highest."""
    return ZONES.index(zone) + 1 if zone in ZONES else 0


def sealed_keys(zone: str) -> frozenset[str]:
    """The payload keys that a memory of the zone bears sealed only."""
    return _SENSITIVE if zone == SENSITIVE else _ALWAYS


def is_sealed_anywhere(keys: Iterable[str]) -> bool:
    """Whether some zone seals one of these payload keys."""
    return not _SENSITIVE.isdisjoint(keys)


def is_locked(payload: Mapping[str, Any]) -> bool:
    """Whether the payload bears its sealed text unopened: opening takes the text away."""
    return SEALED_KEY in payload


def envelope_of(payload: Mapping[str, Any]) -> Envelope | None:
    """The sealed text of a payload; None where there is none, or it is none of ours."""
    key_id, dot, text = str(payload.get(SEALED_KEY) or "").partition(".")
    try:
        return Envelope(key_id, base64.b64decode(text, validate=True)) if dot else None
    except binascii.Error:
        return None


def bound_to(scope: str, payload: Mapping[str, Any]) -> bytes:
    """The associated data of a memory's sealed text.

    Args:
        scope: what the agent's ids are made with.
    """
    parts = ("agentmemory memory 1", scope, payload["userId"], payload["id"], payload[ZONE_KEY])
    return "\x00".join(parts).encode()


def split(payload: Mapping[str, Any]) -> tuple[Payload, bytes]:
    """What of a payload lies open, and what is to be sealed, as JSON."""
    hidden = sealed_keys(payload[ZONE_KEY])
    inner = {key: value for key, value in payload.items() if key in hidden and value is not None}
    plain = {key: value for key, value in payload.items() if key not in hidden}
    return plain, json.dumps(inner, ensure_ascii=False, separators=(",", ":")).encode()


def joined(payload: Mapping[str, Any], inner: bytes) -> Payload:
    """A payload with what was sealed, and without the sealed text."""
    plain = {key: value for key, value in payload.items() if key not in (SEALED_KEY, KEY_MADE_KEY)}
    opened: Payload = json.loads(inner)
    return plain | opened


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
        raise Unreadable("not sealed with this key for this location, or changed") from exc


def keyed_hash(mac: bytes, text: str) -> str:
    """HMAC-SHA-256 in hex: who has no key cannot try words."""
    return hmac.new(mac, text.encode(), hashlib.sha256).hexdigest()
