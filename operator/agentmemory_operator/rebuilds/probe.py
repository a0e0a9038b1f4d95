"""Measure the recall of a rebuild: run the probe searches of `rebuilds/rules/recall_probes.py` in both collections."""

import logging
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.collection import Collection, Observation, effective_limits
from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.memories.point_scan import page_size, read_rows_by_id
from agentmemory_operator.memories.rules.comparison import VERSION_KEYS, PointId, is_alike, vectors_of
from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.rules.recall_probes import (
    FETCHED_RESULTS,
    TOP_K,
    ProbeComparison,
    ProbeResults,
    choose_probes,
    compute_recall,
)
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from agentmemory_operator.search.rules.hybrid import fusion_of
from agentmemory_operator.spec.effective.settings import effective_settings, has_keyword
from agentmemory_operator.spec.presets import NO_GATE
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, is_locked

log = logging.getLogger(__name__)

PROBES_PER_CALL = 4
"""Probes in a call, each with an exact and an index search. More would slow down concurrent searches of agents."""


@dataclass(frozen=True, slots=True)
class RecallMeasurement:
    """Measures the recall of the same searches in the source and the target of a rebuild.

    Attributes:
        target: Target as last observed.
        embedder: Embedder of the target's vectors; None if they were copied.
    """

    task: RebuildRun
    target: Observation
    embedder: Embedder | None

    async def measure(self, points: Sequence[Json], alike: Set[PointId]) -> ProbeRecall:
        """Run the probes; return their figures. `probes` is 0 if none could be run, or Qdrant rejects a search.

        Args:
            points: Points of the source with payload and vectors, in the order of the sample.
            alike: Ids of the points with the same revision in both collections.

        Raises:
            RebuildPaused: If the rebuild is paused, or the embedding provider rejects key or model.
            RebuildCancelled: If the rebuild is no longer requested.
            RequestInvalid: If the embedding provider rejects a text.
            TransientError: If a collection cannot be searched, or texts cannot be embedded, now.
        """
        embedder = self.embedder
        probes = choose_probes(points, alike, needs_content=embedder is not None)
        source_vectors: list[Vector] = [vectors_of(point)[""] for point in probes]
        target_vectors = source_vectors
        if embedder is not None and probes:
            target_vectors = await embedder.embed([point["payload"]["content"] for point in probes])
        try:
            sources = await self._search(self.task.source_name, self.task.source.collection, probes, source_vectors)
            targets = await self._search(self.task.target_name, self.target.collection, probes, target_vectors)
        except StoreRejected as exc:
            # Report no recall if Qdrant rejects a search, for example because strict mode forbids exact searches.
            log.info("recall of %s is not measured: %s", self.task.target_name, exc)
            return ProbeRecall(probes=0)
        probed = [
            ProbeComparison(id=point["id"], source=source, target=target)
            for point, source, target in zip(probes, sources, targets, strict=True)
        ]
        is_embedded = embedder is not None
        is_comparable = not is_embedded and self.task.source.collection.distance == self.target.collection.distance
        unchanged = await self._read_unchanged(probed)
        return compute_recall(probed, unchanged, is_embedded=is_embedded, is_comparable=is_comparable)

    async def _search(
        self, name: str, collection: Collection, probes: Sequence[Json], vectors: Sequence[Vector]
    ) -> list[ProbeResults]:
        answers: list[ProbeResults] = []
        searches = list(zip(await self._plans(collection, probes), vectors, strict=True))
        for start in range(0, len(searches), PROBES_PER_CALL):
            await self.task.check()
            bodies = [
                search_plan.query(vector, distance=collection.distance)
                for plan, vector in searches[start : start + PROBES_PER_CALL]
                for search_plan in (plan.with_full_scans(), plan)
            ]
            results = await self.task.server.points.query_batch(name, bodies)
            answers += [
                ProbeResults(exact=_scored(exact), approximate=_scored(approximate))
                for exact, approximate in zip(results[::2], results[1::2], strict=True)
            ]
        return answers

    async def _plans(self, collection: Collection, probes: Sequence[Json]) -> list[CandidatePlan]:
        users = [str(point["payload"]["userId"]) for point in probes]
        plans = {user: await self._plan(user, collection) for user in dict.fromkeys(users)}
        return [plans[user] for user in users]

    async def _plan(self, user_id: str, collection: Collection) -> CandidatePlan:
        """Return the vector search for a user's memories as the object configures it, with fewer results.

        The index examines as many candidates as for a real search by text, but only the nearest are returned.
        """
        ranking, now_ms = effective_settings(self.task.memory).ranking, self.task.clock.now_ms()
        filter_ = visible_filter(Selection(user_id=user_id), now_ms, ranking.endings)
        eligible = await self.task.server.points.count(self.task.source_name, filter_, exact=False)
        words = int(has_keyword(self.task.memory) and fusion_of(ranking) is not None)
        plan = plan_candidates(ranking, filter_, eligible=eligible, top_k=TOP_K, now_ms=now_ms, extra_lists=words)
        max_ef = effective_limits(collection.strict_mode).get("search_max_hnsw_ef", plan.limit)
        return replace(
            plan,
            classes=plan.classes[:1],
            filters=plan.filters[:1],
            limit=min(FETCHED_RESULTS, page_size(collection)),
            min_similarity=NO_GATE,
            search_ef=max(plan.search_ef or 0, min(plan.limit, int(max_ef))),
        )

    async def _read_unchanged(self, probed: Sequence[ProbeComparison]) -> dict[PointId, Hashable]:
        """Return the ids of found points that have the same revision in both collections after the searches.

        Each has the hash of its text as value, or its id if no hash is stored. Encrypted memories are left out.
        """
        ids = {id_ for probe in probed for id_ in probe.source.ids | probe.target.ids}
        points, page = self.task.server.points, page_size(self.task.source.collection, self.target.collection)
        keys = (*VERSION_KEYS, "contentHash", SEALED_KEY)
        sources = await read_rows_by_id(points, self.task.source_name, ids, page, keys=keys)
        targets = await read_rows_by_id(points, self.task.target_name, ids, page, keys=VERSION_KEYS)
        unchanged = {id_: row for id_, row in sources.items() if is_alike(row, targets.get(id_))}
        # Leave out encrypted memories, which have no vector in the target yet.
        return {id_: row.get("contentHash") or id_ for id_, row in unchanged.items() if not is_locked(row)}


def _scored(points: Iterable[Json]) -> list[tuple[PointId, float]]:
    return [(point["id"], point["score"]) for point in points]
