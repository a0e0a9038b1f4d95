"""Verification of snapshots on a server: correct ones pass despite concurrent writes, wrong or damaged ones fail."""

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.rules.changes import UpdateStrictMode
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, METADATA_KEY, KeywordSource
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildRecord,
    RebuildStep,
    record_to_json,
)
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.streams import CheckedStream
from agentmemory_operator.errors import StorageRejected, StoreRejected, TransientError
from agentmemory_operator.memories import point_comparer as comparison
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.findings import Check, VerificationVerdict
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.restores.rules.swap_checks import RestoreIdentity, RestoreRecord, records_to_json
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot, compare
from agentmemory_operator.snapshots.rules.copy_verdict import CLOCK_MARGIN_MS, SnapshotRecord, hash_configuration
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.naming import scratch_prefix
from agentmemory_operator.spec.times import render_second
from tests.support.engine.agents import World, concurrent_writers, open_world, vector_of
from tests.support.job.job_world import open_server

CLUSTER = uuid.uuid4().hex


async def this_cluster() -> str:
    return CLUSTER


@dataclass
class Place:
    """An agent with memories, its server, and the verification."""

    world: World
    server: Server
    verification: Verification

    @property
    def physical(self) -> str:
        return f"{self.world.agent.alias}__1"

    async def snapshot(self, *, during: Callable[[], Any] | None = None, **changes: Any) -> ComparedSnapshot:
        """Take a snapshot and record it as a pass does; `during` runs before the second count."""
        self.world.clock.move(ms=2 * CLOCK_MARGIN_MS)
        begun_ms = self.world.clock.now_ms()
        before = await self.server.collections.count(self.physical)
        observed = await observe_physical(self.server.collections, self.physical)
        assert observed
        file = await self.server.snapshots.create(self.physical)
        if during:
            await during()
        after = await self.server.collections.count(self.physical)
        recorded = SnapshotRecord(
            started_ms=begun_ms, before=before, after=after, config_hashes=(hash_configuration(observed.collection),)
        )
        subject = ComparedSnapshot(
            uid=f"uid-{self.physical}",
            physical=self.physical,
            name=file.name,
            size=file.size,
            sha256=file.sha256,
            recorded=recorded,
            live=self.physical,
        )
        return replace(subject, **changes)

    async def verify(self, subject: ComparedSnapshot, how: Any = "Full") -> VerificationVerdict:
        return await self.verification.verify(subject, how, self.server)

    async def list_scratch(self) -> list[str]:
        return [name for name in await self.server.snapshots.collections() if name.startswith(scratch_prefix(CLUSTER))]

    async def bytes_of(self, subject: ComparedSnapshot) -> bytes:
        async with self.server.snapshots.download(subject.physical, subject.name) as content:
            return b"".join([chunk async for chunk in content])


@pytest.fixture
async def place(qdrant_url: str) -> AsyncIterator[Place]:
    source = KeywordSource(language="english", window=2)
    async with open_world(qdrant_url, keyword=source) as world, open_server(qdrant_url) as server:
        opened_place = Place(world, server, Verification(ScratchCollections(this_cluster)))
        for user in ("u0", "u1"):
            texts = [f"memory {number} of {user}" for number in range(20)]
            memories = [
                IncomingMemory(user_id=user, content=text, vector=vector_of(text), session_id="s") for text in texts
            ]
            await world.remember.store(world.agent, memories)
        yield opened_place
        assert await opened_place.list_scratch() == []


def faults(verdict: VerificationVerdict) -> list[Check]:
    return [finding.check for finding in verdict.findings if finding.is_good is False]


def open_bytes(content: bytes, *, sha256: str | None = None) -> Callable[[], Any]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[AsyncIterator[bytes]]:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 1 << 16):
                yield content[start : start + (1 << 16)]

        # A copy in object storage is checked while it is read.
        yield aiter(CheckedStream(chunks(), name="copy", size=None, sha256=sha256)) if sha256 else chunks()

    return opened


async def test_restored_copy_equals_the_live_collection(place: Place) -> None:
    subject = await place.snapshot()

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.state.reason) == (True, "Verified"), verdict.message
    compared = {finding.check: finding.compared for finding in verdict.findings}
    assert (compared[Check.COUNT], compared[Check.SAMPLE], compared[Check.PROBES]) == (40, 40, 8)


@pytest.mark.parametrize("engine", ["usual", "always_kept"])
async def test_concurrent_writes_do_not_fail_it(place: Place, engine: str, request: pytest.FixtureRequest) -> None:
    """Verification also passes if the engine keeps the vectors of emptied tombstones during a snapshot."""
    if engine != "usual":
        request.getfixturevalue(engine)
    async with concurrent_writers(place.world, "u0", writers=3):
        subject = await place.snapshot(during=lambda: asyncio.sleep(0.1))
        verdicts = [await place.verify(subject) for _ in range(3)]

    assert [verdict.message for verdict in verdicts if not verdict.is_good] == []
    assert verdicts[-1].state.reason == "Verified"


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        ({"payload": {"content": "something else"}}, [Check.SAMPLE]),
        ({"vector": vector_of("another")}, [Check.SAMPLE]),
    ],
)
async def test_changed_point_with_same_revision_is_found(place: Place, alter, expected) -> None:
    subject = await place.snapshot()
    memory = (await place.world.rows("u0"))[0].id
    if "payload" in alter:
        await place.server.points.set_payload(place.physical, alter["payload"], {"must": [{"has_id": [memory]}]})
    else:
        vectors = {"points": [{"id": memory, "vector": alter["vector"]}]}
        await place.server.points.batch(place.physical, [{"update_vectors": vectors}])

    verdict = await place.verify(subject)

    assert faults(verdict) == expected
    part = next(iter(alter.get("payload", alter)))
    assert f"1 of 40 points differ: {memory} ({part})" in verdict.message
    assert "something else" not in verdict.message


class ChangedReads:
    """Changes a vector, or a score, in the first `times` reads of one point."""

    def __init__(self, points: QdrantPoints, collection: str, *, times: int, of: str) -> None:
        self._points, self._collection, self.left, self._of = points, collection, times, of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._points, name)

    async def scroll(self, collection: str, body: Any) -> Any:
        points, following = await self._points.scroll(collection, body)
        if body["with_vector"] and points and self._is_due("scroll", collection):
            points[0]["vector"][""][0] += 1
        return points, following

    async def query_batch(self, collection: str, bodies: Any) -> Any:
        answers = await self._points.query_batch(collection, bodies)
        if self._is_due("query_batch", collection):
            answers[0][0]["score"] += 1
        return answers

    def _is_due(self, name: str, collection: str) -> bool:
        is_due = self.left > 0 and (name, collection) == (self._of, self._collection)
        self.left -= is_due
        return is_due


@pytest.mark.parametrize(("of", "check"), [("scroll", Check.SAMPLE), ("query_batch", Check.PROBES)])
@pytest.mark.parametrize("times", [0, 1, 2, 3])
async def test_difference_is_confirmed_by_more_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch, times: int, of: str, check: Check
) -> None:
    monkeypatch.setattr(comparison, "CONFIRMING_READ_DELAY_S", 0.0)
    subject = await place.snapshot()
    changed_reads = ChangedReads(place.server.points, place.physical, times=times, of=of)

    verdict = await place.verification.verify(subject, "Full", replace(place.server, points=changed_reads))  # type: ignore[arg-type]

    assert changed_reads.left == 0
    assert faults(verdict) == ([check] if times == 3 else []), verdict.message


@pytest.mark.parametrize("side", ["the copy", "the live one"])
async def test_vectors_of_tombstones_are_ignored(place: Place, side: str) -> None:
    """A snapshot may be taken before a tombstone is emptied, and an older one may contain memories emptied since."""
    agent, memory = place.world.agent, (await place.world.rows("u0"))[0].id
    store, kept = agent.store, {"": vector_of("kept"), KEYWORD_VECTOR: {"indices": [1], "values": [1.0]}}
    set_vectors = [{"update_vectors": {"points": [{"id": memory, "vector": kept}]}}]
    await delete_head(agent, memory, user_id="u0")
    if side == "the copy":
        await store.batch(place.physical, set_vectors)
    subject = await place.snapshot()
    if side == "the copy":
        assert await delete_remaining_vectors(agent) == 1
    else:
        await store.batch(place.physical, set_vectors)

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.state.reason) == (True, "Verified"), verdict.message
    await delete_remaining_vectors(agent)


async def test_missing_points_are_found(place: Place) -> None:
    subject = await place.snapshot()
    await place.world.add("written later, stamped long ago")
    memory = (await place.world.rows("u"))[0].id
    stamp = {"updatedAt": 1}
    await place.server.points.set_payload(place.physical, stamp, {"must": [{"has_id": [memory]}]})

    verdict = await place.verify(subject)

    assert faults(verdict) == [Check.MISSING]
    assert verdict.message == f"1 points from before the snapshot are missing: {memory}"


async def test_impossible_count_is_found(place: Place) -> None:
    subject = await place.snapshot()

    verdict = await place.verify(replace(subject, recorded=replace(subject.recorded, before=41, after=44)))

    assert faults(verdict) == [Check.COUNT]


async def test_other_settings_are_found(place: Place) -> None:
    subject = await place.snapshot()

    verdict = await place.verify(replace(subject, recorded=replace(subject.recorded, config_hashes=("0" * 16,))))

    assert faults(verdict) == [Check.CONFIGURATION]


async def test_other_dimension_is_found(place: Place, qdrant_url: str) -> None:
    async with open_world(qdrant_url, size=4) as other:
        await other.add("of another agent", vector=vector_of("x", 4))
        foreign = replace(place, world=other)
        foreign_snapshot = await foreign.snapshot()
        own_snapshot = await place.snapshot()

        verdict = await place.verify(
            replace(
                own_snapshot,
                physical=foreign_snapshot.physical,
                name=foreign_snapshot.name,
                sha256=foreign_snapshot.sha256,
            )
        )

    assert Check.CONFIGURATION in faults(verdict)
    assert Check.MISSING in faults(verdict)


async def test_other_owner_is_found(place: Place) -> None:
    own_metadata = (await place.server.snapshots.metadata(place.physical) or {})[METADATA_KEY]
    await place.server.snapshots.write_metadata(place.physical, {METADATA_KEY: own_metadata | {"name": "other"}})
    subject = await place.snapshot()
    await place.server.snapshots.write_metadata(place.physical, {METADATA_KEY: own_metadata | {"name": "mine"}})

    assert faults(await place.verify(subject)) == [Check.OWNER]


@pytest.mark.parametrize("case", ["never named", "deleted", "placeholder"])
async def test_deleted_collection_falls_back_to_the_record(place: Place, case: str) -> None:
    subject = await place.snapshot()
    copied = await place.bytes_of(subject)
    if case == "never named":
        subject = replace(subject, live=None)
    else:
        await place.server.collections.delete(place.physical)
        subject = replace(subject, open_copy=open_bytes(copied))
    if case == "placeholder":
        await place.server.snapshots.create_placeholder(place.physical)

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.state.reason) == (True, "ComparedWithRecord"), verdict.message
    assert "the live collection was deleted" in verdict.message


async def test_restored_collection_is_not_compared(place: Place) -> None:
    subject = await place.snapshot()
    identity = RestoreIdentity(namespace="agents", name="undo", digest="ab")
    record = RestoreRecord(identity=identity, source="x", applied_at="2999-01-01T00:00:00Z")
    await place.server.snapshots.write_metadata(place.physical, records_to_json([record]))

    verdict = await place.verify(subject)

    assert (verdict.is_good, verdict.reason) == (True, "ComparedWithRecord")
    assert "another snapshot was restored" in verdict.message


@pytest.mark.parametrize(
    ("moved_ago_ms", "step", "reason"),
    [
        (0, RebuildStep.DRAIN, "ComparedWithRecord"),
        (86_400_000, RebuildStep.DRAIN, "ComparedWithRecord"),
        (0, RebuildStep.DONE, "ComparedWithRecord"),
        (86_400_000, RebuildStep.DONE, "Verified"),
        (-86_400_000, RebuildStep.DONE, "Verified"),
    ],
)
async def test_target_of_a_recent_rebuild_is_not_compared(place: Place, moved_ago_ms, step, reason) -> None:
    subject = await place.snapshot()
    moved_ms = (subject.recorded.started_ms or 0) - moved_ago_ms
    rebuild = RebuildRecord(
        source="a", target=place.physical, digest="d", started_ms=1, since_ms=1, step=step, moved_ms=moved_ms
    )
    await place.server.snapshots.write_metadata(place.physical, {REBUILD_KEY: record_to_json(rebuild)})

    verdict = await place.verify(subject)

    assert (verdict.is_good, verdict.reason) == (True, reason), verdict.message


async def test_placeholder_still_serves_its_files(place: Place) -> None:
    subject = await place.snapshot()
    await place.server.collections.delete(place.physical)
    await place.server.snapshots.create_placeholder(place.physical)

    assert (await place.verify(subject)).reason == "ComparedWithRecord"


class WithoutUrlRecovery(QdrantSnapshots):
    """A server with `enable_snapshot_url_recovery` off."""

    async def recover(self, physical: str, location: str, *, sha256: str | None, api_key: str | None = None) -> None:
        raise StoreRejected(400, "snapshot recovery from URL is disabled")


async def test_server_without_url_recovery_gets_an_upload(place: Place) -> None:
    subject = await place.snapshot()
    url = place.server.endpoint.url
    async with open_server(url) as server:
        closed = replace(server, snapshots=WithoutUrlRecovery(url))

        verdict = await place.verification.verify(subject, "Full", closed)

        await closed.snapshots.close()
    assert verdict.reason == "Verified"


@pytest.mark.parametrize(
    ("damage", "sha256"),
    [
        (lambda content: content[: len(content) // 2], ...),
        (lambda content: content[: len(content) // 2], None),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), ...),
        (lambda content: b"no snapshot at all", None),
        (lambda content: content, "0" * 64),
    ],
)
@pytest.mark.parametrize(("mode", "is_checked"), [("Full", False), ("Full", True), ("Checksum", True)])
async def test_damaged_bytes_are_never_verified(place: Place, damage, sha256, mode, is_checked) -> None:
    subject = await place.snapshot()
    copied = damage(await place.bytes_of(subject))
    open_copy = open_bytes(copied, sha256=subject.sha256 if is_checked else None)
    subject = replace(subject, open_copy=open_copy, sha256=subject.sha256 if sha256 is ... else sha256)

    verdict = None
    for _ in range(3):
        with contextlib.suppress(TransientError):
            verdict = await place.verify(subject, mode)

    assert verdict is not None
    assert (verdict.is_good, verdict.reason) == (False, "ChecksumDiffers")


async def test_checksum_mode_reads_all_bytes(place: Place) -> None:
    subject = await place.snapshot()

    good = await place.verify(subject, "Checksum")
    bad = await place.verify(replace(subject, sha256=hashlib.sha256(b"other").hexdigest()), "Checksum")

    assert (good.reason, good.findings[0].compared) == ("ChecksumMatches", subject.size)
    assert (bad.state.status, bad.reason) == (False, "ChecksumDiffers")


async def test_missing_file_is_not_verified(place: Place) -> None:
    subject = replace(await place.snapshot(), name="gone.snapshot")

    assert (await place.verify(subject, "Checksum")).reason == "ChecksumDiffers"
    assert (await place.verify(subject)).reason == "ChecksumDiffers"


@pytest.mark.parametrize("mode", ["Full", "Checksum"])
async def test_rejecting_storage_proves_nothing(place: Place, mode: str) -> None:
    """Retention removes a snapshot that failed its verification, but an access key can be renewed."""

    def open_copy() -> Any:
        raise StorageRejected(403, "AccessDenied", "correct the Secret")

    with pytest.raises(StorageRejected, match="correct the Secret"):
        await place.verify(replace(await place.snapshot(), open_copy=open_copy), mode)


async def test_large_snapshot_is_checked_by_checksum(place: Place) -> None:
    snapshot = await place.snapshot()
    place.verification = replace(place.verification, max_scratch_bytes=snapshot.size - 1)

    # The status of the second one has a forged size.
    for subject in (snapshot, replace(snapshot, size=1)):
        verdict = await place.verify(subject)

        assert verdict.reason == "ChecksumMatches"
        assert f"its {snapshot.size} bytes exceed" in verdict.message


async def test_strict_mode_limits_are_respected(place: Place) -> None:
    limits = (("enabled", True), ("max_query_limit", 7), ("search_allow_exact", False))
    await place.server.collections.apply(place.physical, UpdateStrictMode(limits))
    subject = await place.snapshot()

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.reason) == (True, "Verified"), verdict.message


async def test_repeated_verification_gives_the_same(place: Place) -> None:
    subject = await place.snapshot()

    assert await place.verify(subject) == await place.verify(subject)
    assert (await compare(place.physical, subject, place.server)).is_good


def status_of(subject: ComparedSnapshot, **changes: Any) -> dict[str, Any]:
    recorded = subject.recorded
    place = {"type": "Qdrant", "physical": subject.physical, "name": subject.name}
    status = {
        "startTime": render_second((recorded.started_ms or 0) / 1000),
        "physical": subject.physical,
        "name": subject.name,
        "sizeBytes": subject.size,
        "sha256": subject.sha256,
        "points": {"before": recorded.before, "after": recorded.after},
        "configHash": recorded.config_hashes[0],
        "owner": {},
        "locations": [place],
    }
    return status | changes


@pytest.mark.parametrize(
    ("verify", "status", "reason"),
    [
        ("Full", True, "Verified"),
        ("Checksum", True, "ChecksumMatches"),
        ("None", None, "NotVerified"),
        (None, True, "Verified"),
    ],
)
async def test_verify_mode_of_the_status_is_used(place: Place, verify, status, reason) -> None:
    subject = await place.snapshot()
    metadata = Metadata(name="s", namespace="agents", uid=subject.uid)

    state = await place.verification.verify_status(place.server, metadata, status_of(subject, verify=verify))

    assert (state.status, state.reason) == (status, reason), state.message


async def test_lost_file_is_read_from_its_copy(place: Place) -> None:
    subject = await place.snapshot()
    content = await place.bytes_of(subject)
    await place.server.snapshots.delete_file(subject.physical, subject.name)
    opened_copies = []

    def open_elsewhere(location: dict[str, Any], namespace: str) -> Any:
        opened_copies.append((location["key"], namespace))
        return open_bytes(content)()

    place.verification = replace(place.verification, open_elsewhere=open_elsewhere)
    status = status_of(subject, locations=[{"type": "S3", "key": "a/b"}])

    state = await place.verification.verify_status(
        place.server, Metadata(name="s", namespace="agents", uid=subject.uid), status
    )

    assert (state.status, state.reason) == (True, "Verified"), state.message
    assert opened_copies == [("a/b", "agents")]
