"""Build webhook events from changes and cleanups, sign them, and verify signatures. Pure.

Signatures follow the Standard Webhooks specification: `v1,` and the Base64 of HMAC-SHA256 over id, time and body.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.memories.rules.change_entries import Change, Kind
from agentmemory_operator.spec.times import render_time

MAX_EVENT_AGE_MS = 72 * 3_600_000
"""Age above which an event is dropped and counted instead of sent."""

FIRST_RETRY_S, MAX_RETRY_S = 10.0, 3_600.0
MIN_KEY_BYTES = 24
MAX_CLOCK_SKEW_S = 300
# Bytes of the header that are compared; the rest is ignored. Senders add a signature for each key during a rotation.
MAX_SIGNATURES_CHARS = 1024
_ID = re.compile(r"[!-~]{1,128}")
_SECONDS = re.compile(r"[0-9]{1,12}")
SECRET_PREFIX = "whsec_"  # prefix of a Base64 secret in Standard Webhooks

_EVENTS: Mapping[Kind, str] = {"superseded": "memory_superseded", "forgotten": "erased", "restored": "restored"}


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """Event to deliver. Its body is the same in every attempt.

    Attributes:
        id: Hash of object uid, event name, and change or cleanup: the same in every attempt, from every operator.
        name: Type of the event, such as `erased`, as in `spec.webhooks[].events`.
        at_ms: Time of the event in Unix milliseconds.
        data: Object of the JSON body that describes the event.
    """

    id: str
    name: str
    at_ms: int
    data: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        """JSON body of the request: `type`, `timestamp` (RFC 3339 with milliseconds) and `data`."""
        document = {"type": self.name, "timestamp": render_time(self.at_ms), "data": dict(self.data)}
        return json.dumps(document, separators=(",", ":")).encode()

    def headers(self, key: bytes, now_s: int) -> dict[str, str]:
        """Return the headers of an attempt at `now_s` (Unix seconds), with the signature of its id, time and body."""
        return {
            "Content-Type": "application/json",
            "webhook-id": self.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": sign(key, self.id, str(now_s), self.body),
        }


def to_event(change: Change, uid: str, slug: str) -> WebhookEvent | None:
    """Convert a change to an event; None if webhooks do not report its kind.

    Args:
        uid: Uid of the AgentMemory, so that a recreated object sends other ids.
    """
    name = _EVENTS.get(change.kind)
    if name is None:
        return None
    data = {"agent": slug, "id": change.id, "user_id": change.user_id}
    return WebhookEvent(_id(uid, name, change.id, str(change.at)), name, change.at, data)


def cleanup_event(last: Mapping[str, Any], at_ms: int, uid: str, slug: str) -> WebhookEvent:
    """Build the event of a completed cleanup.

    Args:
        last: `status.lastCleanup` of the object.
        at_ms: Time of the cleanup in Unix milliseconds.
    """
    data = {"agent": slug, "removed": last.get("removed") or 0}
    return WebhookEvent(_id(uid, "cleanup_done", str(last.get("time"))), "cleanup_done", at_ms, data)


def decode_key(secret: str) -> bytes | None:
    """Decode a signing key; None if it has fewer than 24 bytes, or the text after `whsec_` is not Base64."""
    text = secret.strip()
    try:
        key = (
            base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
            if text.startswith(SECRET_PREFIX)
            else text.encode()
        )
    except (binascii.Error, ValueError):
        return None
    return key if len(key) >= MIN_KEY_BYTES else None


def sign(key: bytes, id_: str, time_s: str, body: bytes) -> str:
    """Return the signature of a message, as the value of the header `webhook-signature`.

    Args:
        time_s: Time of the attempt in Unix seconds, as in the header `webhook-timestamp`.
    """
    signed = b".".join((id_.encode(), time_s.encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def verify_signature(key: bytes, headers: Mapping[str, str], body: bytes, now_s: int) -> bool:
    """Return whether a message has a valid signature and a time at most five minutes from now.

    False too if the id is empty, longer than 128 characters or not visible ASCII.

    Args:
        now_s: Current time in Unix seconds.
    """
    id_, time_s = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not _ID.fullmatch(id_) or not _SECONDS.fullmatch(time_s) or abs(int(time_s) - now_s) > MAX_CLOCK_SKEW_S:
        return False
    expected = sign(key, id_, time_s, body).encode()
    signatures = headers.get("webhook-signature", "").encode()[:MAX_SIGNATURES_CHARS].split(b" ")
    return any(hmac.compare_digest(signature, expected) for signature in signatures)


def retry_delay_s(attempts: int) -> float:
    """Return the delay in seconds after consecutive failures: 10 s, doubled for each further failure, at most an hour.

    Args:
        attempts: Number of consecutive failures, from 1.
    """
    return min(FIRST_RETRY_S * 2.0 ** min(attempts - 1, 20), MAX_RETRY_S)


def _id(*parts: str) -> str:
    return f"msg_{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}"
