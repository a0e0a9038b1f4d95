"""Privacy zones in force: the object's words over the defaults."""

from typing import Any

import pytest

from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.zones import Zone, ZoneSettings
from tests.support.spec.golden import manifest

SECRET = {"keySecretRef": {"name": "zones"}}


def zones_of(**zones: Any) -> ZoneSettings | None:
    """Return what is in force of an object with these zones."""
    return effective_settings(parse_agent_memory(manifest(zones=SECRET | zones))).zones


def test_an_object_has_no_zones_by_default() -> None:
    settings = effective_settings(parse_agent_memory(manifest()))

    assert settings.zones is None
    assert "zone" not in settings.indexes


def test_memories_are_found_by_zone() -> None:
    settings = effective_settings(parse_agent_memory(manifest(zones=SECRET | {"allowed": ["PERSONAL"]})))

    assert settings.indexes["zone"] == "keyword"


def test_the_strictest_zone_has_no_vectors_and_none_has_words_unless_the_object_says_so() -> None:
    assert zones_of(allowed=["SENSITIVE", "PERSONAL", "PROFESSIONAL"], organisation="acme") == ZoneSettings(
        allowed=frozenset(Zone),
        vectors=frozenset({Zone.PERSONAL, Zone.PROFESSIONAL}),
        words=frozenset(),
        organisation="acme",
        secret_name="zones",
        secret_key="key",
    )


@pytest.mark.parametrize(
    ("zones", "vectors", "words"),
    [
        ({"allowed": ["SENSITIVE"]}, set(), set()),
        ({"allowed": ["SENSITIVE", "PERSONAL"]}, {Zone.PERSONAL}, set()),
        ({"allowed": ["SENSITIVE", "PERSONAL"], "vectors": ["SENSITIVE"]}, {Zone.SENSITIVE}, set()),
        ({"allowed": ["PERSONAL"], "vectors": []}, set(), set()),
        ({"allowed": ["PERSONAL"], "words": ["PERSONAL"]}, {Zone.PERSONAL}, {Zone.PERSONAL}),
    ],
)
def test_a_field_holds_over_its_default(zones: dict[str, Any], vectors: set[Zone], words: set[Zone]) -> None:
    settings = zones_of(**zones)

    assert settings is not None
    assert (settings.vectors, settings.words) == (vectors, words)


def test_the_key_before_lies_beside_the_one_in_force() -> None:
    settings = zones_of(allowed=["PERSONAL"], keySecretRef={"name": "other", "key": "wrapping"})

    assert settings is not None
    assert (settings.secret_name, settings.secret_key, settings.previous_key) == (
        "other",
        "wrapping",
        "wrapping.previous",
    )


def test_a_key_with_the_longest_name_leaves_room_for_the_one_before() -> None:
    settings = zones_of(allowed=["PERSONAL"], keySecretRef={"name": "zones", "key": "k" * 244})

    assert settings is not None
    assert len(settings.previous_key) == 253


@pytest.mark.parametrize(
    ("told", "ms"),
    [
        ("2026-11-21T08:00:01Z", 1_795_248_001_000),
        ("2026-02-30T00:00:00Z", 1_772_409_600_000),
        ("2026-12-31T23:59:59Z", 1_798_761_599_000),
        ("1969-12-31T23:59:59Z", 0),
        ("1000-01-01T00:00:00Z", 0),
        ("2999-12-31T00:00:00Z", 32_503_593_600_000),
    ],
)
def test_keys_are_replaced_that_were_made_before_a_time(told: str, ms: int) -> None:
    settings = zones_of(allowed=["PERSONAL"], rotateKeysBefore=told)

    assert settings is not None
    assert settings.rotate_before_ms == ms


@pytest.mark.parametrize(("more", "has_index"), [({}, False), ({"rotateKeysBefore": "2026-11-21T08:00:00Z"}, True)])
def test_memories_are_found_by_the_age_of_their_keys_where_keys_are_replaced(
    more: dict[str, str], has_index: bool
) -> None:
    zones = SECRET | {"allowed": ["PERSONAL"]} | more

    indexes = effective_settings(parse_agent_memory(manifest(zones=zones))).indexes

    assert (indexes.get("keyMadeAt") == "integer") is has_index
