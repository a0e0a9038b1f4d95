"""Search requests: their validation against an agent, and the ranking that results from their overrides."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from agentmemory_operator.agents.checks import check_query, check_types, check_vector
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError
from agentmemory_operator.memories.rules.filters import Selection, find_unindexed_keys
from agentmemory_operator.search.results import MAX_RESULTS_WITH_NEIGHBOURS
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import WEIGHTED, Priority, model_name
from agentmemory_operator.spec.presets.table import Weights

DEFAULT_TIME_ZONE = "UTC"
_UNINDEXED = (
    "{0}: no index on {1}, so all memories that match the other conditions are scanned: add"
    " {{field: {1}, type: {2}}} to spec.index.payloadIndexes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A search by `query` or by `vector`.

    Both together are allowed only if callers send the vectors and the agent has a keyword index.

    Attributes:
        selection: Memories to search.
        top_k: 1..10,000; None uses the object's `limit`.
        threshold: Minimum combined score; None uses the object's `scoreThreshold`.
        min_similarity: -1..1; None uses the object's `minSimilarity`.
        min_priority: 0..1, only with the model Priority; None uses the object's `minPriority`.
        hybrid: True to search by keywords too, False not to; None does so if the agent has a keyword index and there
            is a query.
        reference_time: Time that relative times in the query refer to, Unix milliseconds; None is now.
        time_zone: Name of an existing IANA time zone, in which the query's days begin.
        per_session: Maximum number of results of one session; None does not limit them.
        weights: Weights, only with the model Weighted; None uses those of the object.
        terms: True to return similarity, recency and utility of each result.
        neighbours: Number of memories before and after each result in its session to return, 0..3.
        explain: True to return the terms of each score, and whether the result is exact. Qdrant then runs several
            more queries, with full scans if the strict mode allows them.
    """

    selection: Selection
    query: str | None = None
    vector: Sequence[float] | None = None
    top_k: int | None = None
    threshold: float | None = None
    min_similarity: float | None = None
    min_priority: float | None = None
    hybrid: bool | None = None
    reference_time: int | None = None
    time_zone: str = DEFAULT_TIME_ZONE
    per_session: int | None = None
    weights: Weights | None = None
    terms: bool = False
    neighbours: int = 0
    explain: bool = False


def resolve_ranking(agent: Agent, request: SearchRequest) -> Ranking:
    """Return the object's ranking, in which `weights`, `min_similarity` and `min_priority` of the request are applied.

    `min_priority` has no effect unless the model is Priority. The request's `top_k` and `threshold` are not applied.
    """
    ranking = agent.settings.ranking
    if request.weights is not None:
        ranking = replace(ranking, weights=request.weights)
    if request.min_similarity is not None:
        ranking = replace(ranking, min_similarity=request.min_similarity)
    if request.min_priority is None or not isinstance(ranking.model, Priority):
        return ranking
    return replace(ranking, model=replace(ranking.model, min_priority=request.min_priority))


def find_request_errors(request: SearchRequest, agent: Agent) -> list[FieldError]:
    """Return the errors of a request for this agent; empty if it is valid."""
    ranking = agent.settings.ranking
    cap = ranking.max_query_limit
    errors = check_types(request.selection.types, agent, field="types") if request.selection.types else []
    if request.top_k is not None and cap is not None and request.top_k > cap:
        errors.append(FieldError("top_k", f"{request.top_k} is more than {cap}, the limit of the object's strictMode"))
    if request.weights is not None:
        errors += _check_weights(ranking)
    if request.min_similarity is not None and not ranking.allows_overrides:
        remedy = "omit it, or set spec.scoring.allowOverrides to true"
        errors.append(FieldError("min_similarity", f"this agent does not allow requests to change it: {remedy}"))
    if request.min_priority is not None and not isinstance(ranking.model, Priority):
        remedy = "omit it, or set spec.scoring.model to Priority"
        errors.append(FieldError("min_priority", f"this agent's scoring model has no priority: {remedy}"))
    errors += check_query(agent, text=request.query, vector=request.vector)
    if request.hybrid or request.neighbours:
        errors += _check_keywords(request, agent)
    if request.vector is not None:
        errors += check_vector(request.vector, size=agent.source.dimensions)
    return errors


def list_warnings(request: SearchRequest, agent: Agent) -> Iterator[str]:
    """Return a warning, with the remedy, for each condition of the request that has no index."""
    return starmap(_UNINDEXED.format, find_unindexed_keys(request.selection, agent.settings.indexes))


def _check_weights(ranking: Ranking) -> list[FieldError]:
    if (model := model_name(ranking.model)) != WEIGHTED:
        remedy = "omit them, or set spec.scoring.model to Weighted"
        return [FieldError("weights", f"this agent's scoring model is {model}, which has no weights: {remedy}")]
    if not ranking.allows_overrides:
        remedy = "omit them, or set spec.scoring.allowOverrides to true"
        return [FieldError("weights", f"this agent does not allow requests to change weights: {remedy}")]
    return []


def _check_keywords(request: SearchRequest, agent: Agent) -> Iterator[FieldError]:
    """Yield the errors of `hybrid`, which needs a keyword index and a query, and of `neighbours`.

    `neighbours` needs a keyword index and at most 100 results.
    """
    has_order, remedy = agent.keyword is not None, "or set index.keyword.enabled in its object"
    if request.hybrid and not has_order:
        yield FieldError("hybrid", f"this agent has no keyword index: omit hybrid, {remedy}")
    elif request.hybrid and request.query is None:
        yield FieldError("query", "required with hybrid")
    if request.neighbours and not has_order:
        yield FieldError("include.neighbours", f"this agent does not keep the order of sessions: omit it, {remedy}")
    elif request.neighbours and (request.top_k or agent.settings.ranking.limit) > MAX_RESULTS_WITH_NEIGHBOURS:
        yield FieldError("top_k", f"must be at most {MAX_RESULTS_WITH_NEIGHBOURS} with include.neighbours")
