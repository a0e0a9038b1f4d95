"""What a webhook is told: events made of the change log and of cleanups, and the headers that sign them. Pure.

The signature is that of the Standard Webhooks: `v1,` and the Base64 of HMAC-SHA256 over id, time and body.
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

from agentmemory_operator.memories.rules.change_log import Change, Kind
from agentmemory_operator.spec.times import render_time

KEPT_MS = 72 * 3_600_000
"""An event that is older is not sent any more: it is dropped, and counted."""

FIRST_RETRY_S, LAST_RETRY_S = 10.0, 3_600.0
LEAST_KEY_BYTES = 24
REPLAYED_S = 300
# Room for the signatures by several keys, of which senders make some while they change theirs.
MAX_SIGNATURES_CHARS = 1024
_ID = re.compile(r"[!-~]{1,128}")
_SECONDS = re.compile(r"[0-9]{1,12}")
SECRET_PREFIX = "whsec_"  # what a secret begins with, and none

_EVENTS: Mapping[Kind, str] = {"superseded": "memory_superseded", "forgotten": "erased", "restored": "restored"}


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """One event, as every attempt sends it.

    Attributes:
        id: tells it from every other; the same in each attempt, and by another operator.
        at_ms: when it happened, Unix milliseconds.
    """

    id: str
    name: str
    at_ms: int
    data: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        """What is posted."""
        told = {"type": self.name, "timestamp": render_time(self.at_ms), "data": dict(self.data)}
        return json.dumps(told, separators=(",", ":")).encode()

    def headers(self, key: bytes, now_s: int) -> dict[str, str]:
        """What says that it is ours, and sent now."""
        return {
            "Content-Type": "application/json",
            "webhook-id": self.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature_of(key, self.id, str(now_s), self.body),
        }


def event_of(change: Change, uid: str, slug: str) -> WebhookEvent | None:
    """The event that a change is; None where it is none."""
    name = _EVENTS.get(change.kind)
    if name is None:
        return None
    data = {"agent": slug, "id": change.id, "user_id": change.user_id}
    return WebhookEvent(_id(uid, name, change.id, str(change.at)), name, change.at, data)


def cleanup_event(last: Mapping[str, Any], at_ms: int, uid: str, slug: str) -> WebhookEvent:
    """The event that a cleanup is.

    Args:
        last: `status.lastCleanup`.
    """
    data = {"agent": slug, "removed": last.get("removed") or 0}
    return WebhookEvent(_id(uid, "cleanup_done", str(last.get("time"))), "cleanup_done", at_ms, data)


def key_of(secret: str) -> bytes | None:
    """The key that a Secret holds; None where it is too short, or no Base64 after whsec_."""
    text = secret.strip()
    try:
        key = (
            base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
            if text.startswith(SECRET_PREFIX)
            else text.encode()
        )
    except (binascii.Error, ValueError):
        return None
    return key if len(key) >= LEAST_KEY_BYTES else None


def signature_of(key: bytes, id_: str, time_s: str, body: bytes) -> str:
    """The signature of a message, as its header has it."""
    signed = b".".join((id_.encode(), time_s.encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def is_signed(key: bytes, headers: Mapping[str, str], body: bytes, now_s: int) -> bool:
    """Whether a message was signed with the key, less than five minutes before or after now."""
    id_, time_s = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not _ID.fullmatch(id_) or not _SECONDS.fullmatch(time_s) or abs(int(time_s) - now_s) > REPLAYED_S:
        return False
    wanted = signature_of(key, id_, time_s, body).encode()
    sent = headers.get("webhook-signature", "").encode()[:MAX_SIGNATURES_CHARS].split(b" ")
    return any(hmac.compare_digest(one, wanted) for one in sent)


def retry_s(attempts: int) -> float:
    """How long after a failed attempt the next is made: 10 s, twice as long each time, an hour at most."""
    return min(FIRST_RETRY_S * 2.0 ** min(attempts - 1, 20), LAST_RETRY_S)


def _id(*parts: str) -> str:
    return f"msg_{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}"
