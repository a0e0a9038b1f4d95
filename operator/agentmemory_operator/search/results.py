"""Post-process the results of a search: rerank them by a cross-encoder, cap their sessions, read their neighbours.

If the cross-encoder cannot be opened, is unavailable or too slow, the search keeps its order and returns a warning.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import RerankerUnavailable, SpecInvalid
from agentmemory_operator.memories.point_pages import query_all, read_without_tombstones
from agentmemory_operator.memories.rules.filters import Selection, narrow, visible_filter
from agentmemory_operator.memories.rules.record import ORDER_KEY, PUBLIC_PAYLOAD, MemoryRecord, record_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Reranker
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

OpenReranker = Callable[[AgentSettings], Reranker]
"""Returns the reranker of an agent that has one, without waiting."""


class MeteredReranker:
    """Wrapper of a reranker that records the duration, outcome and number of texts of each call."""

    def __init__(self, inner: Reranker, meter: ApiMeter) -> None:
        self._inner = inner
        self._meter = meter

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order. Larger is better. Errors of the inner reranker pass through."""
        with self._meter.measure_reranking(len(texts)):
            return await self._inner.rerank(model, query, texts)


@dataclass(frozen=True, slots=True)
class RerankedPoints:
    """Points in their final order.

    Attributes:
        numbers: Scores of the cross-encoder by id of the points that it read; empty if nothing was reranked.
        warnings: Reason why the cross-encoder failed; empty if it did not fail or was not called.
    """

    points: Sequence[Json]
    numbers: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


async def rerank_points(
    open_reranker: OpenReranker, settings: AgentSettings, query: str | None, points: Sequence[Json]
) -> RerankedPoints:
    """Rerank the first `candidates` points of an agent's search; the remaining ones follow in their order.

    A service outside this process does not get the texts of sealed memories: they keep their ranks. If the
    cross-encoder fails, keep the order of all points and return a warning. If the settings name no cross-encoder or
    there is no query, rerank nothing.
    """
    reranking = settings.ranking.rerank
    if reranking is None or query is None:
        return RerankedPoints(points)
    first, remaining = points[: reranking.candidates], points[reranking.candidates :]
    readable = [point for point in first if not (reranking.url and point["payload"].get(ZONE_KEY))]
    if not readable:
        return RerankedPoints(points)
    texts = [record_of(point["payload"]).content for point in readable]
    try:
        numbers_in_order = await open_reranker(settings).rerank(reranking.model, query, texts)
    except (SpecInvalid, RerankerUnavailable) as exc:
        return RerankedPoints(points, warnings=(f"{exc}; results are ordered by score",))
    numbers = {point["id"]: number for point, number in zip(readable, numbers_in_order, strict=True)}
    ordered = iter(sorted(readable, key=lambda point: numbers[point["id"]], reverse=True))
    reranked = [next(ordered) if point["id"] in numbers else point for point in first]
    return RerankedPoints([*reranked, *remaining], numbers)


MAX_EXTRA_RESULTS = 200


def max_fetched(top_k: int) -> int:
    """Return how many results to request from Qdrant if sessions are capped: 10 times as many, at most 200 more."""
    return min(10 * top_k, top_k + MAX_EXTRA_RESULTS)


@dataclass(frozen=True, slots=True)
class CappedPoints:
    """Results of a search with a maximum number for each session.

    Attributes:
        left_out: Points that were left out before there were enough results, in their order.
        warnings: Reason why the cap left fewer than `top_k` results; empty if there are `top_k`, or fewer were found.
    """

    points: Sequence[Json]
    left_out: Sequence[Json] = ()
    warnings: tuple[str, ...] = ()


def cap_sessions(points: Sequence[Json], per_session: int | None, top_k: int) -> CappedPoints:
    """Return the first `top_k` points, at most `per_session` of each session of a user.

    If `per_session` is None, no session is limited. Memories without a session are never limited. The next points take
    the places of those left out.
    """
    if per_session is None:
        return CappedPoints(points[:top_k])
    counts: Counter[tuple[str, str]] = Counter()
    chosen: list[Json] = []
    left_out: list[Json] = []
    for point in points:
        if len(chosen) == top_k:
            break
        session = point["payload"].get("sessionId")
        counts[key := (point["payload"]["userId"], session)] += 1
        (chosen if session is None or counts[key] <= per_session else left_out).append(point)
    is_short = len(chosen) < top_k <= len(points)
    short = f"diversity: the best {len(points)} memories have {len(chosen)} results with {per_session} of each session"
    return CappedPoints(chosen, left_out, (short,) if is_short else ())


MAX_RESULTS_WITH_NEIGHBOURS = 100
"""Maximum number of results with neighbours: each needs two queries."""

Neighbours = Mapping[str, tuple[MemoryRecord, ...]]
"""Neighbours by the id of their result: memories of its session, in session order, without the result itself."""


async def read_neighbours(agent: Agent, points: Sequence[Json], count: int, *, now_ms: int) -> Neighbours:
    """Read the visible neighbours of results; a result whose payload has no session order gets no entry.

    Args:
        points: Results, with their payloads.
        count: Maximum number of neighbours before each result, and after it.

    Raises:
        StoreUnavailable: If Qdrant is unavailable, or memories were deleted during each of 10 reads.
    """
    rows = [point["payload"] for point in points if ORDER_KEY in point["payload"]]
    if not rows:
        return {}
    bodies = [body for row in rows for body in _lists(agent, row, count, now_ms)]
    found = await read_without_tombstones(
        lambda: query_all(agent, bodies),
        lambda lists: [point for list_ in lists for point in list_],
    )
    read = [[record_of(point["payload"]) for point in points] for points in found]
    return {
        row["id"]: (*reversed(before), *after) for row, before, after in zip(rows, read[::2], read[1::2], strict=True)
    }


def _lists(agent: Agent, row: Json, count: int, now_ms: int) -> list[Json]:
    """Return the queries for the memories before a memory, nearest first, and for those after it."""
    session = Selection(user_id=row["userId"], scopes=(), session_id=row["sessionId"])
    visible = visible_filter(session, now_ms, agent.settings.ranking.endings)
    return [
        {
            "filter": narrow(visible, {"key": ORDER_KEY, "range": {bound: row[ORDER_KEY]}}),
            "query": {"order_by": {"key": ORDER_KEY, "direction": direction}},
            "limit": count,
            "with_payload": PUBLIC_PAYLOAD,
        }
        for bound, direction in (("lt", "desc"), ("gt", "asc"))
    ]
