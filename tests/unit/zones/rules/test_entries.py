"""Key ids, shard names, and key rings."""

import pytest

from agentmemory_operator.zones.rules.entries import (
    LEVELS,
    KeyEntry,
    Ring,
    find_active_key_id,
    new_key_id,
    scope_hash,
    shard_at,
    shard_of_key,
)
from agentmemory_operator.zones.rules.shards import is_shard_name


def test_key_id_contains_its_shard() -> None:
    scope = scope_hash("PERSONAL", "ada")

    for level in range(LEVELS):
        shard = shard_at(scope, level)
        assert is_shard_name(shard)
        assert shard_of_key(new_key_id(shard)) == shard


def test_ids_are_random() -> None:
    assert len({new_key_id("3abc") for _ in range(1000)}) == 1000


@pytest.mark.parametrize("text", ["", "0", "4" + "0" * 31, "0" * 33, "../../x", "0" * 31 + "G", "\u0660" * 32])
def test_invalid_key_id_has_no_shard(text: str) -> None:
    assert shard_of_key(text) is None


def test_scope_hash_separates_zone_and_owner() -> None:
    assert scope_hash("PERSONAL", "ada") != scope_hash("PERSONALada", "")
    assert scope_hash("PERSONAL", "ada") != scope_hash("SENSITIVE", "ada")


@pytest.mark.parametrize(
    ("namespace", "agent"),
    [("agents", "../other"), ("agents", ""), ("", "bot"), ("a/b", "bot"), ("agents", "Bot"), ("agents", "b" * 49)],
)
def test_invalid_ring_is_rejected(namespace: str, agent: str) -> None:
    with pytest.raises(ValueError, match="not a key ring"):
        Ring(namespace, agent)


def test_newest_active_key_encrypts() -> None:
    mine, other = scope_hash("PERSONAL", "ada"), scope_hash("PERSONAL", "bob")
    entries = {
        "1": KeyEntry(zone="PERSONAL", scope=mine, wrapped="", wrapping_fingerprint="", created_ms=1),
        "2": KeyEntry(zone="PERSONAL", scope=mine, wrapped="", wrapping_fingerprint="", created_ms=3),
        "3": KeyEntry(zone="PERSONAL", scope=mine, wrapped="", wrapping_fingerprint="", created_ms=4, is_active=False),
        "4": KeyEntry(zone="PERSONAL", scope=other, wrapped="", wrapping_fingerprint="", created_ms=5),
    }

    assert find_active_key_id(entries, mine) == "2"
    assert find_active_key_id(entries, scope_hash("SENSITIVE", "ada")) is None
