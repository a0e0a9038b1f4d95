"""Searches both collections of a rebuild for the same memories, as `rebuilds/rules/probes.py` says."""

import logging
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.collection import Collection, Observed, limits_in_force
from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.memories.point_scan import page_of, rows_of
from agentmemory_operator.memories.rules.comparison import VERSION_KEYS, PointId, is_alike, vectors_of
from agentmemory_operator.memories.rules.filters import Selection, visible
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.rules.probes import FETCHED, TOP, ProbeAnswer, Probed, probes_among, recall_of
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.presets import NO_GATE
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, is_locked

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Probes of a call, each an exact search and one of the index: agents search meanwhile."""


@dataclass(frozen=True, slots=True)
class RecallProbing:
    """Measures what searches find before and after a rebuild.

    Attributes:
        embedder: of the target's vectors; None where they were copied.
    """

    task: RebuildRun
    target: Observed
    embedder: Embedder | None

    async def measure(self, points: Sequence[Json], alike: Set[PointId]) -> ProbeRecall:
        """What the probes come to; none of a server that makes no exact searches.

        Args:
            points: of the source, with payload and vectors, in the order that they were drawn in.
            alike: ids of those that are the same in both.
        """
        embedder = self.embedder
        probes = probes_among(points, alike, needs_content=embedder is not None)
        before: list[Vector] = [vectors_of(point)[""] for point in probes]
        after = before
        if embedder is not None and probes:
            after = await embedder.embed([point["payload"]["content"] for point in probes])
        try:
            sources = await self._searched(self.task.source_name, self.task.source.collection, probes, before)
            targets = await self._searched(self.task.target_name, self.target.collection, probes, after)
        except StoreRejected as exc:
            # A strict mode that allows no exact search allows no measure of what is missed.
            log.info("recall of %s is not measured: %s", self.task.target_name, exc)
            return ProbeRecall(probes=0)
        probed = [
            Probed(id=point["id"], source=source, target=target)
            for point, source, target in zip(probes, sources, targets, strict=True)
        ]
        is_embedded = embedder is not None
        is_comparable = not is_embedded and self.task.source.collection.distance == self.target.collection.distance
        unchanged = await self._unchanged(probed)
        return recall_of(probed, unchanged, is_embedded=is_embedded, is_comparable=is_comparable)

    async def _searched(
        self, name: str, collection: Collection, probes: Sequence[Json], vectors: Sequence[Vector]
    ) -> list[ProbeAnswer]:
        answers: list[ProbeAnswer] = []
        asked = list(zip(await self._plans(collection, probes), vectors, strict=True))
        for start in range(0, len(asked), AT_ONCE):
            await self.task.check()
            bodies = [
                each.query(vector, distance=collection.distance)
                for plan, vector in asked[start : start + AT_ONCE]
                for each in (plan.searched_exactly(), plan)
            ]
            found = await self.task.server.points.query_batch(name, bodies)
            answers += [
                ProbeAnswer(exact=_scored(exact), approximate=_scored(approximate))
                for exact, approximate in zip(found[::2], found[1::2], strict=True)
            ]
        return answers

    async def _plans(self, collection: Collection, probes: Sequence[Json]) -> list[CandidatePlan]:
        users = [str(point["payload"]["userId"]) for point in probes]
        plans = {user: await self._plan(user, collection) for user in dict.fromkeys(users)}
        return [plans[user] for user in users]

    async def _plan(self, user_id: str, collection: Collection) -> CandidatePlan:
        """The search for a user's memories as the object has it made, by meaning alone, but for its length.

        The index looks as far as for all the candidates of a real search, of which only the nearest come back here.
        """
        ranking, now_ms = effective_settings(self.task.memory).ranking, self.task.clock.now_ms()
        filter_ = visible(Selection(user_id=user_id), now_ms, ranking.endings)
        eligible = await self.task.server.points.count(self.task.source_name, filter_, exact=False)
        plan = plan_candidates(ranking, filter_, eligible=eligible, top_k=TOP, now_ms=now_ms)
        most_ef = limits_in_force(collection.strict_mode).get("search_max_hnsw_ef", plan.limit)
        return replace(
            plan,
            classes=plan.classes[:1],
            filters=plan.filters[:1],
            limit=min(FETCHED, page_of(collection)),
            min_similarity=NO_GATE,
            search_ef=max(plan.search_ef or 0, min(plan.limit, int(most_ef))),
        )

    async def _unchanged(self, probed: Sequence[Probed]) -> dict[PointId, Hashable]:
        """Those of the points that were found which are of one revision in both, also after the searches."""
        ids = {id_ for one in probed for id_ in one.source.ids | one.target.ids}
        points, page = self.task.server.points, page_of(self.task.source.collection, self.target.collection)
        keys = (*VERSION_KEYS, "contentHash", SEALED_KEY)
        sources = await rows_of(points, self.task.source_name, ids, page, keys=keys)
        targets = await rows_of(points, self.task.target_name, ids, page, keys=VERSION_KEYS)
        alike = {id_: row for id_, row in sources.items() if is_alike(row, targets.get(id_))}
        # What is sealed has no vector in the target yet.
        return {id_: row.get("contentHash") or id_ for id_, row in alike.items() if not is_locked(row)}


def _scored(points: Iterable[Json]) -> list[tuple[PointId, float]]:
    return [(point["id"], point["score"]) for point in points]
