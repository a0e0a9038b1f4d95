"""The wrapping key of an agent: it encrypts data keys where they are kept, and its rotation touches no memory.

While it is rotated there are two: the current one wraps, both unwrap. The Secret of the object holds them, or the
operator handed them over.
"""

import base64
import binascii
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agentmemory_operator.connections.rules.secret_hosts import NOWHERE
from agentmemory_operator.errors import (
    KeysUnavailable,
    LeadershipLost,
    SecretMissing,
    SpecInvalid,
    TransientError,
    Unreadable,
)
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.spec.zones import PREVIOUS_SUFFIX, ZoneSettings
from agentmemory_operator.zones.rules.entries import KEY_BYTES, KeyEntry
from agentmemory_operator.zones.rules.sealing import open_sealed, seal

WRAPPING_KEY_BYTES = 32
FIELD = "spec.zones.keySecretRef"
_MOST_CHARS = 256
_UNKNOWN_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class WrappingKeys:
    """The wrapping key in force, and the one of before while it is rotated.

    Attributes:
        current: 32 bytes.
        previous: 32 bytes, None while nothing is rotated.
    """

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> str:
        """Tells the current one from others, and says nothing of it: 16 hex digits."""
        return fingerprint_of(self.current)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Those of all that unwrap."""
        return tuple(fingerprint_of(key) for key in (self.current, self.previous) if key is not None)

    def wrap(self, key_id: str, material: bytes, *, zone: str, scope: str, at: int) -> KeyEntry:
        """The entry of a new data key, active.

        Args:
            material: 64 bytes.
            at: Unix milliseconds.
        """
        entry = KeyEntry(zone=zone, scope=scope, wrapped="", by=self.fingerprint, at=at)
        return self._wrapped(key_id, entry, material)

    def unwrap(self, key_id: str, entry: KeyEntry) -> bytes:
        """The 64 bytes of a data key.

        Raises:
            KeysUnavailable: it is under another wrapping key, or the entry was changed.
        """
        for key in (self.current, *([self.previous] if self.previous else [])):
            if fingerprint_of(key) == entry.by:
                return _opened(key, key_id, entry)
        raise KeysUnavailable(
            f"data key {key_id} uses wrapping key {entry.by}, but {FIELD} has {self.fingerprint}: add the previous one"
            f" to the Secret under the key that ends in {PREVIOUS_SUFFIX!r}",
            retry_after_s=_UNKNOWN_RETRY_AFTER_S,
        )

    def rewrap(self, key_id: str, entry: KeyEntry) -> KeyEntry:
        """The entry under the current wrapping key; itself where it is already.

        Raises:
            KeysUnavailable: it is under neither of both.
        """
        if entry.by == self.fingerprint:
            return entry
        return self._wrapped(key_id, replace(entry, by=self.fingerprint), self.unwrap(key_id, entry))

    def _wrapped(self, key_id: str, entry: KeyEntry, material: bytes) -> KeyEntry:
        if len(material) != KEY_BYTES:
            raise ValueError(f"a data key has {KEY_BYTES} bytes")
        sealed = seal(self.current, material, _bound_to(key_id, entry))
        return replace(entry, wrapped=base64.b64encode(sealed).decode())


def wrapping_keys(current: str | None, previous: str | None, *, secret: str, key: str) -> WrappingKeys:
    """The wrapping keys that a Secret holds.

    Args:
        current, previous: its values, decoded as a Secret's are; None where it has no such entry.
        secret: namespace and name of the Secret, for people.
        key: the entry of the current one.

    Raises:
        SpecInvalid: WrappingKeyMissing, or WrappingKeyInvalid; says what to do, and nothing of the value.
    """
    if current is None:
        raise SpecInvalid(
            "WrappingKeyMissing",
            f"{FIELD}: Secret {secret} has no key {key!r}: add the base64 of {WRAPPING_KEY_BYTES} random bytes, as"
            f" `openssl rand -base64 {WRAPPING_KEY_BYTES}` prints",
        )
    before = None if previous is None else _decoded(previous, secret, key + PREVIOUS_SUFFIX)
    return WrappingKeys(_decoded(current, secret, key), before)


def fingerprint_of(wrapping_key: bytes) -> str:
    """Tells a wrapping key from others: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(wrapping_key).hexdigest()[:16]


def _decoded(text: str, secret: str, key: str) -> bytes:
    try:
        value = base64.b64decode(text[:_MOST_CHARS].strip(), validate=True)
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
    except (Unreadable, ValueError) as exc:
        raise KeysUnavailable(
            f"data key {key_id} was changed in storage: restore its shard from a backup",
            retry_after_s=_UNKNOWN_RETRY_AFTER_S,
        ) from exc
    return material


def _bound_to(key_id: str, entry: KeyEntry) -> bytes:
    """What a wrapped key is bound to: nobody can put it in another's place.

    The agent is not part of it: an administrator may copy the shards to another agent, or to another cluster, that has
    the wrapping key too.
    """
    return "\n".join((key_id, entry.zone, entry.scope)).encode()


async def read_wrapping_keys(
    secrets: Secrets, namespace: str, zones: ZoneSettings, *, are_handed_over: bool = False
) -> WrappingKeys:
    """The wrapping key in force, and the one of before where there is one.

    Args:
        namespace: the object's.
        are_handed_over: of what the operator hands over nobody can tell what is missing and what is late, so that the
            one of before counts as missing; who needs it reads it again.

    Raises:
        SpecInvalid: WrappingKeyMissing or WrappingKeyInvalid; says what to do.
        TransientError: they cannot be read for now, or were not handed over.
    """
    current = previous = None
    with suppress(SecretMissing):
        current = await secrets.read(namespace, zones.secret_name, zones.secret_key, to=NOWHERE)
    try:
        # It is there only while the key is rotated.
        with suppress(SecretMissing):
            previous = await secrets.read(namespace, zones.secret_name, zones.previous_key, to=NOWHERE)
    except TransientError as exc:
        if isinstance(exc, LeadershipLost) or not are_handed_over:
            raise
    return wrapping_keys(current, previous, secret=f"{namespace}/{zones.secret_name}", key=zones.secret_key)
