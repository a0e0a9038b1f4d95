"""Compares a restored copy with the live collection and with what was recorded, while writers go on."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import cast

from agentmemory_operator.domain.collection import RED, Collection, Marker, Observed, is_placeholder
from agentmemory_operator.domain.rebuilding import Record, Step, record_from_json
from agentmemory_operator.domain.records import TOMBSTONE_KEY
from agentmemory_operator.domain.restoring import records_from
from agentmemory_operator.domain.samples import (
    Json,
    Lots,
    PointId,
    compare_points,
    is_unchanged,
    judge_probes,
    judge_sample,
    probe_of,
    probe_points,
    score_differences,
)
from agentmemory_operator.domain.times import parse_time
from agentmemory_operator.domain.verification import (
    SKEW_MS,
    Check,
    Finding,
    Recorded,
    Verdict,
    compare_configuration,
    compare_count,
    compare_owner,
    judge_missing,
    was_there,
)
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.services.servers import Server
from agentmemory_operator.services.walks import aligned, page_of, walk

# Points of a page with their vectors: 64 of 1,536 numbers are some 1.3 MB of text.
SAMPLE_PAGE = 64

SETTLED_MS = 600_000
"""After the move of a rebuild: some requests' time, and what it takes to embed what they left."""

OpenCopy = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
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


async def compare(copy: str, subject: Subject, server: Server) -> Verdict:
    """Return what a copy comes to that was restored of a snapshot.

    Raises:
        TransientError: one of both collections cannot be read for now.
    """
    restored = await _observed(copy, server)
    if restored is None or restored.state == RED:
        fault = f"Qdrant calls the restored collection red: {restored.fault}" if restored else "nothing was restored"
        return Verdict((Finding(check=Check.RESTORE, is_good=False, message=fault),))
    live, why_not = await _live(subject, server)
    return await _Comparison(copy, restored.collection, subject, server, live).verdict(why_not)


async def _observed(physical: str, server: Server) -> Observed | None:
    # No alias is asked for: a copy has none, and a live collection is asked for by its own name.
    return await server.collections.observe(physical, physical, is_linked=True)


async def _live(subject: Subject, server: Server) -> tuple[Observed | None, str]:
    """Return the live collection, or why there is none to compare with."""
    gone = "the live collection is gone: compared with what was recorded alone"
    if subject.live is None:
        return None, gone
    metadata = await server.snapshots.metadata(subject.live)
    observed = await _observed(subject.live, server)
    if metadata is None or observed is None or is_placeholder(metadata):
        return None, gone
    begun_ms = subject.recorded.begun_ms
    if begun_ms is not None and any(_ms(record.applied_at) >= begun_ms for record in records_from(metadata)):
        return None, "another snapshot was restored into the live collection since: compared with the record alone"
    if begun_ms is not None and _was_settling(record_from_json(metadata), subject.live, begun_ms):
        return None, "a rebuild of the collection was ending when it was made: compared with the record alone"
    return observed, ""


def _was_settling(rebuild: Record | None, live: str, begun_ms: int) -> bool:
    """Tell whether a snapshot was begun while what came late from before a rebuild was still set right.

    That gives points other vectors without another revision.
    """
    if rebuild is None or rebuild.target != live or rebuild.moved_ms is None or begun_ms < rebuild.moved_ms - SKEW_MS:
        return False
    return rebuild.step is not Step.DONE or begun_ms < rebuild.moved_ms + SETTLED_MS


def _ms(time: str) -> int:
    try:
        return parse_time(time)
    except ValueError:
        return 0


@dataclass(slots=True)
class _Comparison:
    """One comparison under way."""

    copy: str
    settings: Collection
    subject: Subject
    server: Server
    live: Observed | None
    lots: Lots = field(init=False)
    page: int = field(init=False)

    def __post_init__(self) -> None:
        self.lots = Lots(self.subject.uid)
        collections = [self.settings, *([self.live.collection] if self.live else [])]
        self.page = page_of(*collections)

    async def verdict(self, why_not: str) -> Verdict:
        recorded, live = self.subject.recorded, self.live.collection if self.live else None
        owner = self.subject.owner or (live.marker if live else None)
        findings = [
            compare_owner(self.settings.marker, owner),
            *compare_configuration(self.settings, live, recorded.config_hash),
            await self._count(),
        ]
        if self.live is not None:
            findings += [await self._missing(self.live.physical), *await self._contents(self.live)]
        return Verdict(tuple(findings), why_not)

    async def _count(self) -> Finding:
        copied = await self.server.collections.count(self.copy)
        recorded = self.subject.recorded
        deleted: int | None = None
        if self.live is not None and recorded.begun_ms is not None:
            since = {"key": TOMBSTONE_KEY, "range": {"gte": recorded.begun_ms - SKEW_MS}}
            deleted = await self.server.points.count(self.live.physical, {"must": [since]})
        return compare_count(copied, recorded, deleted)

    async def _missing(self, live: str) -> Finding:
        """Walk both collections by their ids, and draw the sample on the way."""
        known, removed = 0, 0
        lost: list[str] = []
        points = self.server.points
        walks = (walk(points, name, self.page) for name in (self.copy, live))
        async for copied, found in aligned(*walks):
            both = copied.keys() & found.keys()
            known += len(both)
            removed += len(copied) - len(both)
            self.lots.offer(both)
            lost += await self._lost(live, sorted(found.keys() - both, key=str))
        return judge_missing(known, lost, removed=removed)

    async def _lost(self, live: str, ids: Sequence[PointId]) -> list[str]:
        """Return those of a page's live points alone that were there before the snapshot."""
        begun_ms = self.subject.recorded.begun_ms
        if begun_ms is None or not ids:
            return []
        rows = await self._rows(live, ids, ["updatedAt"])
        old = [id_ for id_, row in rows.items() if was_there(row.get("updatedAt"), begun_ms)]
        # Asked by name: nothing depends on the order in which a server lists its points.
        there = await self._rows(self.copy, old, ["updatedAt"]) if old else {}
        return [str(id_) for id_ in old if id_ not in there]

    async def _rows(
        self, collection: str, ids: Sequence[PointId], keys: list[str] | None = None
    ) -> dict[PointId, Json]:
        """Return payloads by id; an adopted collection may have numbers for ids."""
        rows = await self.server.points.retrieve(collection, cast("Sequence[str]", ids), keys=keys)
        return {row["id"]: row["payload"] or {} for row in rows}

    async def _contents(self, live: Observed) -> tuple[Finding, Finding]:
        drawn = self.lots.drawn
        copies = await self._points(self.copy, drawn)
        lives = await self._points(live.physical, drawn)
        has_keyword = self.settings.has_keyword and live.collection.has_keyword
        compared = compare_points(copies, lives, has_keyword=has_keyword)
        probes = await self._probes(live.physical, copies, compared.equal[: self.page])
        return judge_sample(compared), probes

    async def _points(self, collection: str, ids: Sequence[PointId]) -> list[Json]:
        """Return points with payload and vectors."""
        found: list[Json] = []
        for part in _parts(ids, min(SAMPLE_PAGE, self.page)):
            body = {"filter": {"must": [{"has_id": list(part)}]}, "limit": len(part)}
            rows, _ = await self.server.points.scroll(collection, body | {"with_payload": True, "with_vector": True})
            found += rows
        return found

    async def _probes(self, live: str, copies: Sequence[Json], equal: Sequence[PointId]) -> Finding:
        probes = [probe_of(point, equal) for point in probe_points(copies, equal)]
        if not probes:
            return judge_probes(0, ())
        try:
            answers = [await self.server.points.query_batch(where, probes) for where in (self.copy, live)]
        except StoreRejected as exc:
            return judge_probes(0, (), refused=str(exc))
        off = {id_ for pair in zip(*answers, strict=True) for id_ in score_differences(*pair)}
        return judge_probes(len(probes), sorted(await self._unchanged(live, copies, off), key=str))

    async def _unchanged(self, live: str, copies: Iterable[Json], ids: set[PointId]) -> set[PointId]:
        """Return those that nobody wrote between the sample and the search."""
        if not ids:
            return ids
        now = await self._rows(live, sorted(ids, key=str))
        before = {point["id"]: point["payload"] for point in copies if point["id"] in ids}
        return {id_ for id_, payload in before.items() if id_ in now and is_unchanged(payload, now[id_])}


def _parts(ids: Sequence[PointId], size: int) -> Iterable[Sequence[PointId]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
