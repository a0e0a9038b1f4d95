"""Calls about an agent as a whole: its settings and its change log. See docs/changes.md.

Each function builds the `Call` of one request. `handles.py` turns it into a method of an agent, with the same
docstring.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from agentmemory_client.exchange import Call, build_path, to_json
from agentmemory_client.values import AgentSummary, Answer, read_value

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDetails(Answer):
    """A memory type of an agent.

    Attributes:
        meaning: Description that helps a model to classify a memory as this type; empty if the object has none.
        half_life_days: Days after which the type's recency has halved; None if it does not decay.
        boost: Factor that multiplies the score of memories of this type.
        confidence: Default confidence of a memory that is stored without one; None if there is no default.
        event_types: Allowed values of `event_type`; empty if any value is allowed.
        required: Fields that a memory of this type must have; the API rejects it without them.
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
    """Settings of an agent that are in force.

    Attributes:
        model: Scoring model. It determines which of `weights`, `utility_norm`, `confidence_share`, `confidence`,
            `priority`, `horizons`, `importance` and `expression` are set; the rest are None.
        scoring_fault: Reason why the object's own expression cannot be used; the last accepted one stays in force.
        limit: Number of results of a search without `top_k`.
        score_threshold, min_similarity: Minimum score and similarity of results, unless a search sets others.
        candidates: Number of nearest memories that a search scores; "Auto" if the API chooses it for each search.
        effort: "Fast", "Balanced" or "Exact": with "Auto", how many memories a search scores; None if not sent.
        rerank: `model` and `candidates` of the cross-encoder; None if results are ordered by score only.
        embedding: `provider`, `model` and `dimensions` of the collection's vectors.
        keyword: Settings of keyword search; None if searches use vectors only.
        evidence: Weights of `scoring.evidence`; None if no evidence is recorded.
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
    effort: str | None = None
    rerank: Json | None = None
    distance: str
    embedding: Json
    keyword: Json | None = None
    evidence: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Answer):
    """One entry of the change log.

    Attributes:
        cursor: Position after this entry, to continue reading from.
        kind: stored, superseded, deleted, expired, forgotten, consolidated, restored or rebuilt.
        id: Id of the memory; for `forgotten`, the id of the receipt; for `restored` and `rebuilt`, a number.
        user_id: None if the entry concerns no single user.
    """

    cursor: str
    at: datetime
    kind: str
    id: str
    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPage(Answer):
    """Part of the change log, oldest first.

    Attributes:
        next_cursor: Position to continue from. It is always set: store it, and poll again later.
    """

    results: tuple[Change, ...]
    next_cursor: str


def info(agent: str) -> Call[AgentDetails]:
    """Read the agent's settings in force."""
    return Call(method="GET", path=build_path(agent), read=_read_details)


def changes(
    agent: str,
    *,
    cursor: str | None = None,
    user_id: str | None = None,
    since: datetime | str | None = None,
    limit: int | None = None,
) -> Call[ChangesPage]:
    """Read the changes after a cursor, oldest first.

    Args:
        cursor: Position to continue from; None starts after `since`.
        since: Time after which to start; None for the oldest entry.
        user_id: None for all users, which requires the verb `admin`.
        limit: Maximum number of changes in the response; None for the default of the API.
    """
    options = {"cursor": cursor, "user_id": user_id, "since": since, "limit": limit}
    parameters = {name: value for name, value in to_json(options).items() if value is not None}
    return Call(method="GET", path=build_path(agent, "changes"), parameters=parameters, read=_read_changes)


def tools(agent: str, *, format: str = "openai") -> Call[list[Json]]:
    """Read the definitions of the tools `remember`, `search` and `upsertMemory` for a model, with the agent's types.

    Args:
        format: `openai` for chat completions, or `mcp`.
    """
    parameters = {"agent": agent, "format": format}
    return Call(method="GET", path="/v1/tools", parameters=parameters, read=lambda answer: list(answer["tools"]))


def _read_details(document: Json) -> AgentDetails:
    types = [read_value(TypeDetails, type_document) for type_document in document.get("types", ())]
    return read_value(AgentDetails, document | {"types": types})


def _read_changes(document: Json) -> ChangesPage:
    return read_value(ChangesPage, document | {"results": list(map(partial(read_value, Change), document["results"]))})
