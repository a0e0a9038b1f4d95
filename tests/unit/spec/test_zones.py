"""Privacy zones in force: the object's fields over the defaults."""

from typing import Any

import pytest

from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.zones import Zone, ZoneSettings
from tests.support.spec.golden import manifest

SECRET = {"keySecretRef": {"name": "zones"}}


def zones_of(**zones: Any) -> ZoneSettings | None:
    """Return the settings in force for an object with these zones."""
    return effective_settings(parse_agent_memory(manifest(zones=SECRET | zones))).zones


def test_object_has_no_zones_by_default() -> None:
    settings = effective_settings(parse_agent_memory(manifest()))

    assert settings.zones is None
    assert "zone" not in settings.indexes


def test_zone_is_indexed() -> None:
    settings = effective_settings(parse_agent_memory(manifest(zones=SECRET | {"allowed": ["PERSONAL"]})))

    assert settings.indexes["zone"] == "keyword"


def test_strictest_zone_has_no_vectors_by_default() -> None:
    """No zone has keywords by default."""
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
def test_field_overrides_its_default(zones: dict[str, Any], vectors: set[Zone], words: set[Zone]) -> None:
    settings = zones_of(**zones)

    assert settings is not None
    assert (settings.vectors, settings.words) == (vectors, words)


def test_previous_key_has_a_suffix() -> None:
    settings = zones_of(allowed=["PERSONAL"], keySecretRef={"name": "other", "key": "wrapping"})

    assert settings is not None
    assert (settings.secret_name, settings.secret_key, settings.previous_key) == (
        "other",
        "wrapping",
        "wrapping.previous",
    )


def test_longest_key_name_leaves_room_for_the_suffix() -> None:
    settings = zones_of(allowed=["PERSONAL"], keySecretRef={"name": "zones", "key": "k" * 244})

    assert settings is not None
    assert len(settings.previous_key) == 253


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-21T08:00:01Z", 1_795_248_001_000),
        ("2026-02-30T00:00:00Z", 1_772_409_600_000),
        ("2026-12-31T23:59:59Z", 1_798_761_599_000),
        ("1969-12-31T23:59:59Z", 0),
        ("1000-01-01T00:00:00Z", 0),
        ("2999-12-31T00:00:00Z", 32_503_593_600_000),
    ],
)
def test_rotation_time_is_parsed(text: str, ms: int) -> None:
    settings = zones_of(allowed=["PERSONAL"], rotateKeysBefore=text)

    assert settings is not None
    assert settings.rotate_before_ms == ms


@pytest.mark.parametrize(("more", "has_index"), [({}, False), ({"rotateKeysBefore": "2026-11-21T08:00:00Z"}, True)])
def test_key_age_is_indexed_during_a_rotation(more: dict[str, str], has_index: bool) -> None:
    zones = SECRET | {"allowed": ["PERSONAL"]} | more

    indexes = effective_settings(parse_agent_memory(manifest(zones=zones))).indexes

    assert (indexes.get("keyMadeAt") == "integer") is has_index
