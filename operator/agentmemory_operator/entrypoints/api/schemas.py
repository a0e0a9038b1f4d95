"""What callers get, described for the OpenAPI document. `answers` renders it; a test holds the two together."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentmemory_operator.entrypoints.api.fields import Time, ZoneName
from agentmemory_operator.memories.rules.entities import EntityKind, EntityRole


class Answer(BaseModel):
    """Part of an answer; every field is always there. It is described alone, so what checks it is not built."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class EntityOut(Answer):
    """A name that a memory speaks of."""

    name: str
    kind: EntityKind
    role: EntityRole = Field(description="about: whose it is; source: who stored it; mentioned: its text names it.")


class ConnectionOut(Answer):
    """A memory that another belongs together with."""

    id: str
    description: str = Field(description="Why.")
    run: str | None = Field(default=None, description="The consolidation that found it; absent: it was imported.")


class MemoryOut(Answer):
    """A stored memory: all of this, or what `fields` names; `format: compact` leaves out what is null."""

    id: str
    user_id: str
    content: str | None = Field(description="null: it is locked.")
    type: str
    importance: float
    priority: float | None = Field(description="Now, with the scoring model Priority; null with another.")
    confidence: float | None
    decay_rate: float | None
    session_id: str | None
    tags: list[str]
    source: str | None
    author: str | None
    speaker: str | None
    role: str | None
    metadata: dict[str, Any]
    key: str | None
    subject: str | None
    status_value: str | None
    category: str | None
    knowledge_category: str | None
    event_type: str | None
    context: str | dict[str, Any] | None
    domain: str | None
    source_ids: list[str]
    parent_id: str | None
    observed_by: list[str] = Field(description="Who said it, the first author included.")
    observation_count: int = Field(description="How many said it; 1 where nobody is named.")
    namespace: list[str]
    entities: list[EntityOut] = Field(description="The names that it speaks of; none where it has a zone.")
    supersedes: str | None
    supersedes_ids: list[str] = Field(description="Of a merged memory: all that it took the place of.")
    superseded_by: str | None
    superseded_at: Time | None
    valid_from: Time | None
    valid_to: Time | None
    expires_at: Time | None
    created_at: Time
    updated_at: Time = Field(description="When somebody stored or changed it last; being found changes nothing.")
    last_accessed_at: Time | None
    access_count: int
    pinned: bool
    connections: list[ConnectionOut] = Field(description="Memories that it belongs together with.")
    consolidated: bool = Field(description="A consolidation has read it, or made it.")
    zone: ZoneName | None = Field(description="How it is sealed; null: not at all.")
    locked: bool = Field(description="Its key is away, or was deleted: what is sealed is null or empty.")


class WeightsOut(Answer):
    """Shares of the combined score."""

    similarity: float
    recency: float
    utility: float


class CandidatesOut(Answer):
    """How far the engine looked."""

    scored: int = Field(description="Candidates with at least the object's minSimilarity.")
    below_threshold: int = Field(description="Candidates whose score is below the threshold.")
    eligible: int = Field(description="Memories that the filters let through.")
    exact: bool = Field(description="Proven: no memory that was not scored can rank as high by score.")


class ExplainOut(Answer):
    """The terms of one score; `docs/scoring.md` says how each model makes the score of them."""

    model: str = Field(description="The scoring model.")
    similarity: float
    keyword: float | None = Field(description="0..1, by the words in common; null: the search was by meaning alone.")
    entities: float | None = Field(
        description="By the names of the query and what they are linked to; null: none leads anywhere."
    )
    fused: float = Field(
        description="Of all three, by `scoring.fusion`, and of the evidence, by `scoring.evidence`: the term of the"
        " similarity."
    )
    evidence: dict[str, float] | None = Field(
        description="What else tells that the memory answers the question, 0..1 by name (docs/hybrid.md); null: it is"
        " not kept, or no part of `fused`."
    )
    recency: float | None = Field(description="Of the model Weighted.")
    utility: float | None = Field(description="Of the model Weighted.")
    confidence_factor: float | None = Field(
        description="Of the model Weighted with a confidenceShare: a factor of the score."
    )
    weights: WeightsOut | None = Field(description="Of the model Weighted: boost * sum of weight * term = score.")
    terms: dict[str, float] | None = Field(
        description="Of another model, by name; of an expression, the parts of its sum: boost * their sum = score."
    )
    variables: dict[str, float] | None = Field(description="Of an expression: the number of each variable in it.")
    boost: float
    age_days: float
    half_life_days: float | None = Field(description="null: the memory does not decay.")
    score: float
    rank_before: int | None = Field(description="Place by similarity alone.")
    rerank: float | None = Field(
        description="The cross-encoder's number, by which those that have one are ordered; null: not read."
    )
    candidates: CandidatesOut | None


class FoundOut(MemoryOut):
    """A result of a search."""

    score: float
    similarity: float | None = Field(default=None, description="To the query; only with `terms`.")
    recency: float | None = Field(default=None, description="Only with `terms`; null: the model has none.")
    utility: float | None = Field(default=None, description="Only with `terms`; null: the model has none.")
    neighbours: list[MemoryOut] | None = Field(
        default=None, description="In its session, in order; only with `include`."
    )
    explain: ExplainOut | None = Field(default=None, description="Only when asked for.")


class SearchOut(Answer):
    """The answer of a search, best first: by score, and what was reranked by the cross-encoder's number."""

    results: list[FoundOut]
    generation: int = Field(description="Generation of the object whose settings ranked.")
    total_candidates: int
    removed_by_threshold: int = Field(
        description="Results that there would be besides, without thresholds on the score and on the similarity."
    )
    threshold: float | None = Field(description="On the score, as it was in force; null: none.")
    min_similarity: float | None = Field(description="On the similarity, as it was in force; null: none.")
    candidates: CandidatesOut | None = Field(description="Only with `explain`, also where nothing was found.")
    took_ms: float
    warnings: list[str] = Field(description="What makes this search dear, or why nothing was reranked.")


class StoredOut(Answer):
    """A memory that is durable."""

    id: str
    event: Literal["ADD", "SUPERSEDE", "CORROBORATE", "NONE"] = Field(
        description="NONE: it was said before, CORROBORATE: by another author; the id is that memory's."
    )
    supersedes: str | None
    recorded: bool = Field(description="Whether it left anything new behind.")
    warnings: list[str]


class ItemStoredOut(Answer):
    """An item that is durable."""

    success: Literal[True]
    memory_id: str
    key: str
    message: str = Field(description="Whether it is new, or replaced what lay under its key.")
    warnings: list[str]


class VersionsOut(Answer):
    """What later writes of an item replaced, newest first."""

    results: list[MemoryOut]


class KeysOut(Answer):
    """Keys of a namespace, by name in each page."""

    results: list[str]
    next_cursor: str | None


class NamespaceOut(Answer):
    """A namespace with items."""

    namespace: list[str]
    items: int


class NamespacesOut(Answer):
    """Namespaces with items, by name."""

    results: list[NamespaceOut]


class ToolsOut(Answer):
    """Tool schemas, in the form that was asked for."""

    tools: list[dict[str, Any]]


class FieldProblemOut(Answer):
    """One wrong field."""

    field: str
    message: str


class ProblemOut(Answer):
    """An error (RFC 9457)."""

    type: str = Field(description="Path of the page that explains this kind of error.")
    title: str
    status: int
    detail: str = Field(description="What is wrong, and the way out.")
    errors: list[FieldProblemOut] = Field(
        description="Of the first 50 wrong fields; in a batch of the first 5 of an item."
    )
    more_errors: int = Field(description="How many more there are.")
    request_id: str


class ErrorOut(Answer):
    """An item of a batch that was refused."""

    error: ProblemOut


class BatchOut(Answer):
    """One result an item, in order."""

    results: list[StoredOut | ErrorOut]


class PageOut(Answer):
    """Memories, newest first."""

    results: list[MemoryOut]
    next_cursor: str | None = Field(description="null on the last page.")


class HistoryOut(Answer):
    """The versions of a memory, oldest first."""

    results: list[MemoryOut]
    truncated: bool = Field(description="There are more versions than are read at once: ask for one at the end.")


class TreeNodeOut(MemoryOut):
    """A memory and what is below it."""

    children: "list[TreeNodeOut]" = Field(description="Oldest first.")


class TreeOut(Answer):
    """A memory with all that is below it."""

    root: TreeNodeOut
    truncated: bool = Field(description="There is more than `depth` and `limit` let through.")


class WorkingOut(Answer):
    """What a session has in mind, most recently used first."""

    results: list[MemoryOut]
    slots: int = Field(description="How many it may hold.")


class KeptOut(Answer):
    """A working memory that is durable."""

    id: str
    event: Literal["ADD", "NONE"] = Field(description="NONE: the session had it in mind already.")
    evicted: MemoryOut | None = Field(description="What had to go for it; its id is the place's, and so the new one's.")
    warnings: list[str]


class EndedOut(Answer):
    """What the end of a session dropped."""

    dropped: int
    counts: dict[str, int] = Field(description="By type.")
    run: str | None = Field(description="Of the distillation that follows, where the agent has a model.")


class HealthOut(Answer):
    """The process answers."""

    status: Literal["ok"]


class ProblemTypeOut(Answer):
    """A documented kind of error."""

    type: str
    title: str
    status: int
    explanation: str
