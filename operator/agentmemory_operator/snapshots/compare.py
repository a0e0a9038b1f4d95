"""Compares a restored copy with the live collection and with what was recorded, while writers go on."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.collection import RED, Marker, Observed, is_placeholder
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep, record_from_json
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.memories.compare import PointComparison, Sample
from agentmemory_operator.memories.point_scan import count_deleted, page_of
from agentmemory_operator.memories.rules.comparison import Draw, Equality, PointId, divergence
from agentmemory_operator.memories.rules.findings import (
    Check,
    CheckFinding,
    VerificationVerdict,
    judge_missing,
    judge_sample,
)
from agentmemory_operator.restores.rules.checks import records_from
from agentmemory_operator.snapshots.rules.verdict import (
    SURELY_BEFORE_MS,
    Recorded,
    compare_configuration,
    compare_count,
    compare_owner,
    judge_probes,
    probes_of,
    was_there,
)
from agentmemory_operator.spec.times import parse_time

SETTLED_MS = 600_000
"""After the move of a rebuild: some requests' time, and what it takes to embed what they left."""

OpenCopy = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSnapshot:
    """A snapshot that is looked into.

    Attributes:
        uid: of its object.
        physical, name: where Qdrant has it.
        sha256: recorded when it was made.
        live: the collection that it is compared with, if it is still what the snapshot was made of; None where it is
            known to be gone.
        owner: whose it has to be; None is not asked.
        open_copy: opens the bytes where Qdrant does not have them.
    """

    uid: str
    physical: str
    name: str
    size: int = 0
    sha256: str | None = None
    recorded: Recorded = field(default_factory=Recorded)
    live: str | None = None
    owner: Marker | None = None
    open_copy: OpenCopy | None = None


async def compare(copy: str, subject: ComparedSnapshot, server: Server) -> VerificationVerdict:
    """What a copy comes to that was restored of a snapshot.

    Raises:
        TransientError: one of both collections cannot be read for now.
    """
    restored = await _observed(copy, server)
    if restored is None or restored.state == RED:
        fault = f"the restored collection is red in Qdrant: {restored.fault}" if restored else "nothing was restored"
        return VerificationVerdict((CheckFinding(Check.RESTORE, False, fault),))
    live, why_not = await _live(subject, server)
    settings, recorded = restored.collection, subject.recorded
    owner = subject.owner or (live.collection.marker if live else None)
    findings = [
        compare_owner(settings.marker, owner),
        *compare_configuration(settings, live.collection if live else None, recorded.config_hash),
        await _count(copy, recorded, live, server),
    ]
    if live is not None:
        pair = PointComparison(
            points=server.points,
            live=live.physical,
            copy=copy,
            page=page_of(settings, live.collection),
            equality=Equality(has_keyword=settings.has_keyword and live.collection.has_keyword),
        )
        draw = Draw(subject.uid)
        findings.append(await _missing(pair, recorded, draw))
        sample = await pair.sample(draw.drawn)
        findings += [judge_sample(sample.compared), await _probes(pair, sample)]
    return VerificationVerdict(tuple(findings), why_not)


async def _observed(physical: str, server: Server) -> Observed | None:
    # No alias is asked for: a copy has none, and a live collection is asked for by its own name.
    return await server.collections.observe(physical, physical, is_linked=True)


async def _live(subject: ComparedSnapshot, server: Server) -> tuple[Observed | None, str]:
    """The live collection, or why there is none to compare with."""
    gone = "the live collection was deleted: compared with the record only"
    if subject.live is None:
        return None, gone
    metadata = await server.snapshots.metadata(subject.live)
    observed = await _observed(subject.live, server)
    if metadata is None or observed is None or is_placeholder(metadata):
        return None, gone
    begun_ms = subject.recorded.begun_ms
    if begun_ms is not None and any(_ms(record.applied_at) >= begun_ms for record in records_from(metadata)):
        return None, "another snapshot was restored into the live collection since: compared with the record only"
    if begun_ms is not None and _was_settling(record_from_json(metadata), subject.live, begun_ms):
        return None, "a rebuild of the collection was completing when it was taken: compared with the record only"
    return observed, ""


def _was_settling(rebuild: RebuildRecord | None, live: str, begun_ms: int) -> bool:
    """Whether a snapshot was begun while what came late from before a rebuild was still set right.

    That gives points other vectors without another revision.
    """
    if rebuild is None or rebuild.target != live or rebuild.moved_ms is None:
        return False
    if begun_ms < rebuild.moved_ms - SURELY_BEFORE_MS:
        return False
    return rebuild.step is not RebuildStep.DONE or begun_ms < rebuild.moved_ms + SETTLED_MS


def _ms(time: str) -> int:
    try:
        return parse_time(time)
    except ValueError:
        return 0


async def _count(copy: str, recorded: Recorded, live: Observed | None, server: Server) -> CheckFinding:
    copied = await server.collections.count(copy)
    deleted: int | None = None
    if recorded.deleted is None and live is not None and recorded.begun_ms is not None:
        # What was deleted shortly before may be among them: by how much the clocks differ, nobody knows.
        deleted = await count_deleted(server.points, live.physical, recorded.begun_ms - SURELY_BEFORE_MS)
    return compare_count(copied, recorded, deleted)


async def _missing(pair: PointComparison, recorded: Recorded, draw: Draw) -> CheckFinding:
    """Walk both collections by their ids, and draw the sample on the way."""
    both, removed = 0, 0
    lost: list[PointId] = []
    async for live, copied in pair.stretches():
        found = divergence(live, copied)
        both += len(found.alike)
        removed += len(found.extra)
        draw.offer(found.alike)
        lost += await _lost(pair, found.behind, recorded.begun_ms)
    return judge_missing(both, {"from before the snapshot are missing": lost}, removed=removed)


async def _lost(pair: PointComparison, ids: Iterable[PointId], begun_ms: int | None) -> list[PointId]:
    """Those of a stretch's live points alone that were there before the snapshot."""
    rows = await pair.rows(pair.live, ids) if begun_ms is not None else {}
    old = [id_ for id_, row in rows.items() if was_there(row.get("updatedAt"), begun_ms)]
    there = await pair.rows(pair.copy, old)
    return [id_ for id_ in old if id_ not in there]


async def _probes(pair: PointComparison, sample: Sample) -> CheckFinding:
    probes = probes_of(sample.copies, sample.compared.equal[: pair.page])
    try:
        off = await pair.search(sample, probes) if probes else set()
    except StoreRejected as exc:
        return judge_probes(0, (), refused=str(exc))
    return judge_probes(len(probes), sorted(off, key=str))
