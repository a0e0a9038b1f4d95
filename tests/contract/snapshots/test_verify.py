"""Snapshots proven on a server: good ones whatever writers do meanwhile, and none that is another, cut or altered."""

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
from agentmemory_operator.errors import StoreRejected, TransientError
from agentmemory_operator.memories import point_comparer as comparison
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.findings import Check, VerificationVerdict
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
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
    """An agent with memories, its server, and what verifies."""

    world: World
    server: Server
    verification: Verification

    @property
    def physical(self) -> str:
        return f"{self.world.agent.alias}__1"

    async def snapshot(self, *, during: Callable[[], Any] | None = None, **changes: Any) -> ComparedSnapshot:
        """Make a snapshot of what there is, as a pass records it; `during` runs before the second count."""
        self.world.clock.move(ms=2 * CLOCK_MARGIN_MS)
        begun_ms = self.world.clock.now_ms()
        before = await self.server.collections.count(self.physical)
        observed = await self.server.collections.observe(self.physical, self.physical, is_linked=True)
        assert observed
        file = await self.server.snapshots.create(self.physical)
        if during:
            await during()
        after = await self.server.collections.count(self.physical)
        recorded = SnapshotRecord(
            started_ms=begun_ms, before=before, after=after, config_hash=hash_configuration(observed.collection)
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

    async def scratch_left(self) -> list[str]:
        return [name for name in await self.server.snapshots.collections() if name.startswith(scratch_prefix(CLUSTER))]

    async def bytes_of(self, subject: ComparedSnapshot) -> bytes:
        async with self.server.snapshots.download(subject.physical, subject.name) as content:
            return b"".join([chunk async for chunk in content])


@pytest.fixture
async def place(qdrant_url: str) -> AsyncIterator[Place]:
    source = KeywordSource(language="english", window=2)
    async with open_world(qdrant_url, keyword=source) as world, open_server(qdrant_url) as server:
        here = Place(world, server, Verification(ScratchCollections(this_cluster)))
        for user in ("u0", "u1"):
            texts = [f"memory {number} of {user}" for number in range(20)]
            memories = [
                IncomingMemory(user_id=user, content=text, vector=vector_of(text), session_id="s") for text in texts
            ]
            await world.remember.store(world.agent, memories)
        yield here
        assert await here.scratch_left() == []


def faults(verdict: VerificationVerdict) -> list[Check]:
    return [finding.check for finding in verdict.findings if finding.is_good is False]


def serving(content: bytes) -> Callable[[], Any]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[AsyncIterator[bytes]]:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 1 << 16):
                yield content[start : start + (1 << 16)]

        yield chunks()

    return opened


async def test_a_snapshot_is_restored_beside_the_agent_and_found_equal(place: Place) -> None:
    subject = await place.snapshot()

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.state.reason) == (True, "Verified"), verdict.message
    compared = {finding.check: finding.compared for finding in verdict.findings}
    assert (compared[Check.COUNT], compared[Check.SAMPLE], compared[Check.PROBES]) == (40, 40, 8)


@pytest.mark.parametrize("engine", ["usual", "always_kept"])
async def test_writers_and_deletions_at_any_time_do_not_fail_it(
    place: Place, engine: str, request: pytest.FixtureRequest
) -> None:
    """Also where the engine keeps the vectors of what is emptied while a snapshot is made."""
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
async def test_a_point_that_was_altered_without_a_revision_is_found(place: Place, alter, expected) -> None:
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


class Torn:
    """Gives the points of a server, and of one of them another vector, or score, as often as it is told to."""

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
async def test_what_differs_is_read_again_before_a_snapshot_is_called_bad(
    place: Place, monkeypatch: pytest.MonkeyPatch, times: int, of: str, check: Check
) -> None:
    monkeypatch.setattr(comparison, "CONFIRMING_READ_DELAY_S", 0.0)
    subject = await place.snapshot()
    torn = Torn(place.server.points, place.physical, times=times, of=of)

    verdict = await place.verification.verify(subject, "Full", replace(place.server, points=torn))  # type: ignore[arg-type]

    assert torn.left == 0
    assert faults(verdict) == ([check] if times == 3 else []), verdict.message


@pytest.mark.parametrize("had_vectors", ["the copy", "the live one"])
async def test_a_tombstone_with_vectors_is_as_good_as_one_without(place: Place, had_vectors: str) -> None:
    """A snapshot may be made before a tombstone is emptied; and one of before that may hold what lost them."""
    agent, memory = place.world.agent, (await place.world.rows("u0"))[0].id
    store, kept = agent.store, {"": vector_of("kept"), KEYWORD_VECTOR: {"indices": [1], "values": [1.0]}}
    give = [{"update_vectors": {"points": [{"id": memory, "vector": kept}]}}]
    await delete_head(agent, memory, user_id="u0")
    if had_vectors == "the copy":
        await store.batch(place.physical, give)
    subject = await place.snapshot()
    if had_vectors == "the copy":
        assert await delete_remaining_vectors(agent) == 1
    else:
        await store.batch(place.physical, give)

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.state.reason) == (True, "Verified"), verdict.message
    await delete_remaining_vectors(agent)


async def test_a_copy_that_lacks_what_was_there_before_is_found(place: Place) -> None:
    subject = await place.snapshot()
    await place.world.add("written later, stamped long ago")
    memory = (await place.world.rows("u"))[0].id
    stamp = {"updatedAt": 1}
    await place.server.points.set_payload(place.physical, stamp, {"must": [{"has_id": [memory]}]})

    verdict = await place.verify(subject)

    assert faults(verdict) == [Check.MISSING]
    assert verdict.message == f"1 points from before the snapshot are missing: {memory}"


async def test_a_count_that_was_never_between_is_found(place: Place) -> None:
    subject = await place.snapshot()

    verdict = await place.verify(replace(subject, recorded=replace(subject.recorded, before=41, after=44)))

    assert faults(verdict) == [Check.COUNT]


async def test_settings_other_than_those_recorded_are_found(place: Place) -> None:
    subject = await place.snapshot()

    verdict = await place.verify(replace(subject, recorded=replace(subject.recorded, config_hash="0" * 16)))

    assert faults(verdict) == [Check.CONFIGURATION]


async def test_a_snapshot_of_another_dimension_is_found(place: Place, qdrant_url: str) -> None:
    async with open_world(qdrant_url, size=4) as other:
        await other.add("of another agent", vector=vector_of("x", 4))
        foreign = replace(place, world=other)
        theirs = await foreign.snapshot()
        ours = await place.snapshot()

        verdict = await place.verify(replace(ours, physical=theirs.physical, name=theirs.name, sha256=theirs.sha256))

    assert Check.CONFIGURATION in faults(verdict)
    assert Check.MISSING in faults(verdict)


async def test_a_snapshot_that_names_another_owner_is_found(place: Place) -> None:
    told = (await place.server.snapshots.metadata(place.physical) or {})[METADATA_KEY]
    await place.server.snapshots.write_metadata(place.physical, {METADATA_KEY: told | {"name": "other"}})
    subject = await place.snapshot()
    await place.server.snapshots.write_metadata(place.physical, {METADATA_KEY: told | {"name": "mine"}})

    assert faults(await place.verify(subject)) == [Check.OWNER]


@pytest.mark.parametrize("gone", ["never named", "deleted", "placeholder"])
async def test_without_a_live_collection_the_record_is_compared_and_that_is_said(place: Place, gone: str) -> None:
    subject = await place.snapshot()
    copied = await place.bytes_of(subject)
    if gone == "never named":
        subject = replace(subject, live=None)
    else:
        await place.server.collections.delete(place.physical)
        subject = replace(subject, open_copy=serving(copied))
    if gone == "placeholder":
        await place.server.snapshots.create_placeholder(place.physical)

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.state.reason) == (True, "ComparedWithRecord"), verdict.message
    assert "the live collection was deleted" in verdict.message


async def test_a_live_collection_that_was_restored_since_is_no_measure(place: Place) -> None:
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
async def test_while_a_rebuild_ends_its_target_is_no_measure(place: Place, moved_ago_ms, step, reason) -> None:
    subject = await place.snapshot()
    moved_ms = (subject.recorded.started_ms or 0) - moved_ago_ms
    rebuild = RebuildRecord(
        source="a", target=place.physical, digest="d", begun_ms=1, since_ms=1, step=step, moved_ms=moved_ms
    )
    await place.server.snapshots.write_metadata(place.physical, {REBUILD_KEY: record_to_json(rebuild)})

    verdict = await place.verify(subject)

    assert (verdict.is_good, verdict.reason) == (True, reason), verdict.message


async def test_of_a_placeholder_the_snapshot_is_fetched_under_its_name(place: Place) -> None:
    subject = await place.snapshot()
    await place.server.collections.delete(place.physical)
    await place.server.snapshots.create_placeholder(place.physical)

    assert (await place.verify(subject)).reason == "ComparedWithRecord"


class TakesNoAddresses(QdrantSnapshots):
    """A server with `enable_snapshot_url_recovery` off."""

    async def recover(self, physical: str, location: str, *, sha256: str | None, api_key: str | None = None) -> None:
        raise StoreRejected(400, "snapshot recovery from URL is disabled")


async def test_a_server_that_takes_no_addresses_is_sent_the_bytes(place: Place) -> None:
    subject = await place.snapshot()
    url = place.server.endpoint.url
    async with open_server(url) as server:
        closed = replace(server, snapshots=TakesNoAddresses(url))

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
async def test_bytes_that_are_cut_or_altered_are_never_verified(place: Place, damage, sha256) -> None:
    subject = await place.snapshot()
    copied = damage(await place.bytes_of(subject))
    subject = replace(subject, open_copy=serving(copied), sha256=subject.sha256 if sha256 is ... else sha256)

    verdict = None
    for _ in range(3):
        with contextlib.suppress(TransientError):
            verdict = await place.verify(subject)

    assert verdict is not None
    assert (verdict.is_good, verdict.reason) == (False, "ChecksumDiffers")


async def test_a_checksum_reads_every_byte_once(place: Place) -> None:
    subject = await place.snapshot()

    good = await place.verify(subject, "Checksum")
    bad = await place.verify(replace(subject, sha256=hashlib.sha256(b"other").hexdigest()), "Checksum")

    assert (good.reason, good.findings[0].compared) == ("ChecksumMatches", subject.size)
    assert (bad.state.status, bad.reason) == (False, "ChecksumDiffers")


async def test_a_snapshot_that_is_gone_is_not_verified(place: Place) -> None:
    subject = replace(await place.snapshot(), name="gone.snapshot")

    assert (await place.verify(subject, "Checksum")).reason == "ChecksumDiffers"
    assert (await place.verify(subject)).reason == "ChecksumDiffers"


async def test_one_that_is_larger_than_scratch_may_be_is_read_and_that_is_said(place: Place) -> None:
    made = await place.snapshot()
    place.verification = replace(place.verification, max_scratch_bytes=made.size - 1)

    # The second says of itself that it is small, as whoever writes its status can.
    for subject in (made, replace(made, size=1)):
        verdict = await place.verify(subject)

        assert verdict.reason == "ChecksumMatches"
        assert f"its {made.size} bytes exceed" in verdict.message


async def test_a_strict_mode_that_allows_few_points_a_call_is_kept_to(place: Place) -> None:
    limits = (("enabled", True), ("max_query_limit", 7), ("search_allow_exact", False))
    await place.server.collections.apply(place.physical, UpdateStrictMode(limits))
    subject = await place.snapshot()

    verdict = await place.verify(subject)

    assert (verdict.state.status, verdict.reason) == (True, "Verified"), verdict.message


async def test_two_copies_of_one_snapshot_are_compared_the_same(place: Place) -> None:
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
        "configHash": recorded.config_hash,
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
async def test_a_snapshot_s_status_says_how_it_is_proven(place: Place, verify, status, reason) -> None:
    subject = await place.snapshot()
    metadata = Metadata(name="s", namespace="agents", uid=subject.uid)

    state = await place.verification.verify_status(place.server, metadata, status_of(subject, verify=verify))

    assert (state.status, state.reason) == (status, reason), state.message


async def test_what_qdrant_has_no_more_is_taken_from_where_it_was_copied_to(place: Place) -> None:
    subject = await place.snapshot()
    content = await place.bytes_of(subject)
    await place.server.snapshots.delete_file(subject.physical, subject.name)
    asked = []

    def open_elsewhere(location: dict[str, Any], namespace: str) -> Any:
        asked.append((location["key"], namespace))
        return serving(content)()

    place.verification = replace(place.verification, open_elsewhere=open_elsewhere)
    status = status_of(subject, locations=[{"type": "S3", "key": "a/b"}])

    state = await place.verification.verify_status(
        place.server, Metadata(name="s", namespace="agents", uid=subject.uid), status
    )

    assert (state.status, state.reason) == (True, "Verified"), state.message
    assert asked == [("a/b", "agents")]
