"""Checks of a restore: rejections with reason and remedy, names, records, and the step to resume."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.collection import Collection, Marker
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildRecord
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.restores.rules.swap_checks import (
    MAX_RECORDS,
    PendingRestore,
    RestoreIdentity,
    RestoreRecord,
    SwapStep,
    check_fit,
    check_origin,
    check_size,
    check_swappable,
    check_url,
    digest_of,
    find_preceding,
    find_record,
    mark_rolled_back,
    merge_records,
    parse_records,
    records_to_json,
    resume_at,
)
from agentmemory_operator.snapshots.rules.facts import check_version
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import next_physical
from tests.support.spec.plans import (
    ALIAS,
    desired_of,
    observed_of,
    with_changes,
)

SHA = "ab" * 32
DESIRED = desired_of()


def ours() -> Marker:
    """Return the marker of the AgentMemory that is restored."""
    assert DESIRED.marker is not None
    return DESIRED.marker


class TestVersion:
    @pytest.mark.parametrize(
        ("made_by", "runs"),
        [("1.18.3", "1.18.3"), ("1.18.0", "1.18.3"), ("v1.18.1", "1.18.3-dev"), (None, "1.18.3"), ("?", "1.18.3")],
    )
    def test_compatible_or_unknown_version_is_allowed(self, made_by: str | None, runs: str) -> None:
        """Compatible is the same minor version without a later patch."""

        check_version(made_by, runs)

    @pytest.mark.parametrize("made_by", ["1.17.9", "1.19.0", "1.18.4", "2.18.3"])
    def test_other_version_is_rejected_with_remedy(self, made_by: str) -> None:
        with pytest.raises(SpecInvalid, match=f"from Qdrant {made_by}, but the server runs 1.18.3") as caught:
            check_version(made_by, "1.18.3")

        assert caught.value.reason == Reason.VERSION_MISMATCH
        assert "Choose a snapshot from this version" in str(caught.value)


class TestOrigin:
    @pytest.mark.parametrize("is_named", [True, False])
    def test_own_or_unmarked_snapshot_is_allowed(self, is_named: bool) -> None:
        check_origin(replace(ours(), uid="of-its-time"), ours(), is_from_snapshot_object=is_named, takeover=None)
        check_origin(None, ours(), is_from_snapshot_object=is_named, takeover=None)

    def test_snapshot_object_of_same_namespace_is_allowed(self) -> None:
        check_origin(replace(ours(), name="another"), ours(), is_from_snapshot_object=True, takeover=None)

    def test_file_of_same_namespace_needs_annotation(self) -> None:
        marker = replace(ours(), uid="theirs", name="another")

        with pytest.raises(NotOwned, match=r"agentmemory\.dev/takeover=theirs on this object") as caught:
            check_origin(marker, ours(), is_from_snapshot_object=False, takeover=TakeoverTerms(annotation="somebody"))

        assert caught.value.reason == Reason.SNAPSHOT_NOT_OWNED
        check_origin(marker, ours(), is_from_snapshot_object=False, takeover=TakeoverTerms(annotation="theirs"))

    @pytest.mark.parametrize("other", [{"cluster_id": "old"}, {"namespace": "alpha"}, {"cluster_id": "", "name": ""}])
    @pytest.mark.parametrize("is_named", [True, False])
    def test_foreign_snapshot_is_rejected_without_owner(self, other: dict[str, str], is_named: bool) -> None:
        """The annotation does not help, and the message does not name the owner."""

        marker = replace(ours(), uid="theirs", **other)

        with pytest.raises(NotOwned, match=r"spec\.takeovers of its QdrantConnection") as caught:
            check_origin(marker, ours(), is_from_snapshot_object=is_named, takeover=TakeoverTerms(annotation="theirs"))

        assert not any(word in str(caught.value) for word in ("theirs", "alpha", "old"))

    def test_snapshot_without_uid_cannot_be_taken_over(self) -> None:
        with pytest.raises(NotOwned):
            check_origin(
                replace(ours(), name="another", uid=""), ours(), is_from_snapshot_object=False, takeover=TakeoverTerms()
            )


def other_model(collection: Collection) -> Collection:
    """Return the collection with another embedding model of the same size."""
    assert collection.marker is not None
    embedding = replace(collection.marker.embedding, model="another")
    return replace(collection, marker=replace(collection.marker, embedding=embedding))


UNFIT = {
    "embedding.dimensions": replace(DESIRED, size=DESIRED.size + 1),
    "index.distance": replace(DESIRED, distance="Dot"),
    "embedding.model": other_model(DESIRED),
}

REBUILT = RebuildRecord(source=f"{ALIAS}__1", target=f"{ALIAS}__2", digest="d", started_ms=1, since_ms=1)


class TestFit:
    @pytest.mark.parametrize(("field", "shape"), UNFIT.items())
    def test_different_vectors_are_rejected_by_field(self, field: str, shape: Collection) -> None:
        with pytest.raises(SpecInvalid, match=f"the snapshot has {field}") as caught:
            check_fit(DESIRED, observed_of(shape), observed_of(DESIRED))

        assert caught.value.reason == Reason.SNAPSHOT_UNFIT

    @pytest.mark.parametrize("shape", UNFIT.values())
    def test_shape_of_live_collection_is_allowed(self, shape: Collection) -> None:
        check_fit(DESIRED, observed_of(shape), observed_of(shape))

    def test_spec_decides_without_live_collection(self) -> None:
        check_fit(DESIRED, observed_of(with_changes(DESIRED, m=4, indexes=())), None)
        with pytest.raises(SpecInvalid):
            check_fit(DESIRED, observed_of(other_model(DESIRED)), None)

    def test_different_size_is_rejected_early(self) -> None:
        check_size(DESIRED, dimensions=None)
        check_size(DESIRED, dimensions=DESIRED.size)
        with pytest.raises(SpecInvalid, match=r"embedding\.dimensions 7 "):
            check_size(DESIRED, dimensions=7, live=observed_of(DESIRED))

    def test_rejection_after_rebuild_suggests_rollback(self) -> None:
        live = observed_of(DESIRED, physical=f"{ALIAS}__2", record=REBUILT)

        with pytest.raises(SpecInvalid, match=f"rebuilt from {ALIAS}__1: for an older snapshot, roll the"):
            check_fit(DESIRED, observed_of(other_model(DESIRED)), live)
        with pytest.raises(SpecInvalid, match="agentmemory rebuild NAME --rollback"):
            check_size(DESIRED, dimensions=7, live=live)

    @pytest.mark.parametrize(
        "record", [replace(REBUILT, kind=RebuildKind.ROLLBACK), replace(REBUILT, target=f"{ALIAS}__9")]
    )
    def test_rejection_without_rebuild_has_no_rollback(self, record: RebuildRecord) -> None:
        with pytest.raises(SpecInvalid) as caught:
            check_size(DESIRED, dimensions=7, live=observed_of(DESIRED, physical=f"{ALIAS}__2", record=record))

        assert "rollback" not in str(caught.value)

    def test_size_before_pending_rebuild_is_allowed(self) -> None:
        live = observed_of(replace(DESIRED, size=7))

        check_size(DESIRED, dimensions=7, live=live)
        with pytest.raises(SpecInvalid, match=r"embedding\.dimensions 6 "):
            check_size(DESIRED, dimensions=6, live=live)

    def test_plain_collection_cannot_be_swapped(self) -> None:
        check_swappable(ALIAS, None)
        check_swappable(ALIAS, observed_of(DESIRED, physical=f"{ALIAS}__1"))
        with pytest.raises(SpecInvalid, match="mode InPlace"):
            check_swappable(ALIAS, observed_of(DESIRED, physical=ALIAS, is_aliased=False))


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "hosts"),
        [
            ("https://backups.example.com/a.snapshot", ["backups.example.com"]),
            ("https://backups.example.com:443/a", ["other", "BACKUPS.example.com"]),
            ("https://backups.example.com:8443/a", ["backups.example.com:8443"]),
        ],
    )
    def test_listed_host_with_checksum_is_allowed(self, url: str, hosts: list[str]) -> None:
        check_url(url, SHA, hosts=hosts)

    @pytest.mark.parametrize(
        "url",
        [
            "http://backups.example.com/a",
            "file:///qdrant/snapshots/a",
            "https://backups.example.com.evil.example/a",
            "https://backups.example.com:8443/a",
            "https://backups.example.com@evil.example/a",
            "https://user:word@backups.example.com/a",
            "https://backups.example.com:port/a",
            "https:///a",
            "https://[::1/a",
        ],
    )
    def test_other_url_is_rejected(self, url: str) -> None:
        with pytest.raises(SpecInvalid) as caught:
            check_url(url, SHA, hosts=["backups.example.com"])

        assert caught.value.reason == Reason.SOURCE_NOT_ALLOWED
        assert "word" not in str(caught.value).replace("password", "")

    @pytest.mark.parametrize("sha256", [None, "", "AB" * 32, "ab"])
    def test_url_without_checksum_is_rejected(self, sha256: str | None) -> None:
        with pytest.raises(SpecInvalid, match=r"source\.sha256"):
            check_url("https://backups.example.com/a", sha256, hosts=["backups.example.com"])

    def test_empty_or_invalid_host_list_allows_nothing(self) -> None:
        for hosts in ([], ["", ":", "@", "[::1"]):
            with pytest.raises(SpecInvalid):
                check_url("https://backups.example.com/a", SHA, hosts=hosts)


class TestNames:
    @pytest.mark.parametrize(
        ("names", "number"),
        [
            ([], 1),
            ([f"{ALIAS}__1"], 2),
            ([f"{ALIAS}__3", f"{ALIAS}__1", None, ""], 4),
            ([f"{ALIAS}x__9", f"{ALIAS}__x", f"{ALIAS}__", f"{ALIAS}__7__8", ALIAS, f"{ALIAS}__\u0663"], 1),
        ],
    )
    def test_next_number_exceeds_all_known(self, names: list[str | None], number: int) -> None:
        assert next_physical(ALIAS, names) == f"{ALIAS}__{number}"


def record(name: str, *, applied_at: str = "2026-11-22T08:00:00Z", digest: str = "d") -> RestoreRecord:
    """Return the record of a restore."""
    identity = RestoreIdentity(namespace="agents", name=name, digest=digest)
    return RestoreRecord(identity=identity, source="snapshot a", applied_at=applied_at)


class TestRecords:
    def test_round_trip(self) -> None:
        records = (record("a"), replace(record("b"), rolled_back=True))

        assert parse_records(records_to_json(records)) == records

    @pytest.mark.parametrize("metadata", [None, {}, {"agentmemoryRestores": "x"}, {"agentmemoryRestores": [1]}])
    def test_malformed_records_are_ignored(self, metadata: dict[str, object] | None) -> None:
        assert parse_records(metadata) == ()

    def test_oldest_records_are_dropped(self) -> None:
        records = [record(str(number)) for number in range(MAX_RECORDS + 3)]

        assert parse_records(records_to_json(records)) == tuple(records[3:])

    def test_changed_spec_is_another_restore(self) -> None:
        applied = record("a", digest="one")

        assert find_record([applied], applied.identity) == applied
        assert find_record([applied], replace(applied.identity, digest="two")) is None

    def test_merge_keeps_later_records(self) -> None:
        first, second, third = (record(name, applied_at=f"2026-11-2{name}T08:00:00Z") for name in "123")

        assert merge_records([second, first], [first], third) == (first, second, third)

    def test_rolled_back_restore_stays_recorded(self) -> None:
        first, second = record("a"), record("b")

        assert mark_rolled_back([first, second], second.identity) == (first, replace(second, rolled_back=True))

    def test_retention_time_is_not_part_of_identity(self) -> None:
        spec = {"target": {"name": "a"}, "source": {"snapshotRef": {"name": "s"}}}

        assert digest_of(spec) == digest_of(spec | {"keepPreviousHours": 3})
        assert digest_of(spec) != digest_of(spec | {"mode": "InPlace"})


class TestSteps:
    def test_starts_with_the_first_step(self) -> None:
        assert resume_at(None, is_switched=False) is next(iter(SwapStep))

    @pytest.mark.parametrize("step", [step for step in SwapStep if step is not SwapStep.SETTLE])
    def test_started_step_is_repeated_before_switch(self, step: SwapStep) -> None:
        assert resume_at(step, is_switched=False) is step

    @pytest.mark.parametrize("step", [None, *SwapStep])
    def test_only_settle_remains_after_switch(self, step: SwapStep | None) -> None:
        assert resume_at(step, is_switched=True) is SwapStep.SETTLE


def contender(name: str, *, created: str = "2026-11-22T08:00:00Z", has_begun: bool = False) -> PendingRestore:
    """Return a pending restore into the same target."""
    return PendingRestore(namespace="agents", name=name, created=created, uid=name, is_started=has_begun)


class TestContenders:
    def test_older_restore_precedes(self) -> None:
        """With equal times the uid decides."""

        old, young = contender("b", created="2026-11-22T07:00:00Z"), contender("a")

        assert find_preceding(old, [young]) is None
        assert find_preceding(young, [old]) == old
        assert [find_preceding(contender("a"), [contender("c")]), find_preceding(contender("c"), [contender("a")])] == [
            None,
            contender("a"),
        ]

    def test_started_restore_precedes_an_older_one(self) -> None:
        old, begun = contender("b", created="2026-11-22T07:00:00Z"), contender("a", has_begun=True)

        assert find_preceding(old, [begun]) == begun
        assert find_preceding(begun, [old]) is None
