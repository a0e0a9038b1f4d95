"""Encrypted payload fields by zone, and the associated data of the ciphertext."""

import pytest

from agentmemory_operator.memories.rules.record import PAYLOAD_KEYS, MemoryRecord, payload_of, record_of
from agentmemory_operator.zones.rules.sealing import (
    SEALED_KEY,
    ZONES,
    Envelope,
    associated_data,
    merge_decrypted,
    parse_envelope,
    rank_of,
    sealed_keys,
    split_encrypted,
)

MEMORY = MemoryRecord(
    id="m",
    agent_id="a",
    user_id="u",
    type="fact",
    content="text",
    created_at=1,
    updated_at=1,
    tags=("t",),
    metadata={"n": 1},
    key="k",
    subject="s",
    context="c",
    source_ids=("o",),
)


# Plain in every zone, as in docs/zones.md: type, owner, times and links.
OPEN = {
    "accessCount",
    "agentId",
    "author",
    "changedAt",
    "confidence",
    "consolidated",
    "consolidationRun",
    "contentHash",
    "conversationId",
    "createdAt",
    "decayRate",
    "expiresAt",
    "id",
    "identityId",
    "itemVersion",
    "importance",
    "lastAccessedAt",
    "lookupIds",
    "namespace",
    "observationCount",
    "observedBy",
    "parentId",
    "pending",
    "pinned",
    "requestHash",
    "requestId",
    "rev",
    "role",
    "sessionId",
    "sessionUsedAt",
    "storedAt",
    "supersededAt",
    "supersededById",
    "supersedesId",
    "supersedesIds",
    "type",
    "undistilled",
    "updateCount",
    "updatedAt",
    "userId",
    "validFrom",
    "validTo",
    "working",
    "zone",
}


def test_every_field_is_open_or_encrypted() -> None:
    fields = set(PAYLOAD_KEYS.values())

    assert fields - sealed_keys("SENSITIVE") <= OPEN, "name it as sealed in zones/rules/sealing.py, or here as open"
    assert sealed_keys("SENSITIVE").isdisjoint(OPEN)
    assert sealed_keys("PERSONAL") == sealed_keys("PROFESSIONAL") < sealed_keys("SENSITIVE")


@pytest.mark.parametrize("zone", ZONES)
def test_split_and_merge_round_trip(zone: str) -> None:
    payload = payload_of(MEMORY) | {"zone": zone}

    plain, inner = split_encrypted(payload)

    assert sealed_keys(zone).isdisjoint(plain)
    assert merge_decrypted(plain | {SEALED_KEY: "text"}, inner) == payload


def test_unopened_payload_is_a_locked_memory() -> None:
    plain, _ = split_encrypted(payload_of(MEMORY) | {"zone": "SENSITIVE"})

    record = record_of(plain | {SEALED_KEY: "text"})

    assert (record.locked, record.content, record.metadata, record.tags) == (True, "", {}, ())
    assert record_of(payload_of(MEMORY)) == MEMORY


def test_associated_data_covers_all_identifiers() -> None:
    payload = {"userId": "u", "id": "m", "zone": "PERSONAL"}

    others = [{"userId": "v"}, {"id": "n"}, {"zone": "SENSITIVE"}]
    bound = [
        associated_data("a", payload),
        associated_data("b", payload),
        *(associated_data("a", payload | other) for other in others),
    ]

    assert len(set(bound)) == len(bound)


@pytest.mark.parametrize("text", [None, "", "no dot", "id.not base64!", 7, ["id.QQ=="], "id.QQ=", "id.é"])
def test_malformed_text_has_no_envelope(text: object) -> None:
    assert parse_envelope({SEALED_KEY: text}) is None


def test_envelope_round_trip() -> None:
    envelope = Envelope("0123", b"\x00\xff")

    assert parse_envelope({SEALED_KEY: envelope.text()}) == envelope


def test_zones_are_ordered_from_none() -> None:
    assert [rank_of(zone) for zone in (None, "other", "PROFESSIONAL", "PERSONAL", "SENSITIVE")] == [0, 0, 1, 2, 3]
