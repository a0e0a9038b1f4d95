"""Comparisons of a snapshot verification, and their findings."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.snapshots.rules.copy_verdict import (
    CLOCK_MARGIN_MS,
    SnapshotRecord,
    build_probe,
    build_probes,
    compare_checksum,
    compare_configuration,
    compare_count,
    compare_owner,
    hash_configuration,
    judge_probes,
    must_contain,
)
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, ScalarQuantization
from tests.support.spec.plans import (
    desired_of,
    with_changes,
)

LIVE = replace(desired_of(), strict_mode=(("enabled", True), ("max_query_limit", 100)))
MARKER = LIVE.marker
HASH = hash_configuration(LIVE)
WIDER = with_changes(LIVE, m=24)
LACKING = replace(LIVE, indexes=LIVE.indexes[1:])


@pytest.mark.parametrize(
    ("copy", "live", "recorded", "is_good", "words"),
    [
        (LIVE, LIVE, [HASH], (True, True), "match the record"),
        (LIVE, WIDER, [HASH], (True, True), "match the record"),
        (LIVE, None, [HASH], (True, True), "match the record"),
        (LIVE, LIVE, [], (True, True), "match the live collection"),
        (LIVE, None, [], (None, None), "no settings were recorded"),
        (WIDER, None, [HASH], (False, None), "the hash of its settings differs"),
        (WIDER, LIVE, [HASH], (False, True), "index.hnsw.m 24 instead of 16"),
        (LIVE, WIDER, ["other", HASH], (True, True), "match the record"),
        (WIDER, WIDER, [HASH], (False, True), "differ from the record"),
        (LACKING, LIVE, [HASH], (True, False), f"indexes differ from the live collection: {LIVE.indexes[0][0]}"),
        (LACKING, LIVE, [], (True, False), f"indexes differ from the live collection: {LIVE.indexes[0][0]}"),
    ],
)
def test_configuration_must_match_record_or_live(copy, live, recorded, is_good, words) -> None:
    """The record has precedence; without one the live collection decides."""

    findings = compare_configuration(copy, live, recorded)

    assert tuple(finding.is_good for finding in findings) == is_good
    assert words in "; ".join(finding.message for finding in findings)


def test_marker_is_not_part_of_the_hash() -> None:
    assert hash_configuration(replace(LIVE, marker=replace(MARKER, generation=99))) == HASH
    assert hash_configuration(replace(LIVE, marker=None)) == HASH


SHAPE = Collection(
    size=8,
    distance="Cosine",
    hnsw=Hnsw(m=16, ef_construct=128, full_scan_threshold_kb=10_000),
    optimizers=Optimizers(default_segment_number=2, indexing_threshold_kb=20_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    datatype="Float32",
    memory="Cached",
    payload_on_disk=True,
    shard_number=1,
    replication_factor=1,
    strict_mode=(("enabled", True),),
    indexes=(("userId", "keyword"),),
    has_keyword=True,
)


def test_hash_of_0_1_0_is_recognised() -> None:
    """If this fails, no older snapshot can be restored: also compare with a hash without the settings added later."""
    recorded = "1d01e68395fd2a6d"
    assert hash_configuration(SHAPE) == recorded
    assert compare_configuration(SHAPE, None, [recorded])[0].is_good
    assert compare_configuration(SHAPE, with_changes(SHAPE, m=24), [recorded])[0].is_good
    assert not compare_configuration(with_changes(SHAPE, m=24), None, [recorded])[0].is_good
    assert hash_configuration(replace(SHAPE, payload_on_disk=False)) != hash_configuration(SHAPE)


@pytest.mark.parametrize("other", [WIDER, LACKING, replace(LIVE, quantization=None), replace(LIVE, has_keyword=True)])
def test_hash_covers_the_configuration(other) -> None:
    assert hash_configuration(other) != HASH


@pytest.mark.parametrize(
    ("copy", "owner", "is_good"),
    [
        (MARKER, MARKER, True),
        (replace(MARKER, uid="recreated"), MARKER, True),
        (replace(MARKER, name="other"), MARKER, False),
        (replace(MARKER, cluster_id="other"), MARKER, False),
        (None, MARKER, None),
        (MARKER, None, None),
    ],
)
def test_snapshot_of_another_agent_is_detected(copy, owner, is_good) -> None:
    assert compare_owner(copy, owner).is_good is is_good


@pytest.mark.parametrize(
    ("copied", "before", "after", "deleted", "is_good"),
    [
        (10, 10, 10, 0, True),
        (9, 10, 10, 0, False),
        (11, 10, 10, 0, False),
        (12, 10, 15, 0, True),
        (16, 10, 15, 0, False),
        (9, 10, 15, 1, True),
        (8, 10, 15, 1, False),
        (16, 10, 15, 1, True),
        (8, 10, 7, 3, True),
        (0, 10, 10, None, False),
        (10, 10, 10, None, True),
        (0, None, 0, 0, None),
    ],
)
def test_count_is_within_recorded_range(copied, before, after, deleted, is_good) -> None:
    """Memories deleted during the snapshot widen the range."""

    assert compare_count(copied, SnapshotRecord(before=before, after=after), deleted).is_good is is_good


@pytest.mark.parametrize(("copied", "deleted", "is_good"), [(10, 0, True), (9, 0, False), (9, 1, True), (8, 1, False)])
def test_recorded_deletions_override_current_ones(copied: int, deleted: int, is_good: bool) -> None:
    finding = compare_count(copied, SnapshotRecord(before=10, after=10, deleted=deleted), 7)

    assert finding.is_good is is_good
    assert finding.message.endswith(", 1 deleted meanwhile" if deleted else "after it was made")


@pytest.mark.parametrize(
    ("updated_at", "was_in"),
    [(0, True), (1_000_000 - CLOCK_MARGIN_MS, False), (1_000_000, False), (None, False), ("0", False), (True, False)],
)
def test_only_older_points_must_be_contained(updated_at, was_in) -> None:
    """A snapshot must contain a point that is older by more than the clock margin."""

    assert must_contain(updated_at, 1_000_000) is was_in


def test_snapshot_without_time_must_contain_nothing() -> None:
    assert not must_contain(0, None)


@pytest.mark.parametrize(
    ("recorded", "told", "is_good"),
    [
        ("aa", "aa", True),
        ("aa", None, True),
        (None, "aa", True),
        ("bb", "aa", False),
        ("aa", "bb", False),
        (None, None, None),
    ],
)
def test_checksum_must_match_record_and_listing(recorded, told, is_good) -> None:
    assert compare_checksum("aa", recorded=recorded, listed=told, size=9).is_good is is_good


def point(id_: str, *, vector: Any = (0.1, 0.2), **changes: Any) -> dict[str, Any]:
    return {"id": id_, "payload": {"userId": "ada"} | changes, "vector": vector}


def test_probes_use_equal_points_with_vectors() -> None:
    points = [point("a"), point("b", vector=None), point("c", deletedAt=1), point("d"), point("e"), point("f")]

    probes = build_probes(points, ("a", "b", "c", "e", "f"), max_probes=2)

    assert probes == [build_probe(found, ["a", "b", "e", "f"]) for found in (points[0], points[4])]


def test_probe_is_exact_and_covers_its_user() -> None:
    probe = build_probe(point("a"), ["a", "b"])

    assert probe["params"] == {"exact": True}
    assert probe["limit"] == 2
    assert probe["filter"]["must"][1] == {"key": "userId", "match": {"value": "ada"}}


@pytest.mark.parametrize(
    ("searches", "differing", "refused", "is_good"),
    [(8, [], "", True), (8, ["a"], "", False), (0, [], "", None), (0, [], "strict mode", None)],
)
def test_failed_searches_prove_nothing(searches, differing, refused, is_good) -> None:
    assert judge_probes(searches, differing, refused=refused).is_good is is_good
