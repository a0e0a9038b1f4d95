"""Search: one engine request that finds candidates, scores them by the object's ranking and returns the best."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import NamedTuple

from agentmemory_operator.agents.checks import scaled
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.connections.embedders import embed_question
from agentmemory_operator.connections.rules.capabilities import IDF_CORPUS, MIN_MAX
from agentmemory_operator.entities.graphs import EntityGraphs
from agentmemory_operator.entities.rules.activation import found_by_query
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.memories.point_pages import read_whole
from agentmemory_operator.memories.rules.filters import Filter, unindexed_keys
from agentmemory_operator.memories.rules.keywords import keyword_document
from agentmemory_operator.memories.rules.record import SHOWN, MemoryRecord, record_of
from agentmemory_operator.ports.base import Clock, Json, Vector
from agentmemory_operator.ports.models import Reranker
from agentmemory_operator.search.eligible import find_eligible
from agentmemory_operator.search.requests import SearchRequest, errors_of, ranking_of
from agentmemory_operator.search.results import Neighbours, Reread, read_again, read_neighbours
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from agentmemory_operator.search.rules.clues import Clues, clues_of, with_evidence
from agentmemory_operator.search.rules.exactness import Unseen, ask_ends, is_settled, read_ends, read_words_end
from agentmemory_operator.search.rules.hybrid import (
    NOTHING_ALONG,
    Match,
    Question,
    ask_by_both,
    fusion_of,
    look_by_words,
    ranks_evidence,
    scoring_of,
)
from agentmemory_operator.search.rules.score import (
    NO_GAPS,
    ScoreTerms,
    score,
    scored,
    similarity_behind,
    tells_similarity,
)
from agentmemory_operator.search.rules.score_trees import LEFT_OUT
from agentmemory_operator.spec.effective.entities import EntitySettings
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.presets.table import Fusion, Reranking

_UNINDEXED = (
    "{0}: no index on {1}, so all memories that match the other conditions are scanned: add"
    " {{field: {1}, type: {2}}} to spec.index.payloadIndexes"
)


class Hit(NamedTuple):
    """One result.

    Attributes:
        terms: only with `explain` and `terms`.
        match: how the memory and the question match; with `terms` the similarity alone may stand there.
        rank_before: place by similarity alone among the candidates, from 1; only with `explain`.
        rerank: the cross-encoder's number; None where it did not read this one.
    """

    record: MemoryRecord
    score: float
    terms: ScoreTerms | None = None
    match: Match | None = None
    rank_before: int | None = None
    rerank: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """How far the engine looked; only with `explain`.

    Attributes:
        scored: memories that the engine scored: candidates with at least the object's `minSimilarity`.
        below_threshold: of the candidates, searched without an index, those that the threshold on the score removes.
        eligible: memories that the filters let through.
        is_exact: proven that the best by score are the true best: nothing that was not a candidate can rank as high.
    """

    scored: int
    below_threshold: int
    eligible: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """Results, best first, and how they came about.

    Attributes:
        generation: of the object whose ranking was used.
        ranking: the one used, with the request's own figures.
        has_terms: similarity, recency and utility were asked for.
        total_candidates: memories that competed: those the filters let through, at most as many as the engine scores.
            It may lag 10 s behind what another process writes.
        removed_by_threshold: results that there would be besides, with no threshold on the score or the similarity.
        threshold: on the score; minus infinity where there is none.
        took_ms: embedding, engine and reranking together.
        neighbours: of results, where they were asked for.
        warnings: what makes this search dear, or why nothing was reranked, with the way out.
    """

    results: tuple[Hit, ...]
    generation: int
    ranking: Ranking
    has_terms: bool
    total_candidates: int
    removed_by_threshold: int
    threshold: float
    took_ms: float
    candidates: Candidates | None = None
    neighbours: Neighbours | None = None
    warnings: tuple[str, ...] = ()


class Recall:
    """Answers searches; notes what was returned in the access counts."""

    def __init__(
        self, clock: Clock, access_counts: AccessCounts, reranker: Reranker, graphs: EntityGraphs | None = None
    ) -> None:
        self._clock = clock
        self._access_counts = access_counts
        self._reranker = reranker
        self._graphs = graphs or EntityGraphs()

    async def search(self, agent: Agent, request: SearchRequest) -> SearchAnswer:
        """The memories that rank best.

        Raises:
            RequestInvalid: the vector does not fit, a query without embedder, an unknown type.
            StoreUnavailable, EmbedderUnavailable: try again.
        """
        started_s = time.perf_counter()
        if errors := errors_of(request, agent):
            raise RequestInvalid(errors)
        look, vector = await self._begin(agent, request, now_ms=self._clock.now_ms())
        asked = await _ask(agent, request, look, vector)
        kept = look.kept(asked.points)
        reread = Reread(kept)
        if look.rerank and request.query is not None:
            reread = await read_again(self._reranker, look.rerank, request.query, kept)
        answered, around = reread.points[: look.top_k], request.neighbours
        self._access_counts.note(agent.settings.slug, [point["id"] for point in answered])
        # Whatever the threshold.
        left_out_by_model = sum(point["score"] <= LEFT_OUT for point in asked.points)
        total = max(len(asked.points) - left_out_by_model, min(look.eligible, look.plan.total))
        placed = {memory_id: (rank, match) for rank, (memory_id, match) in enumerate(asked.matches.items(), 1)}
        unindexed = unindexed_keys(request.selection, agent.settings.indexes)
        return SearchAnswer(
            results=tuple(
                _found(point, placed.get(point["id"]), look, rerank=reread.numbers.get(point["id"]))
                for point in answered
            ),
            generation=agent.settings.ranking_generation,
            ranking=look.ranking,
            has_terms=request.terms,
            total_candidates=total,
            removed_by_threshold=max(0, min(look.top_k, total - left_out_by_model) - len(kept[: look.top_k])),
            threshold=look.threshold,
            took_ms=(time.perf_counter() - started_s) * 1000,
            candidates=asked.candidates(look.eligible) if request.explain else None,
            neighbours=await read_neighbours(agent, answered, around, now_ms=look.now_ms) if around else None,
            warnings=(*starmap(_UNINDEXED.format, unindexed), *reread.warnings),
        )

    async def _begin(self, agent: Agent, request: SearchRequest, *, now_ms: int) -> tuple["_Look", Vector]:
        """How the search looks, and for what: what has to be counted, embedded and read for that, at the same time."""
        searches_words = agent.keyword is not None and request.query is not None and request.hybrid is not False
        fusion = fusion_of(agent.settings.ranking) if searches_words else None
        narrow = partial(find_eligible, agent, request.selection, now_ms)
        follow = partial(self._along, agent, request, fusion)
        if request.vector is not None:
            # Mostly nothing is waited for: tasks would cost more than they save.
            vector, narrowed, along = scaled(request.vector, distance=agent.distance), await narrow(), await follow()
        else:
            embedding = embed_question(agent.embedder, request.query or "")
            vector, narrowed, along = await asyncio.gather(embedding, narrow(), follow())
        return _look(agent, request, fusion, narrowed=narrowed, along=along, now_ms=now_ms), vector

    async def _along(self, agent: Agent, request: SearchRequest, fusion: Fusion | None) -> Mapping[str, float]:
        """Activation of the memories that the query's names lead to, the most activated first, in its scopes alone."""
        settings = agent.settings.entities or EntitySettings()
        if agent.entity_lists is None or request.query is None or fusion is None or fusion.method == "None":
            return NOTHING_ALONG
        found = await self._graphs.of(agent, request.selection.owners)
        return found_by_query(found, request.query, agent.entity_lists, settings.spreading)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One search with every default filled in.

    Attributes:
        top_k: results of the answer.
        fetched: results of the engine: more where more are read again than answered.
        rerank: None where nothing is read again.
        words: what is looked for by words, None where nothing is.
        solves_terms: the similarity of each result is to be told from its score.
        along: activation of the memories that the query's names lead to.
    """

    ranking: Ranking
    now_ms: int
    top_k: int
    fetched: int
    rerank: Reranking | None
    threshold: float
    eligible: int
    plan: CandidatePlan
    fusion: Fusion | None
    words: Json | None
    clues: Clues | None
    solves_terms: bool
    along: Mapping[str, float]

    def kept(self, points: Sequence[Json]) -> list[Json]:
        """The points that are good enough for the answer."""
        return [point for point in points if point["score"] > LEFT_OUT and point["score"] >= self.threshold]


def _look(
    agent: Agent,
    request: SearchRequest,
    fusion: Fusion | None,
    *,
    narrowed: tuple[Filter, int],
    along: Mapping[str, float],
    now_ms: int,
) -> _Look:
    (filter_, eligible), ranking = narrowed, ranking_of(agent, request)
    top_k = ranking.limit if request.top_k is None else request.top_k
    rerank = ranking.rerank if request.query is not None else None
    fetched = max(top_k, rerank.candidates) if rerank else top_k
    keyword, query = agent.keyword, request.query
    among = request.selection if IDF_CORPUS in agent.capabilities else None
    # One more list where the engine's limit of results may leave no room for that along entities.
    beside = 0 if fusion is None else 2 if agent.entity_lists and ranking.max_query_limit else 1
    plan = plan_candidates(ranking, filter_, eligible=eligible, top_k=fetched, now_ms=now_ms, beside=beside)
    return _Look(
        ranking=ranking,
        now_ms=now_ms,
        top_k=top_k,
        fetched=fetched,
        rerank=rerank,
        threshold=ranking.threshold if request.threshold is None else request.threshold,
        eligible=eligible,
        plan=plan if agent.allows_exact else replace(plan, allows_exact=False),
        fusion=fusion,
        words=look_by_words(keyword_document(query or "", keyword), among) if fusion and keyword else None,
        clues=clues_of(query, keyword.language) if keyword and query is not None else None,
        solves_terms=request.terms and not request.explain and fusion is None and tells_similarity(ranking),
        along=along,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the engine answered.

    Attributes:
        matches: how all candidates match, nearest first; with `explain`, and with `terms` where scores do not tell.
        below_threshold: candidates that the threshold on the score removes; only with `explain`.
    """

    points: list[Json]
    matches: Mapping[str, Match] = field(default_factory=dict)
    below_threshold: int = 0
    is_exact: bool = False

    def candidates(self, eligible: int) -> Candidates:
        """How far the engine looked; only with `explain`."""
        return Candidates(
            scored=len(self.matches),
            below_threshold=self.below_threshold,
            eligible=eligible,
            is_exact=self.is_exact,
        )


async def _ask(agent: Agent, request: SearchRequest, look: _Look, vector: Vector) -> _Asked:
    question = _question(agent, look, look.plan, vector)
    body = _body(agent, question, look) | {"with_payload": SHOWN}
    if request.explain:
        return await _explained(agent, request, look, vector=vector, bodies=[body, *question.lists], question=question)
    if request.terms and not look.solves_terms:
        bodies = [body, *question.lists]
        answers = await read_whole(lambda: agent.store.query_batch(agent.alias, bodies), lambda answers: answers[0])
        return _Asked(answers[0], question.matches(answers[1:], look.clues))
    return _Asked(await read_whole(lambda: agent.store.query(agent.alias, body), lambda points: points))


async def _explained(
    agent: Agent, request: SearchRequest, look: _Look, *, vector: Vector, bodies: list[Json], question: Question
) -> _Asked:
    """The answer, how all candidates match, and whether nothing better was missed, in one request."""
    # All candidates and not just the best, to know how many the threshold removes.
    every = {"limit": max(look.fetched, look.plan.total)}
    proof = _body(agent, _question(agent, look, look.plan.searched_exactly(), vector), look) | every
    ends = ask_ends(look.plan, vector, distance=agent.distance, words=look.words) if agent.allows_exact else []
    asked = [*bodies, proof, *ends]
    points, *found = await read_whole(lambda: agent.store.query_batch(agent.alias, asked), lambda answers: answers[0])
    lists, (scored, *beyond) = found[: len(question.lists)], found[len(question.lists) :]
    best = scored[: look.fetched]
    below = sum(LEFT_OUT < point["score"] < look.threshold for point in scored)
    unseen = Unseen(
        ranking=look.ranking,
        distance=agent.distance,
        ends=read_ends(look.plan, beyond, distance=agent.distance),
        by_words=read_words_end(look.plan, beyond, look.clues),
        fusion=look.fusion,
        clues=look.clues,
        types=request.selection.types,
    )
    if not agent.allows_exact:
        return _Asked(points, question.matches(lists, look.clues), below)
    is_same = {point["id"] for point in look.kept(points)} == {point["id"] for point in look.kept(best)}
    scores = [point["score"] for point in best]
    # Hundreds of cells take tens of milliseconds.
    is_settled_ = partial(is_settled, unseen, scores, top_k=look.fetched, threshold=look.threshold)
    return _Asked(points, question.matches(lists, look.clues), below, is_same and await asyncio.to_thread(is_settled_))


def _body(agent: Agent, question: Question, look: _Look) -> Json:
    # Weights of one request would push those of the objects out of the cache.
    make = scoring_of if look.ranking is agent.settings.ranking else scoring_of.__wrapped__
    clues = look.clues
    template = make(
        *(look.ranking, question.fusion),
        distance=agent.distance,
        has_extremes=MIN_MAX in agent.capabilities,
        is_along=bool(question.along),
        has_clues=clues is not None,
    )
    query = template.at(look.now_ms, clues.gaps() if clues else NO_GAPS)
    return {"prefetch": list(question.lists), "query": query, "limit": look.fetched}


def _question(agent: Agent, look: _Look, plan: CandidatePlan, vector: Vector) -> Question:
    if look.fusion is None or look.words is None:
        return Question(lists=(plan.query(vector, distance=agent.distance),), distance=agent.distance)
    return ask_by_both(plan, vector, look.words, distance=agent.distance, fusion=look.fusion, along=look.along)


def _found(point: Json, placed: tuple[int, Match] | None, look: _Look, *, rerank: float | None) -> Hit:
    record = record_of(point["payload"])
    if placed is None and not look.solves_terms:
        return Hit(record, point["score"], rerank=rerank)
    rank, match = placed or (None, _solved(record, point["score"], look))
    numbers = look.clues.numbers(point["payload"], look.ranking.evidence.assistant) if look.clues else {}
    if ranks_evidence(look.fusion):
        match = replace(match, evidence=numbers, fused=with_evidence(match.fused, look.ranking.evidence, numbers))
    memory = scored(record, similarity=match.fused, keyword=match.keyword or 0.0, evidence=numbers)
    return Hit(record, point["score"], score(memory, look.ranking, now_ms=look.now_ms), match, rank, rerank)


def _solved(record: MemoryRecord, found: float, look: _Look) -> Match:
    similarity = similarity_behind(found, scored(record), look.ranking, now_ms=look.now_ms)
    return Match(similarity=similarity, fused=similarity)
