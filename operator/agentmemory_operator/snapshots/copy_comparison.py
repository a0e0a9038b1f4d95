"""Compare a restored copy of a snapshot with its record, and with the live collection while that is written to."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.collection import RED, Marker, Observation, is_placeholder
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep, record_from_json
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.memories.point_comparer import PointComparer, Sample
from agentmemory_operator.memories.point_scan import count_deleted, page_size
from agentmemory_operator.memories.rules.comparison import BottomKSample, Equality, PointId, find_divergence
from agentmemory_operator.memories.rules.findings import (
    Check,
    CheckFinding,
    VerificationVerdict,
    judge_missing,
    judge_sample,
)
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.restores.rules.swap_checks import parse_records
from agentmemory_operator.snapshots.rules.copy_verdict import (
    CLOCK_MARGIN_MS,
    SnapshotRecord,
    build_probes,
    compare_configuration,
    compare_count,
    compare_owner,
    judge_probes,
    must_contain,
)
from agentmemory_operator.spec.times import time_or_none

SETTLED_MS = 600_000
"""Milliseconds after a rebuild's move. Snapshots that started within them are not compared with the live collection.

In this time, a few times the duration of a request, the rebuild may still copy late writes to the live collection.
"""

OpenCopy = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Opens the copy of a snapshot in object storage, to read its content in chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSnapshot:
    """A snapshot to be restored or verified.

    Attributes:
        uid: UID of the MemorySnapshot or MemoryRestore that the comparison is for. Seeds the sample.
        physical, name: Collection and file name in Qdrant; may be empty if `open_copy` is set.
        size: Recorded size in bytes; 0 if unknown.
        sha256: SHA-256 from its creation, hex; None if unknown.
        recorded: Facts from its creation.
        live: Collection to compare the copy with, normally that from which the snapshot was created. None if unknown.
        owner: Expected owner; None accepts the owner of the live collection.
        open_copy: Opens the copy in object storage; None to read the file from Qdrant.
    """

    uid: str
    physical: str
    name: str
    size: int = 0
    sha256: str | None = None
    recorded: SnapshotRecord = field(default_factory=SnapshotRecord)
    live: str | None = None
    owner: Marker | None = None
    open_copy: OpenCopy | None = None


async def compare(copy: str, subject: ComparedSnapshot, server: Server) -> VerificationVerdict:
    """Compare a restored copy with its snapshot's record and with the live collection; return the findings.

    Args:
        copy: Name of the collection that the snapshot was restored into.

    Raises:
        TransientError: If one of the collections cannot be read now.
        StoreRejected: If Qdrant rejects a read. If it rejects an exact search, the finding of the check Probes states
            that instead.
    """
    restored = await _observe(copy, server)
    if restored is None or restored.state == RED:
        message = f"the restored collection is red in Qdrant: {restored.fault}" if restored else "nothing was restored"
        return VerificationVerdict((CheckFinding(Check.RESTORE, False, message),))
    live, no_live_reason = await _find_live(subject, server)
    settings, recorded = restored.collection, subject.recorded
    owner = subject.owner or (live.collection.marker if live else None)
    findings = [
        compare_owner(settings.marker, owner),
        *compare_configuration(settings, live.collection if live else None, recorded.config_hashes),
        await _count(copy, recorded, live, server),
    ]
    if live is not None:
        pair = PointComparer(
            points=server.points,
            live=live.physical,
            copy=copy,
            page=page_size(settings, live.collection),
            equality=Equality(has_keyword=settings.has_keyword and live.collection.has_keyword),
        )
        sampler = BottomKSample(subject.uid)
        findings.append(await _missing(pair, recorded, sampler))
        sample = await pair.compare_sample(sampler.ids)
        findings += [judge_sample(sample.compared), await _probes(pair, sample)]
    return VerificationVerdict(tuple(findings), no_live_reason)


async def _observe(physical: str, server: Server) -> Observation | None:
    # Both names are physical: a copy has no alias, and the live collection is read by its own name.
    return await observe_physical(server.collections, physical)


async def _find_live(subject: ComparedSnapshot, server: Server) -> tuple[Observation | None, str]:
    """Return the live collection, or None and the reason why there is none to compare with."""
    deleted_message = "the live collection was deleted: compared with the record only"
    if subject.live is None:
        return None, deleted_message
    metadata = await server.snapshots.metadata(subject.live)
    observed = await _observe(subject.live, server)
    if metadata is None or observed is None or is_placeholder(metadata):
        return None, deleted_message
    started_ms = subject.recorded.started_ms
    applied_ms = [time_or_none(record.applied_at) or 0 for record in parse_records(metadata)]
    if started_ms is not None and any(time_ms >= started_ms for time_ms in applied_ms):
        return None, "another snapshot was restored into the live collection since: compared with the record only"
    if started_ms is not None and _was_rebuild_settling(record_from_json(metadata), subject.live, started_ms):
        return None, "a rebuild of the collection was completing when it was taken: compared with the record only"
    return observed, ""


def _was_rebuild_settling(rebuild: RebuildRecord | None, live: str, started_ms: int) -> bool:
    """Return whether a snapshot started while a rebuild of the live collection may still have corrected late writes.

    Such a correction changes the vector of a point without a new revision.
    """
    if rebuild is None or rebuild.target != live or rebuild.moved_ms is None:
        return False
    if started_ms < rebuild.moved_ms - CLOCK_MARGIN_MS:
        return False
    return rebuild.step is not RebuildStep.DONE or started_ms < rebuild.moved_ms + SETTLED_MS


async def _count(copy: str, recorded: SnapshotRecord, live: Observation | None, server: Server) -> CheckFinding:
    count = await server.collections.count(copy)
    deleted: int | None = None
    if recorded.deleted is None and live is not None and recorded.started_ms is not None:
        # Count deletions from shortly before the start too, because clocks differ by an unknown amount.
        deleted = await count_deleted(server.points, live.physical, recorded.started_ms - CLOCK_MARGIN_MS)
    return compare_count(count, recorded, deleted)


async def _missing(pair: PointComparer, recorded: SnapshotRecord, sampler: BottomKSample) -> CheckFinding:
    """Find points that the copy lacks, in one pass over both collections by id. Add the common ids to `sampler`."""
    common, removed = 0, 0
    missing: list[PointId] = []
    async for live, copied in pair.walk_pair():
        difference = find_divergence(live, copied)
        common += len(difference.alike)
        removed += len(difference.extra)
        sampler.add(difference.alike)
        missing += await _find_lost(pair, difference.stale, recorded.started_ms)
    return judge_missing(common, {"from before the snapshot are missing": missing}, removed=removed)


async def _find_lost(pair: PointComparer, ids: Iterable[PointId], started_ms: int | None) -> list[PointId]:
    """Return the ids of live points that the copy must contain (`must_contain`) but lacks.

    Empty if the start of the snapshot is unknown.
    """
    rows = await pair.read_versions(pair.live, ids) if started_ms is not None else {}
    expected = [id_ for id_, row in rows.items() if must_contain(row.get("updatedAt"), started_ms)]
    found = await pair.read_versions(pair.copy, expected)
    return [id_ for id_ in expected if id_ not in found]


async def _probes(pair: PointComparer, sample: Sample) -> CheckFinding:
    probes = build_probes(sample.copies, sample.compared.equal[: pair.page])
    try:
        differing_ids = await pair.compare_searches(sample, probes) if probes else set()
    except StoreRejected as exc:
        return judge_probes(0, (), refused=str(exc))
    return judge_probes(len(probes), sorted(differing_ids, key=str))
