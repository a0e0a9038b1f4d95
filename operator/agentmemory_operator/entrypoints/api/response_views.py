"""Render the results of use cases as JSON in the requested format.

The functions name the response models of `memory_schemas` and `agent_schemas` that describe their results. The JSON is
built without these models, because validating them would cost more than Qdrant's own work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args, get_type_hints

import orjson
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.distillation.session_end import SessionEnd
from agentmemory_operator.entrypoints.api.fields import Time
from agentmemory_operator.entrypoints.api.memory_schemas import MemoryOut
from agentmemory_operator.memories.hierarchy import MemoryTree, Node
from agentmemory_operator.memories.history import History
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.item_store import StoredItem
from agentmemory_operator.memories.item_writes import Outcome
from agentmemory_operator.memories.rules.entities import entities_to_payload
from agentmemory_operator.memories.rules.record import ATTRIBUTES_BY_API_NAME, MemoryRecord
from agentmemory_operator.memories.stored_memories import MemoryPage
from agentmemory_operator.memories.working_memory import StoredWorkingMemory
from agentmemory_operator.search.answers import CandidateCounts, SearchAnswer, SearchHit
from agentmemory_operator.search.rules.memory_states import STATES, Period, Statistics
from agentmemory_operator.search.rules.score import ScoreTerms, compute_priority
from agentmemory_operator.search.rules.time_spans import TimeSpan
from agentmemory_operator.spec.canonical_names import nearest_name
from agentmemory_operator.spec.effective.ranking_figures import model_figures
from agentmemory_operator.spec.effective.settings import AgentSettings, Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Priority, model_name
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.presets import NO_GATE
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]

_PUT_MESSAGES: Mapping[Outcome, str] = {
    "created": "stored",
    "replaced": "replaced the item under this key",
    "repeated": "already stored under the same Idempotency-Key",
}

MAX_FIELD_NAME_CHARS = 64
_KNOWN = tuple(MemoryOut.model_fields)
# Leave out `priority`, which is computed, not stored.
_MEMORY = tuple(name for name in _KNOWN if name != "priority")
_HINTS = get_type_hints(MemoryOut, include_extras=True)
_TIMES = tuple(name for name in _MEMORY if Time in (_HINTS[name], *get_args(_HINTS[name])))
_ABSENT = {name: getattr(MemoryRecord, ATTRIBUTES_BY_API_NAME.get(name, name), None) for name in _MEMORY}
# Maps attributes of a record to field names. `updated_at` is computed, because access counts change the stored one.
_NAMES = {ATTRIBUTES_BY_API_NAME.get(name, name): name for name in _MEMORY if name != "updated_at"}
COMPACT_DECIMALS = 4
_STORED_AS_GIVEN = ("metadata", "context")
_RERANK_FIELDS = ("provider", "model", "candidates")
_TYPE_FIELDS = ("name", "meaning", "half_life_days", "boost", "confidence", "event_types", "required")
# Fields of all scoring models. The fields of unused models are null.
_MODEL_FIGURES = (
    *("weights", "utility_norm", "confidence_share"),
    *("confidence", "priority", "horizons", "importance", "expression"),
)


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Build a JSON response from a value that orjson can serialise."""
    return Response(orjson.dumps(content), status, media_type="application/json", headers=headers)


def render_memory(record: MemoryRecord, agent: Agent | None = None) -> Json:
    """Render the JSON of `MemoryOut`.

    Args:
        agent: Agent whose scoring model Priority computes the field `priority`. With another model, or None, the field
            is null.
    """
    # Start with the defaults, because attributes with the default value are missing in the record's `vars`.
    rendered = _ABSENT | {_NAMES[name]: value for name, value in vars(record).items() if name in _NAMES}
    rendered["updated_at"] = record.last_changed_at
    for name in _TIMES:
        if rendered[name] is not None:
            rendered[name] = render_time(rendered[name])
    if record.locked:
        rendered["content"] = None
    if record.entities:
        rendered["entities"] = entities_to_payload(record.entities)
    rendered["priority"] = None
    if agent and isinstance(model := agent.settings.ranking.model, Priority):
        rendered["priority"] = compute_priority(record, model, now_ms=agent.clock.now_ms())
    return rendered


def check_name(value: str) -> str:
    """Reject an unknown field name, and suggest the nearest one."""
    if value in _KNOWN:
        return value
    nearest = nearest_name(value, _KNOWN)
    remedy = f"did you mean {nearest}?" if nearest else f"use one of {', '.join(_KNOWN)}"
    message = f"memories have no field {value!r}: {remedy}"
    raise PydanticCustomError("value", "{message}", {"message": message})


FieldName = Annotated[
    str,
    Field(max_length=MAX_FIELD_NAME_CHARS),
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "enum": list(_KNOWN)}),
]


class MemoryView(BaseModel):
    """Selection of the fields of memories to return, and their format."""

    fields: Annotated[list[FieldName], Field(max_length=len(_KNOWN))] = Field(
        default=[], description="Only these fields of each memory. Default: all."
    )
    format: Literal["full", "compact"] = Field(
        default="full", description="compact: omits null fields, and rounds numbers to four decimals."
    )

    def render(self, record: MemoryRecord, agent: Agent) -> Json:
        """Render a memory with the requested fields, or all fields if none is requested."""
        rendered = render_memory(record, agent)
        return {name: rendered[name] for name in self.fields} if self.fields else rendered

    def apply_format(self, memory: Json) -> Json:
        """Apply the requested format to a rendered memory and the additional fields of its result.

        Compact omits null fields, and rounds numbers to four decimals. `metadata` and `context` stay unchanged.
        """
        formatted: Json = _compact(memory) if self.format == "compact" else memory
        return formatted


FULL_VIEW = MemoryView()


def _compact(value: Any) -> Any:
    match value:
        case dict():
            return {
                # Keep all digits and nulls of values that callers stored.
                name: part if name in _STORED_AS_GIVEN else _compact(part)
                for name, part in value.items()
                if part is not None
            }
        case list() | tuple():
            return [_compact(part) for part in value]
        case float():
            return round(value, COMPACT_DECIMALS)
    return value


def render_search(answer: SearchAnswer, agent: Agent, view: MemoryView) -> Json:
    """Render the JSON of `SearchOut`."""
    return {
        "results": [view.apply_format(_found(found, answer, agent, view)) for found in answer.results],
        "generation": answer.generation,
        "total_candidates": answer.total_candidates,
        "removed_by_threshold": answer.removed_by_threshold,
        # Show NO_GATE as null, because it is the lowest threshold and excludes nothing.
        "threshold": answer.threshold if answer.threshold > NO_GATE else None,
        "min_similarity": min_similarity if (min_similarity := answer.ranking.min_similarity) > NO_GATE else None,
        "candidates": answer.candidates and _candidates(answer.candidates),
        "time_spans": None if answer.time_spans is None else [_time_span(span) for span in answer.time_spans],
        "left_out": None if answer.left_out is None else [_left_out(point) for point in answer.left_out],
        "took_ms": round(answer.duration_ms, 3),
        "warnings": answer.warnings,
    }


def _left_out(point: Json) -> Json:
    return {"id": point["id"], "session_id": point["payload"]["sessionId"], "score": point["score"]}


def render_stored(result: StoredMemory) -> Json:
    """Render the JSON of `StoredOut`."""
    return {
        "id": result.id,
        "event": result.event,
        "supersedes": result.supersedes,
        "recorded": result.is_recorded,
        "warnings": result.warnings,
    }


def render_stored_item(item: StoredItem) -> Json:
    """Render the JSON of `ItemStoredOut`."""
    message = _PUT_MESSAGES[item.outcome]
    stored = {"success": True, "memory_id": item.memory_id, "key": item.key, "message": message}
    return stored | {"etag": item.etag, "warnings": item.warnings}


def render_page(page: MemoryPage, agent: Agent, view: MemoryView = FULL_VIEW) -> Json:
    """Render the JSON of `PageOut`."""
    results = [view.apply_format(view.render(record, agent)) for record in page.records]
    return {"results": results, "next_cursor": page.next_cursor}


def render_history(history: History, agent: Agent) -> Json:
    """Render the JSON of `HistoryOut`."""
    return {"results": [render_memory(record, agent) for record in history.records], "truncated": history.is_truncated}


def render_tree(tree: MemoryTree, agent: Agent) -> Json:
    """Render the JSON of `TreeOut`."""
    return {"root": _node(tree.root, agent), "truncated": tree.is_truncated}


def render_working_memories(records: Sequence[MemoryRecord], agent: Agent) -> Json:
    """Render the JSON of `WorkingOut`."""
    slots = agent.settings.working_memory_slots
    return {"results": [render_memory(record, agent) for record in records], "slots": slots}


def render_working_memory(result: StoredWorkingMemory, agent: Agent) -> Json:
    """Render the JSON of `KeptOut`."""
    evicted = None if result.evicted is None else render_memory(result.evicted, agent)
    return {"id": result.record.id, "event": result.event, "evicted": evicted, "warnings": result.warnings}


def render_session_end(result: SessionEnd) -> Json:
    """Render the JSON of `EndedOut`."""
    counts = result.dropped.counts
    return {"dropped": sum(counts.values()), "counts": counts, "run": result.run}


def render_stats(statistics: Statistics, user_id: str | None, periods: Sequence[Period] | None) -> Json:
    """Render the JSON of `StatsOut`. `periods` is None unless requested."""
    states = {state: statistics.of_state(state) for state in STATES}
    return {
        "user_id": user_id,
        "total": sum(states.values()),
        "states": states,
        "types": {name: {state: counts.get(state, 0) for state in STATES} for name, counts in statistics.types.items()},
        "decayed_below_50pct": statistics.decayed,
        "oldest": _time(statistics.oldest),
        "newest": _time(statistics.newest),
    } | ({} if periods is None else {"periods": [_period(period) for period in periods]})


def _period(period: Period) -> Json:
    return {"start": render_time(period.start_ms), "days": period.days, "memories": period.memories}


def render_agent_line(settings: AgentSettings, *, memories: int | None, state: str | None) -> Json:
    """Render the JSON of `AgentOut`.

    Args:
        memories: None if the agent cannot be opened or read.
        state: State of the object in words; None if it is unknown.
    """
    return {
        "agent": settings.slug,
        "namespace": settings.namespace,
        "preset": settings.preset,
        "ready": memories is not None,
        "state": state,
        "generation": settings.ranking_generation,
        "memories": memories,
    }


def render_agent_detail(agent: Agent, *, memories: int, state: str | None) -> Json:
    """Render the JSON of `AgentDetailOut`."""
    ranking, source = agent.settings.ranking, agent.source
    types = [{name: getattr(type_, name) for name in _TYPE_FIELDS} for type_ in ranking.types]
    return render_agent_line(agent.settings, memories=memories, state=state) | {
        "types": types,
        "model": model_name(ranking.model),
        **dict.fromkeys(_MODEL_FIGURES),
        **model_figures(ranking),
        "scoring_fault": agent.settings.scoring_fault,
        "limit": ranking.limit,
        "score_threshold": ranking.score_threshold,
        "min_similarity": ranking.min_similarity,
        "candidates": ranking.candidates or "Auto",
        "effort": ranking.effort,
        "rerank": ranking.rerank and {name: getattr(ranking.rerank, name) for name in _RERANK_FIELDS},
        "distance": agent.distance,
        "embedding": {"provider": source.provider, "model": source.model, "dimensions": source.dimensions},
        "keyword": agent.keyword and {"language": agent.keyword.language, **asdict(ranking.fusion)},
        "evidence": asdict(ranking.evidence) if agent.keyword else None,
    }


def _node(node: Node, agent: Agent) -> Json:
    return render_memory(node.record, agent) | {"children": [_node(child, agent) for child in node.children]}


def _found(found: SearchHit, answer: SearchAnswer, agent: Agent, view: MemoryView) -> Json:
    rendered = view.render(found.record, agent)
    rendered["score"] = found.score
    if found.terms is not None and answer.has_terms:
        terms = found.terms.terms
        similarity = found.match.similarity if found.match else None
        rendered |= {"similarity": similarity, "recency": terms.get("recency"), "utility": terms.get("utility")}
    if answer.neighbours is not None:
        neighbours = answer.neighbours.get(found.record.id, ())
        rendered["neighbours"] = [view.render(record, agent) for record in neighbours]
    if found.terms is not None and answer.candidates is not None:
        rank = {"rank_before": found.rank_before, "rerank": found.rerank, "candidates": _candidates(answer.candidates)}
        rendered["explain"] = _terms(found.terms, answer.ranking) | _match(found) | rank
    return rendered


def _terms(terms: ScoreTerms, ranking: Ranking) -> Json:
    return {
        "model": terms.model,
        "similarity": terms.similarity,
        "keyword": terms.keyword,
        **_model_terms(terms, ranking),
        "boost": terms.boost,
        "age_days": terms.age_days,
        "half_life_days": terms.half_life_days,
        "score": terms.score,
    }


def _model_terms(terms: ScoreTerms, ranking: Ranking) -> Json:
    """Render the terms of the scoring model. The weighted model has fields of its own, others share `terms`."""
    if ranking.model is None:
        factor = {"confidence_factor": None}
        return {**factor, **terms.terms, "weights": asdict(ranking.weights), "terms": None, "variables": None}
    variables = terms.variables if isinstance(ranking.model, CheckedExpression) else None
    absent = dict.fromkeys(("recency", "utility", "weights", "confidence_factor"))
    return {**absent, "terms": terms.terms, "variables": variables}


def _match(found: SearchHit) -> Json:
    match = found.match
    if match is None:
        return {}
    matched = {"similarity": match.similarity, "keyword": match.keyword, "entities": match.entities}
    return matched | {"evidence": match.evidence, "fused": match.fused}


def _candidates(candidates: CandidateCounts) -> Json:
    return {
        "scored": candidates.scored,
        "below_threshold": candidates.below_threshold,
        "eligible": candidates.eligible,
        "exact": candidates.is_exact,
    }


def _time_span(span: TimeSpan) -> Json:
    return {"since": render_time(span.since_ms), "until": render_time(span.until_ms), "words": span.words}


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else render_time(time_ms)
