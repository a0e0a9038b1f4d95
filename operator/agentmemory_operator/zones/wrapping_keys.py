"""The wrapping key of an agent, which encrypts its data keys in the key store. Its rotation changes no memory.

During a rotation there are two: the current key encrypts, both decrypt. They are read from the object's Secret, or from
the copy that the operator shares with the API.
"""

import base64
import binascii
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agentmemory_operator.connections.rules.host_lists import NOWHERE
from agentmemory_operator.errors import (
    DecryptionFailed,
    KeysUnavailable,
    LeadershipLost,
    SecretMissing,
    SpecInvalid,
    TransientError,
)
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.spec.zones import PREVIOUS_SUFFIX, ZoneSettings
from agentmemory_operator.zones.rules.entries import KEY_BYTES, KeyEntry
from agentmemory_operator.zones.rules.sealing import open_sealed, seal

WRAPPING_KEY_BYTES = 32
FIELD = "spec.zones.keySecretRef"
_MAX_CHARS = 256
_UNKNOWN_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class WrappingKeys:
    """The current wrapping key, and the previous one during a rotation.

    Attributes:
        current: 32 bytes.
        previous: 32 bytes, or None if no rotation is in progress.
    """

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the current key: 16 hex digits, which do not reveal the key."""
        return fingerprint_of(self.current)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of all keys that decrypt, the current one first."""
        return tuple(fingerprint_of(key) for key in (self.current, self.previous) if key is not None)

    def wrap(self, key_id: str, material: bytes, *, zone: str, scope: str, at: int) -> KeyEntry:
        """Encrypt a new data key with the current wrapping key; return its entry, which is active.

        Args:
            material: 64 bytes; any other length raises ValueError.
            at: Creation time in Unix milliseconds.
        """
        entry = KeyEntry(zone=zone, scope=scope, wrapped="", wrapping_fingerprint=self.fingerprint, created_ms=at)
        return self._wrapped(key_id, entry, material)

    def unwrap(self, key_id: str, entry: KeyEntry) -> bytes:
        """Decrypt a data key; return its 64 bytes.

        Raises:
            KeysUnavailable: If it uses another wrapping key, or its entry was modified.
        """
        for key in (self.current, *([self.previous] if self.previous else [])):
            if fingerprint_of(key) == entry.wrapping_fingerprint:
                return _opened(key, key_id, entry)
        raise KeysUnavailable(
            f"data key {key_id} uses wrapping key {entry.wrapping_fingerprint}, but {FIELD} has {self.fingerprint}:"
            f" add the previous one to the Secret under the key that ends in {PREVIOUS_SUFFIX!r}",
            retry_after_s=_UNKNOWN_RETRY_AFTER_S,
        )

    def rewrap(self, key_id: str, entry: KeyEntry) -> KeyEntry:
        """Return the entry with its data key encrypted with the current wrapping key; the same object if it already is.

        Raises:
            KeysUnavailable: If the entry uses neither the current nor the previous wrapping key, or was modified.
        """
        if entry.wrapping_fingerprint == self.fingerprint:
            return entry
        return self._wrapped(key_id, replace(entry, wrapping_fingerprint=self.fingerprint), self.unwrap(key_id, entry))

    def _wrapped(self, key_id: str, entry: KeyEntry, material: bytes) -> KeyEntry:
        if len(material) != KEY_BYTES:
            raise ValueError(f"a data key has {KEY_BYTES} bytes")
        sealed = seal(self.current, material, _bound_to(key_id, entry))
        return replace(entry, wrapped=base64.b64encode(sealed).decode())


def parse_wrapping_keys(current: str | None, previous: str | None, *, secret: str, key: str) -> WrappingKeys:
    """Parse the wrapping keys of a Secret.

    Args:
        current, previous: Values of the Secret, decoded from its base64; None if the Secret has no such entry.
        secret: Namespace and name of the Secret, for error messages.
        key: Name of the entry with the current key.

    Raises:
        SpecInvalid: If there is no current key (reason WrappingKeyMissing), or a key does not have 32 bytes
            (WrappingKeyInvalid). The message gives the remedy and quotes no value.
    """
    if current is None:
        raise SpecInvalid(
            "WrappingKeyMissing",
            f"{FIELD}: Secret {secret} has no key {key!r}: add the base64 of {WRAPPING_KEY_BYTES} random bytes, as"
            f" `openssl rand -base64 {WRAPPING_KEY_BYTES}` prints",
        )
    previous_key = None if previous is None else _decoded(previous, secret, key + PREVIOUS_SUFFIX)
    return WrappingKeys(_decoded(current, secret, key), previous_key)


def fingerprint_of(wrapping_key: bytes) -> str:
    """Return the first 16 hex digits of a wrapping key's SHA-256."""
    return hashlib.sha256(wrapping_key).hexdigest()[:16]


def _decoded(text: str, secret: str, key: str) -> bytes:
    try:
        value = base64.b64decode(text[:_MAX_CHARS].strip(), validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != WRAPPING_KEY_BYTES:
        raise SpecInvalid(
            "WrappingKeyInvalid",
            f"{FIELD}: key {key!r} of Secret {secret} is not the base64 of {WRAPPING_KEY_BYTES} bytes: use the "
            f"output of `openssl rand -base64 {WRAPPING_KEY_BYTES}`; keep the current one if data keys use it",
        )
    return value


def _opened(key: bytes, key_id: str, entry: KeyEntry) -> bytes:
    try:
        material = open_sealed(key, base64.b64decode(entry.wrapped), _bound_to(key_id, entry))
    except (DecryptionFailed, ValueError) as exc:
        raise KeysUnavailable(
            f"data key {key_id} was changed in storage: restore its shard from a backup",
            retry_after_s=_UNKNOWN_RETRY_AFTER_S,
        ) from exc
    return material


def _bound_to(key_id: str, entry: KeyEntry) -> bytes:
    """Return the associated data of a wrapped key, so that no key can replace another in the store.

    They do not name the agent: an administrator may copy the shards to another agent or cluster with the same wrapping
    key.
    """
    return "\n".join((key_id, entry.zone, entry.scope)).encode()


async def read_wrapping_keys(
    secrets: Secrets, namespace: str, zones: ZoneSettings, *, are_shared: bool = False
) -> WrappingKeys:
    """Read the current wrapping key, and the previous one if there is one.

    Args:
        namespace: Namespace of the object.
        are_shared: True if `secrets` holds copies that the operator shares. There a missing copy and a late one
            look the same, so if the previous key cannot be read, it counts as absent.

    Raises:
        SpecInvalid: Errors of `parse_wrapping_keys`.
        TransientError: If the keys cannot be read now, or were not shared yet.
    """
    current = previous = None
    with suppress(SecretMissing):
        current = await secrets.read(namespace, zones.secret_name, zones.secret_key, to=NOWHERE)
    try:
        # Ignore a missing previous key, which exists only during a rotation.
        with suppress(SecretMissing):
            previous = await secrets.read(namespace, zones.secret_name, zones.previous_key, to=NOWHERE)
    except TransientError as exc:
        if isinstance(exc, LeadershipLost) or not are_shared:
            raise
    return parse_wrapping_keys(current, previous, secret=f"{namespace}/{zones.secret_name}", key=zones.secret_key)
