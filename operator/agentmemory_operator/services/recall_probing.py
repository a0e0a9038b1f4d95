"""Searches both collections of a rebuild for the same memories, as `domain/recall_probes.py` says."""

import logging
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass

from agentmemory_operator.domain.candidates import CandidatePlan
from agentmemory_operator.domain.collection import Collection, Observed
from agentmemory_operator.domain.divergence import VERSION_KEYS
from agentmemory_operator.domain.effective import Ranking, effective_settings
from agentmemory_operator.domain.filters import Selection, visible
from agentmemory_operator.domain.presets import NO_GATE
from agentmemory_operator.domain.rebuild_verification import is_alike
from agentmemory_operator.domain.recall_figures import Recall
from agentmemory_operator.domain.recall_probes import FETCHED, Answer, Probed, probes_among, recall_of
from agentmemory_operator.domain.samples import PointId, vectors_of
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.ports import Embedder, Json, Vector
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.walks import page_of, rows_of

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""Probes of a call, each an exact search and one of the index: agents search meanwhile."""


@dataclass(frozen=True, slots=True)
class RecallProbing:
    """Measures what searches find before and after a rebuild.

    Attributes:
        embedder: of the target's vectors; None where they were copied.
    """

    task: Task
    target: Observed
    embedder: Embedder | None

    @property
    def _ranking(self) -> Ranking:
        return effective_settings(self.task.memory).ranking

    async def measure(self, points: Sequence[Json], alike: Set[PointId]) -> Recall:
        """Return what the probes come to; none of a server that makes no exact searches.

        Args:
            points: of the source, with payload and vectors, in the order of their lots.
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
            _log.info("what searches of %s find is not measured: %s", self.task.target_name, exc)
            return Recall(probes=0)
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
    ) -> list[Answer]:
        answers: list[Answer] = []
        plans = [self._plan(str(point["payload"]["userId"]), collection) for point in probes]
        for start in range(0, len(probes), AT_ONCE):
            await self.task.check()
            part = list(zip(plans, vectors, strict=True))[start : start + AT_ONCE]
            bodies = [
                each.query(vector, distance=collection.distance)
                for plan, vector in part
                for each in (plan.searched_exactly(), plan)
            ]
            found = await self.task.server.points.query_batch(name, bodies)
            answers += [
                Answer(exact=_scored(exact), approximate=_scored(approximate))
                for exact, approximate in zip(found[::2], found[1::2], strict=True)
            ]
        return answers

    def _plan(self, user_id: str, collection: Collection) -> CandidatePlan:
        """Return the search for a user's memories as the object has it made, by meaning alone."""
        ranking, now_ms = self._ranking, self.task.clock.now_ms()
        return CandidatePlan(
            filters=(visible(Selection(user_id=user_id), now_ms, ranking.types),),
            limit=min(FETCHED, page_of(collection)),
            is_exact=False,
            min_similarity=NO_GATE,
            search_ef=ranking.search_ef,
            rescore=ranking.rescore,
            oversampling=ranking.oversampling,
        )

    async def _unchanged(self, probed: Sequence[Probed]) -> dict[PointId, Hashable]:
        """Return those of the points that were found which are of one revision in both, also after the searches."""
        ids = {id_ for one in probed for id_ in one.source.ids | one.target.ids}
        points, page = self.task.server.points, page_of(self.task.source.collection, self.target.collection)
        sources = await rows_of(points, self.task.source_name, ids, page, keys=(*VERSION_KEYS, "contentHash"))
        targets = await rows_of(points, self.task.target_name, ids, page, keys=VERSION_KEYS)
        return {id_: row.get("contentHash") or id_ for id_, row in sources.items() if is_alike(row, targets.get(id_))}


def _scored(points: Iterable[Json]) -> list[tuple[PointId, float]]:
    return [(point["id"], point["score"]) for point in points]
