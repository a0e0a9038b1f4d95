"""Response models for the OpenAPI document. `response_views` renders the JSON; a test checks that both agree."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentmemory_operator.entrypoints.api.fields import Time, ZoneName
from agentmemory_operator.memories.rules.entities import EntityKind, EntityRole


class Answer(BaseModel):
    """A response or a part of one. Fields without a default are always present. No validator is built: none is used."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class EntityOut(Answer):
    """A name that a memory mentions."""

    name: str
    kind: EntityKind
    role: EntityRole = Field(
        description="about: the memory is about this name; source: its author has it; mentioned: its text has it."
    )


class ConnectionOut(Answer):
    """A link to a related memory."""

    id: str
    description: str = Field(description="Relation of the two memories, in words.")
    run: str | None = Field(default=None, description="Consolidation run that found it; absent if it was imported.")


class MemoryOut(Answer):
    """A stored memory with all fields."""

    id: str
    user_id: str
    content: str | None = Field(description="null if the memory is locked.")
    type: str
    importance: float
    priority: float | None = Field(
        description="Current priority with the scoring model Priority; null with other models."
    )
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
    observed_by: list[str] = Field(description="Authors who stored this content, including the first.")
    observation_count: int = Field(description="Number of authors who stored this content; 1 if no author is known.")
    namespace: list[str]
    entities: list[EntityOut] = Field(description="Names that the memory mentions; empty if it has a zone.")
    version: int | None = Field(description="Number of an item's version, from 1; null for other memories.")
    supersedes: str | None
    supersedes_ids: list[str] = Field(description="For a merged memory: IDs of all memories that it supersedes.")
    superseded_by: str | None
    superseded_at: Time | None
    valid_from: Time | None
    valid_to: Time | None
    expires_at: Time | None
    created_at: Time
    updated_at: Time = Field(description="Time of the last write; searches do not change it.")
    last_accessed_at: Time | None
    access_count: int
    pinned: bool
    connections: list[ConnectionOut] = Field(description="Related memories.")
    consolidated: bool = Field(description="True if a consolidation has processed or created the memory.")
    zone: ZoneName | None = Field(description="Privacy zone, in which the memory is encrypted; null if it has none.")
    locked: bool = Field(description="True if the key is unavailable or deleted; encrypted fields are null or empty.")


class WeightsOut(Answer):
    """Weights of the combined score."""

    similarity: float
    recency: float
    utility: float


class CandidatesOut(Answer):
    """Numbers of candidates of a search, and whether its result is exact."""

    scored: int = Field(description="Candidates with at least the object's minSimilarity.")
    below_threshold: int = Field(description="Candidates whose score is below the threshold.")
    eligible: int = Field(description="Memories that match the filters.")
    exact: bool = Field(description="True if no memory that was not scored can have a score as high as a result.")


class ExplainOut(Answer):
    """Terms of one score; `docs/scoring.md` explains the formula of each model."""

    model: str = Field(description="The scoring model.")
    similarity: float
    keyword: float | None = Field(description="Keyword score, 0..1; null if the search used vectors only.")
    entities: float | None = Field(
        description="Score for names of the query and their neighbours; null if no memory was found by names."
    )
    fused: float = Field(
        description="Combination of similarity, keyword and entities by `scoring.fusion`, and of the evidence by"
        " `scoring.evidence`; used as the similarity."
    )
    evidence: dict[str, float] | None = Field(
        description="Other evidence that the memory answers the query, 0..1 by name (docs/hybrid.md); null if it is"
        " not stored or not part of `fused`."
    )
    recency: float | None = Field(description="Only with the model Weighted.")
    utility: float | None = Field(description="Only with the model Weighted.")
    confidence_factor: float | None = Field(
        description="Factor of the score with the model Weighted and a confidenceShare."
    )
    weights: WeightsOut | None = Field(
        description="Only with the model Weighted: boost * sum of weight * term = score."
    )
    terms: dict[str, float] | None = Field(
        description="Terms of other models by name, or the summands of an expression: boost * their sum = score."
    )
    variables: dict[str, float] | None = Field(description="Value of each variable of an expression.")
    boost: float
    age_days: float
    half_life_days: float | None = Field(description="null if the memory does not decay.")
    score: float
    rank_before: int | None = Field(description="Rank by similarity only.")
    rerank: float | None = Field(
        description="Score of the cross-encoder, which orders the results that have one; null if not reranked."
    )
    candidates: CandidatesOut | None


class FoundOut(MemoryOut):
    """A memory found by a search, with its score."""

    score: float
    similarity: float | None = Field(default=None, description="Similarity to the query; only with `terms`.")
    recency: float | None = Field(default=None, description="Only with `terms`; null if the model has no such term.")
    utility: float | None = Field(default=None, description="Only with `terms`; null if the model has no such term.")
    neighbours: list[MemoryOut] | None = Field(
        default=None, description="Neighbours in its session, in order; only with `include`."
    )
    explain: ExplainOut | None = Field(default=None, description="Only with `explain`.")


class TimeSpanOut(Answer):
    """A time that the query names."""

    since: Time
    until: Time = Field(description="The first moment after it.")
    words: str = Field(description="Words of the query that were understood.")


class LeftOutOut(Answer):
    """A memory that `diversity` left out of the results."""

    id: str
    session_id: str
    score: float


class SearchOut(Answer):
    """Results of a search, best first: by score, or by the cross-encoder for reranked results."""

    results: list[FoundOut]
    generation: int = Field(description="Generation of the AgentMemory object whose settings were used.")
    total_candidates: int
    removed_by_threshold: int = Field(description="Results within `top_k` that the thresholds removed.")
    threshold: float | None = Field(description="Effective threshold of the score; null if there is none.")
    min_similarity: float | None = Field(description="Effective threshold of the similarity; null if there is none.")
    candidates: CandidatesOut | None = Field(description="Only with `explain`, even without results.")
    time_spans: list[TimeSpanOut] | None = Field(
        description="Times in the query, also where the evidence `date` does not count (docs/hybrid.md); empty for an "
        "agent without keywords; only with `explain`."
    )
    left_out: list[LeftOutOut] | None = Field(
        description="Memories that `diversity` left out before `top_k` was reached, best first; only with `explain`."
    )
    took_ms: float
    warnings: list[str] = Field(
        description="Reasons for a slow search, for results that were not reranked, or for few results."
    )


class StoredOut(Answer):
    """Result of storing a memory."""

    id: str
    event: Literal["ADD", "SUPERSEDE", "CORROBORATE", "NONE"] = Field(
        description="NONE: a duplicate; CORROBORATE: a duplicate by another author. `id` is then the stored memory's."
    )
    supersedes: str | None
    recorded: bool = Field(
        description="False if the memory is a duplicate and nothing was stored. A repeated request with the same "
        "Idempotency-Key gets the value of the first."
    )
    warnings: list[str]


class ItemStoredOut(Answer):
    """Result of putting an item."""

    success: Literal[True]
    memory_id: str
    key: str
    message: str = Field(description="Text that states whether the item is new or replaced another.")
    etag: str | None = Field(
        description="Tag of the item right after this PUT, for `If-Match`. null if a repeated PUT was deleted since."
    )
    warnings: list[str]


class VersionsOut(Answer):
    """Replaced versions of an item, newest first."""

    results: list[MemoryOut]


class KeysOut(Answer):
    """Keys of a namespace, sorted within each page."""

    results: list[str]
    next_cursor: str | None


class NamespaceOut(Answer):
    """A namespace with its number of items."""

    namespace: list[str]
    items: int


class NamespacesOut(Answer):
    """Namespaces with items, by name."""

    results: list[NamespaceOut]


class ToolsOut(Answer):
    """Tool schemas in the requested format."""

    tools: list[dict[str, Any]]


class FieldProblemOut(Answer):
    """An invalid field of the request, and what is allowed."""

    field: str
    message: str


class ProblemOut(Answer):
    """An error (RFC 9457)."""

    type: str = Field(description="Path of the page that explains this error.")
    title: str
    status: int
    detail: str = Field(description="Cause of the error, and how to fix it.")
    errors: list[FieldProblemOut] = Field(description="The first 50 invalid fields; in a batch the first 5 per item.")
    more_errors: int = Field(description="Number of further errors.")
    request_id: str
    etag: str | None = Field(
        default=None, description="Only with status 412: tag of the stored version; null if nothing is stored."
    )


class ErrorOut(Answer):
    """Result of a rejected item of a batch."""

    error: ProblemOut


class BatchOut(Answer):
    """One result per item, in order."""

    results: list[StoredOut | ErrorOut]


class ItemsStoredOut(Answer):
    """One result per item, in order."""

    results: list[ItemStoredOut | ErrorOut]


class PageOut(Answer):
    """Memories, newest first."""

    results: list[MemoryOut]
    next_cursor: str | None = Field(description="null on the last page.")


class HistoryOut(Answer):
    """The versions of a memory, oldest first."""

    results: list[MemoryOut]
    truncated: bool = Field(
        description="True if there are more versions than one request returns; request the history of the last one."
    )


class TreeNodeOut(MemoryOut):
    """A memory and its children."""

    children: "list[TreeNodeOut]" = Field(description="Oldest first.")


class TreeOut(Answer):
    """A memory with its descendants."""

    root: TreeNodeOut
    truncated: bool = Field(description="True if there are more descendants than `depth` and `limit` allow.")


class WorkingOut(Answer):
    """Working memories of a session, most recently used first."""

    results: list[MemoryOut]
    slots: int = Field(description="Maximum number of working memories.")


class KeptOut(Answer):
    """Result of adding a working memory."""

    id: str
    event: Literal["ADD", "NONE"] = Field(description="ADD: stored; NONE: the session already has this content.")
    evicted: MemoryOut | None = Field(
        description="Working memory that was removed to free its slot. The new one has the same ID, that of the slot."
    )
    warnings: list[str]


class EndedOut(Answer):
    """Number of memories removed at the end of a session."""

    dropped: int
    counts: dict[str, int] = Field(description="Number of removed memories by type.")
    run: str | None = Field(description="ID of the distillation run that follows; null if there is none.")


class LinksOut(Answer):
    """Paths of the entry points."""

    docs: str = Field(description="Page that shows this API in a browser.")
    openapi: str = Field(description="The OpenAPI document.")
    agents: str = Field(description="List of the agents.")
    mcp: str = Field(description="Endpoint of the Model Context Protocol: tools for language models.")
    health: str = Field(description="Liveness probe.")
    ui: str | None = Field(default=None, description="Explorer for browsers; only where it is served.")


class RootOut(Answer):
    """Entry points of the service."""

    links: LinksOut


class HealthOut(Answer):
    """Response of a successful probe; a failed probe responds with a problem."""

    status: Literal["ok"]


class ProblemTypeOut(Answer):
    """A kind of error, and how to fix it."""

    type: str
    title: str
    status: int
    explanation: str
