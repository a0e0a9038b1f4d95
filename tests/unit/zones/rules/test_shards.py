"""Text form of a shard: its capacity, and the rejection of malformed text."""

import base64
import json
import os
from collections import Counter
from typing import Any

import pytest

from agentmemory_operator.zones.rules.entries import (
    LEVELS,
    MAX_SHARD_KEYS,
    KeyEntry,
    Ring,
    new_key_id,
    scope_hash,
    shard_at,
)
from agentmemory_operator.zones.rules.shards import (
    MAX_ENTRY_BYTES,
    MAX_SHARD_BYTES,
    Shard,
    parse_shard,
    render_shard,
)

RING = Ring("agents", "support-bot")


def entry(owner: str = "ada", zone: str = "PROFESSIONAL") -> KeyEntry:
    wrapped = base64.b64encode(os.urandom(92)).decode()
    return KeyEntry(
        zone=zone,
        scope=scope_hash(zone, owner),
        wrapped=wrapped,
        wrapping_fingerprint="0" * 16,
        created_ms=1_795_000_000_000,
    )


def shard(name: str = "0", keys: int = 3) -> Shard:
    return Shard(ring=RING, name=name, entries={new_key_id(name): entry(str(number)) for number in range(keys)})


def read(text: str, name: str = "0") -> Shard:
    return parse_shard(text, ring=RING, name=name, version="")


def test_round_trip() -> None:
    written = shard()

    assert read(render_shard(written)) == written


def test_shard_lists_its_children() -> None:
    above = shard("1a").with_child("1af").with_child("1a0").with_child("1af")

    assert (above.child_digits, above.has_child("1a0"), above.has_child("1a1")) == ("0f", True, False)
    assert read(render_shard(above), name="1a") == above
    assert read(render_shard(shard()).replace('"below":"",', "")).child_digits == ""


def test_full_shard_closes_and_stays_closed() -> None:
    grown = shard(keys=MAX_SHARD_KEYS - 2)
    grown = grown.with_key(new_key_id("0"), entry("x"))
    assert not grown.is_closed
    grown = grown.with_key(new_key_id("0"), entry("y"))
    assert grown.is_closed

    assert grown.without(lambda entry: entry.zone == "PROFESSIONAL").is_closed
    assert read(render_shard(grown)).is_closed


def test_shard_of_last_level_never_closes() -> None:
    assert not shard("3abc", MAX_SHARD_KEYS + 1).with_key(new_key_id("3abc"), entry("x")).is_closed


def test_full_shard_fits_a_secret() -> None:
    most = shard("3abc", MAX_SHARD_BYTES // MAX_ENTRY_BYTES)

    assert most.is_full
    assert not shard("3abc", MAX_SHARD_BYTES // MAX_ENTRY_BYTES - 1).is_full
    assert len(render_shard(most)) <= MAX_SHARD_BYTES + 100 < 1 << 20


def test_capacity_for_100_000_users() -> None:
    """Each user has keys in two zones. Only shards of the last level are open; none is near its size limit."""
    places: Counter[str] = Counter()
    for user in range(100_000):
        for zone in ("SENSITIVE", "PERSONAL"):
            scope = scope_hash(zone, f"user-{user}")
            open_level = next(
                level
                for level in range(LEVELS)
                if places[shard_at(scope, level)] < MAX_SHARD_KEYS or level == LEVELS - 1
            )
            places[shard_at(scope, open_level)] += 1

    assert len(places) == 1 + 16 + 256 + 4096
    assert max(places.values()) * MAX_ENTRY_BYTES < 32 * 1024


def whole() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(render_shard(shard()))
    return document


@pytest.mark.parametrize("change", [{"format": 2}, {"keys": []}, {"closed": "yes"}, {"keys": {"x": []}}])
def test_incomplete_shard_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^it "):
        read(json.dumps(whole() | change))


def test_keys_of_another_shard_are_rejected() -> None:
    with pytest.raises(ValueError, match="another shard"):
        read(render_shard(shard("1a")))


@pytest.mark.parametrize(("field", "value"), [(0, 7), (1, "short"), (2, "c2hvcnQ="), (3, ""), (4, "now"), (5, 2)])
def test_one_malformed_key_rejects_the_shard(field: int, value: object) -> None:
    document = whole()
    next(iter(document["keys"].values()))[field] = value

    with pytest.raises(ValueError, match="is malformed"):
        read(json.dumps(document))


@pytest.mark.parametrize("row", [[], {}, None, ["PERSONAL"]])
def test_key_has_six_fields(row: object) -> None:
    document = whole()
    document["keys"][new_key_id("0")] = row

    with pytest.raises(ValueError, match="six"):
        read(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_malformed_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(text)
