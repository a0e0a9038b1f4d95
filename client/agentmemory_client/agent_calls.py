"""The calls about an agent as a whole: its settings in force, and what changed in it. docs/changes.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from agentmemory_client.exchange import Call, path_of
from agentmemory_client.values import AgentSummary, Answer, read_value

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDetails(Answer):
    """A type of memory.

    Attributes:
        meaning: how to recognise what belongs to it; empty: nobody said.
        half_life_days: None: it does not decay.
        confidence: of a memory that is stored without one; None: none.
        event_types: what `event_type` of its memories may be; empty: anything.
        required: fields that a memory of it is refused without.
    """

    name: str
    meaning: str = ""
    half_life_days: float | None = None
    boost: float = 1.0
    confidence: float | None = None
    event_types: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDetails(AgentSummary):
    """An agent's settings in force.

    Attributes:
        model: the scoring model. Of `weights`, `utility_norm`, `confidence_share`, `confidence`, `priority`,
            `horizons`, `importance` and `expression` only its own are there.
        scoring_fault: why the object's own expression cannot be used; what was accepted last is in force.
        candidates: a number, or "Auto".
        rerank: `model` and `candidates` of the cross-encoder; None: results are in the order of their scores.
        embedding: `provider`, `model` and `dimensions` of the collection's vectors.
        keyword: how searches by words rank; None: they are by meaning alone.
        evidence: weights of `scoring.evidence`; None: none is kept.
    """

    types: tuple[TypeDetails, ...] = ()
    model: str
    weights: Mapping[str, float] | None = None
    utility_norm: float | None = None
    confidence_share: float | None = None
    confidence: Mapping[str, float] | None = None
    priority: Mapping[str, float] | None = None
    horizons: Mapping[str, float] | None = None
    importance: Mapping[str, float] | None = None
    expression: str | None = None
    scoring_fault: str | None = None
    limit: int
    score_threshold: float
    min_similarity: float
    candidates: int | str
    rerank: Json | None = None
    distance: str
    embedding: Json
    keyword: Json | None = None
    evidence: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Answer):
    """One entry of the change log.

    Attributes:
        cursor: from where to read on after it.
        kind: stored, superseded, deleted, expired, forgotten, consolidated, restored or rebuilt.
        id: the memory's, or the receipt's of `forgotten`.
        user_id: None: it names no user.
    """

    cursor: str
    at: datetime
    kind: str
    id: str
    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPage(Answer):
    """A part of the change log, oldest first; `next_cursor` is always there: keep it, and ask again later."""

    results: tuple[Change, ...]
    next_cursor: str


def info(agent: str) -> Call[AgentDetails]:
    """An agent's settings in force."""
    return Call(method="GET", path=path_of(agent), read=_read_details)


def changes(
    agent: str, *, cursor: str | None = None, user_id: str | None = None, limit: int | None = None
) -> Call[ChangesPage]:
    """What changed after a cursor, oldest first; without one from the beginning.

    Args:
        user_id: None is all users, which takes the verb `admin`.
    """
    asked = {"cursor": cursor, "user_id": user_id, "limit": limit}
    parameters = {name: value for name, value in asked.items() if value is not None}
    return Call(method="GET", path=path_of(agent, "changes"), parameters=parameters, read=_read_changes)


def tools(agent: str, *, format: str = "openai") -> Call[list[Json]]:
    """The tools `remember`, `search` and `upsertMemory` for a model, with the agent's types.

    Args:
        format: `openai`, as a chat completion takes them, or `mcp`.
    """
    parameters = {"agent": agent, "format": format}
    return Call(method="GET", path="/v1/tools", parameters=parameters, read=lambda answer: list(answer["tools"]))


def _read_details(document: Json) -> AgentDetails:
    types = [read_value(TypeDetails, one) for one in document.get("types", ())]
    return read_value(AgentDetails, document | {"types": types})


def _read_changes(document: Json) -> ChangesPage:
    return read_value(ChangesPage, document | {"results": list(map(partial(read_value, Change), document["results"]))})
