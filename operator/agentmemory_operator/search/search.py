"""Search: read counts, vector and entities; then one request to Qdrant finds, scores and returns the best memories."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.agents.checks import normalise_vector
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.connections.embedders import embed_question
from agentmemory_operator.connections.rules.capabilities import IDF_CORPUS, SCORE_EXTREMES
from agentmemory_operator.entities.graphs import EntityGraphs
from agentmemory_operator.entities.rules.activation import find_by_query
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.memories.point_pages import page_limit, read_without_tombstones
from agentmemory_operator.memories.rules.filters import Filter
from agentmemory_operator.memories.rules.keywords import question_document
from agentmemory_operator.memories.rules.record import PUBLIC_PAYLOAD, MemoryRecord, record_of
from agentmemory_operator.ports.base import Clock, Json, Vector
from agentmemory_operator.search.answers import CandidateCounts, SearchAnswer, SearchHit
from agentmemory_operator.search.eligible import find_eligible
from agentmemory_operator.search.requests import SearchRequest, find_request_errors, list_warnings, resolve_ranking
from agentmemory_operator.search.results import OpenReranker, cap_sessions, max_fetched, read_neighbours, rerank_points
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from agentmemory_operator.search.rules.exactness import (
    UnlistedMemories,
    build_end_queries,
    is_proven_complete,
    read_ends,
    read_keyword_end,
)
from agentmemory_operator.search.rules.hybrid import (
    NO_ACTIVATIONS,
    CandidateQueries,
    Match,
    build_hybrid_queries,
    build_keyword_query,
    build_scoring_template,
    fusion_of,
    ranks_evidence,
)
from agentmemory_operator.search.rules.query_features import QueryFeatures, add_evidence
from agentmemory_operator.search.rules.score import (
    NO_PLACEHOLDERS,
    compute_score,
    determines_similarity,
    score_inputs,
    solve_similarity,
)
from agentmemory_operator.search.rules.score_trees import EXCLUDED_SCORE
from agentmemory_operator.search.times import extract_request_features
from agentmemory_operator.spec.effective.entities import EntitySettings
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.presets.table import Fusion


class SearchService:
    """Executes searches, and adds the returned memories to the access counts."""

    def __init__(
        self, clock: Clock, access_counts: AccessCounts, open_reranker: OpenReranker, graphs: EntityGraphs | None = None
    ) -> None:
        self._clock = clock
        self._access_counts = access_counts
        self._open_reranker = open_reranker
        self._graphs = graphs or EntityGraphs()

    async def search(self, agent: Agent, request: SearchRequest) -> SearchAnswer:
        """Return the memories that rank best, and add them to the access counts. Raises: As `find`."""
        answer = await self.find(agent, request)
        self._access_counts.note(agent.settings.slug, [hit.record.id for hit in answer.results])
        return answer

    async def find(self, agent: Agent, request: SearchRequest) -> SearchAnswer:
        """Return the memories that rank best, without counting them as accessed.

        Raises:
            RequestInvalid: If `find_request_errors`, `find_eligible` or the embedding provider rejects the request.
            SpecInvalid, StoreRejected: If the embedder's key, model or host is not accepted; if Qdrant rejects a query.
            StoreUnavailable, EmbedderUnavailable: If the search cannot be done now. Retry.
        """
        started_s = time.perf_counter()
        if errors := find_request_errors(request, agent):
            raise RequestInvalid(errors)
        setup, vector = await self._begin(agent, request, now_ms=self._clock.now_ms())
        response = await _ask(agent, request, setup, vector)
        above_threshold = setup.filter_points(response.points)
        reread = await rerank_points(self._open_reranker, agent.settings, request.query, above_threshold)
        capped, span = cap_sessions(reread.points, request.per_session, setup.top_k), request.neighbours
        returned = capped.points
        # Do not count memories that the model excludes as removed by the threshold.
        excluded = sum(point["score"] <= EXCLUDED_SCORE for point in response.points)
        total = max(len(response.points), min(setup.eligible, setup.max_candidates))
        ranked = {memory_id: (rank, match) for rank, (memory_id, match) in enumerate(response.matches.items(), 1)}
        return SearchAnswer(
            results=tuple(
                _found(point, ranked.get(point["id"]), setup, rerank=reread.numbers.get(point["id"]))
                for point in returned
            ),
            generation=agent.settings.ranking_generation,
            ranking=setup.ranking,
            has_terms=request.terms,
            total_candidates=total,
            removed_by_threshold=max(0, min(setup.top_k, total - excluded) - len(above_threshold[: setup.top_k])),
            threshold=setup.threshold,
            duration_ms=(time.perf_counter() - started_s) * 1000,
            candidates=response.candidates(setup.eligible) if request.explain else None,
            time_spans=(setup.features.dates if setup.features else ()) if request.explain else None,
            neighbours=await read_neighbours(agent, returned, span, now_ms=setup.now_ms) if span else None,
            left_out=capped.left_out if request.explain else None,
            warnings=(*list_warnings(request, agent), *reread.warnings, *capped.warnings),
        )

    async def _begin(self, agent: Agent, request: SearchRequest, *, now_ms: int) -> tuple["_SearchSetup", Vector]:
        """Count the eligible memories, embed the query and read entities; return the setup and the query's vector.

        If the request has a vector, nothing is embedded.
        """
        searches_words = agent.keyword is not None and request.query is not None and request.hybrid is not False
        fusion = fusion_of(agent.settings.ranking) if searches_words else None
        narrow = partial(find_eligible, agent, request.selection, now_ms)
        follow = partial(self._along, agent, request, fusion)
        if request.vector is not None:
            # Await the calls one after the other. They rarely wait, so tasks would cost more than they save.
            vector, narrowed, activations = (
                normalise_vector(request.vector, distance=agent.distance),
                await narrow(),
                await follow(),
            )
        else:
            embedding = embed_question(agent.embedder, request.query or "")
            vector, narrowed, activations = await asyncio.gather(embedding, narrow(), follow())
        return _resolve(agent, request, fusion, narrowed=narrowed, along=activations, now_ms=now_ms), vector

    async def _along(self, agent: Agent, request: SearchRequest, fusion: Fusion | None) -> Mapping[str, float]:
        """Return activations of memories linked to names in the query, best first.

        Empty if the agent has no entities, there is no query, or the search fuses no signals.
        """
        settings = agent.settings.entities or EntitySettings()
        if agent.entity_lists is None or request.query is None or fusion is None or fusion.method == "None":
            return NO_ACTIVATIONS
        found = await self._graphs.read(agent, request.selection.owners)
        return find_by_query(found, request.query, agent.entity_lists, settings.spreading)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchSetup:
    """Setup of one search, with all defaults filled in.

    Attributes:
        top_k: Maximum number of results.
        fetched: Number of results requested from Qdrant; more than `top_k` to rerank, or to cap sessions.
        words: Keyword query; None if keywords do not count in the search.
        features: Features of the query; None if the agent has no keyword index or the request no query.
        solves_terms: True to derive the similarity of each result from its score.
        activations: Activation of the memories linked to the query's names.
    """

    ranking: Ranking
    now_ms: int
    top_k: int
    fetched: int
    threshold: float
    eligible: int
    plan: CandidatePlan
    fusion: Fusion | None
    words: Json | None
    features: QueryFeatures | None
    solves_terms: bool
    activations: Mapping[str, float]

    @property
    def max_candidates(self) -> int:
        """Maximum number of memories on all lists."""
        return self.plan.union_size(len(self.activations)) if self.words else self.plan.total

    def filter_points(self, points: Sequence[Json]) -> list[Json]:
        """Return the points that reach the threshold and are not excluded by the model."""
        return [point for point in points if point["score"] > EXCLUDED_SCORE and point["score"] >= self.threshold]


def _resolve(
    agent: Agent,
    request: SearchRequest,
    fusion: Fusion | None,
    *,
    narrowed: tuple[Filter, int],
    along: Mapping[str, float],
    now_ms: int,
) -> _SearchSetup:
    (filter_, eligible), ranking = narrowed, resolve_ranking(agent, request)
    top_k = ranking.limit if request.top_k is None else request.top_k
    fetched = top_k if request.per_session is None else max_fetched(top_k)
    if ranking.rerank and request.query is not None:
        fetched = max(fetched, ranking.rerank.candidates)
    fetched = max(top_k, page_limit(agent, fetched))
    keyword, query = agent.keyword, request.query
    corpus = request.selection if IDF_CORPUS in agent.capabilities else None
    extra_lists = 0 if fusion is None else 2 if along else 1
    plan = plan_candidates(
        ranking, filter_, eligible=eligible, top_k=top_k, fetched=fetched, now_ms=now_ms, extra_lists=extra_lists
    )
    return _SearchSetup(
        ranking=ranking,
        now_ms=now_ms,
        top_k=top_k,
        fetched=fetched,
        threshold=ranking.threshold if request.threshold is None else request.threshold,
        eligible=eligible,
        plan=plan if agent.allows_exact else replace(plan, allows_exact=False),
        fusion=fusion,
        words=build_keyword_query(question_document(query or "", keyword), corpus) if fusion and keyword else None,
        features=extract_request_features(agent, request, now_ms),
        solves_terms=request.terms and not request.explain and fusion is None and determines_similarity(ranking),
        activations=along,
    )


@dataclass(frozen=True, slots=True)
class _Response:
    """Response of Qdrant.

    Attributes:
        matches: Matches of all candidates, nearest first; only with `explain`, and with `terms` if scores do not
            determine them.
        below_threshold: Number of candidates whose score is below the threshold; only with `explain`.
    """

    points: list[Json]
    matches: Mapping[str, Match] = field(default_factory=dict)
    below_threshold: int = 0
    is_exact: bool = False

    def candidates(self, eligible: int) -> CandidateCounts:
        """Return the figures of the candidates; only with `explain`."""
        return CandidateCounts(
            scored=len(self.matches), below_threshold=self.below_threshold, eligible=eligible, is_exact=self.is_exact
        )


async def _ask(agent: Agent, request: SearchRequest, setup: _SearchSetup, vector: Vector) -> _Response:
    question = _question(agent, setup, setup.plan, vector)
    body = _body(agent, question, setup) | {"with_payload": PUBLIC_PAYLOAD}
    if request.explain:
        return await _explained(agent, request, setup, vector=vector, bodies=[body, *question.lists], question=question)
    if request.terms and not setup.solves_terms:
        bodies = [body, *question.lists]
        answers = await read_without_tombstones(
            lambda: agent.store.query_batch(agent.alias, bodies), lambda answers: answers[0]
        )
        return _Response(answers[0], question.matches(answers[1:], setup.features))
    return _Response(await read_without_tombstones(lambda: agent.store.query(agent.alias, body), lambda points: points))


async def _explained(
    agent: Agent,
    request: SearchRequest,
    setup: _SearchSetup,
    *,
    vector: Vector,
    bodies: list[Json],
    question: CandidateQueries,
) -> _Response:
    """Search and read all candidates' matches in one request. If exact search is allowed, check for missed memories."""
    # All candidates, to count those below the threshold.
    limits = {"limit": max(setup.fetched, question.lists[0]["limit"])}
    proof = _body(agent, _question(agent, setup, setup.plan.with_full_scans(), vector), setup) | limits
    ends = (
        build_end_queries(setup.plan, vector, distance=agent.distance, words=setup.words) if agent.allows_exact else []
    )
    queries = [*bodies, proof, *ends]
    points, *found = await read_without_tombstones(
        lambda: agent.store.query_batch(agent.alias, queries), lambda answers: answers[0]
    )
    lists, (scored, *end_lists) = found[: len(question.lists)], found[len(question.lists) :]
    best = scored[: setup.fetched]
    below = sum(EXCLUDED_SCORE < point["score"] < setup.threshold for point in scored)
    unlisted = UnlistedMemories(
        ranking=setup.ranking,
        distance=agent.distance,
        ends=read_ends(setup.plan, end_lists, distance=agent.distance),
        by_words=read_keyword_end(setup.plan, end_lists, setup.features),
        fusion=setup.fusion,
        types=request.selection.types,
    )
    if not agent.allows_exact:
        return _Response(points, question.matches(lists, setup.features), below)
    is_same = {point["id"] for point in setup.filter_points(points)} == {
        point["id"] for point in setup.filter_points(best)
    }
    scores = [point["score"] for point in best]
    # Prove in a thread: hundreds of cells take tens of milliseconds, which would block the event loop.
    prove = partial(is_proven_complete, unlisted, scores, top_k=setup.fetched, threshold=setup.threshold)
    return _Response(points, question.matches(lists, setup.features), below, is_same and await asyncio.to_thread(prove))


def _body(agent: Agent, question: CandidateQueries, setup: _SearchSetup) -> Json:
    # Cache only the templates of objects. Those for the weights of a single request would evict them.
    make = build_scoring_template if setup.ranking is agent.settings.ranking else build_scoring_template.__wrapped__
    clues = setup.features
    template = make(
        *(setup.ranking, question.fusion),
        distance=agent.distance,
        has_extremes=SCORE_EXTREMES in agent.capabilities,
        has_activations=bool(question.activations),
        has_clues=clues is not None,
    )
    query = template.render(setup.now_ms, clues.placeholder_values() if clues else NO_PLACEHOLDERS)
    return {"prefetch": list(question.lists), "query": query, "limit": setup.fetched}


def _question(agent: Agent, setup: _SearchSetup, plan: CandidatePlan, vector: Vector) -> CandidateQueries:
    if setup.fusion is None or setup.words is None:
        return CandidateQueries(lists=(plan.query(vector, distance=agent.distance),), distance=agent.distance)
    return build_hybrid_queries(
        plan, vector, setup.words, distance=agent.distance, fusion=setup.fusion, activations=setup.activations
    )


def _found(point: Json, ranked: tuple[int, Match] | None, setup: _SearchSetup, *, rerank: float | None) -> SearchHit:
    record = record_of(point["payload"])
    if ranked is None and not setup.solves_terms:
        return SearchHit(record, point["score"], rerank=rerank)
    rank, match = ranked or (None, _match_from_score(record, point["score"], setup))
    numbers = (
        setup.features.compute_evidence_values(point["payload"], setup.ranking.evidence.assistant)
        if setup.features
        else {}
    )
    if ranks_evidence(setup.fusion):
        match = replace(match, evidence=numbers, fused=add_evidence(match.fused, setup.ranking.evidence, numbers))
    memory = score_inputs(record, similarity=match.fused, keyword=match.keyword or 0.0, evidence=numbers)
    return SearchHit(
        record, point["score"], compute_score(memory, setup.ranking, now_ms=setup.now_ms), match, rank, rerank
    )


def _match_from_score(record: MemoryRecord, found: float, setup: _SearchSetup) -> Match:
    similarity = solve_similarity(found, score_inputs(record), setup.ranking, now_ms=setup.now_ms)
    return Match(similarity=similarity, fused=similarity)
