"""Request models of memories and searches. They are strict, and reject unknown fields."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.fields import (
    Author,
    Body,
    Content,
    Context,
    Filters,
    FilterTags,
    Id,
    Importance,
    KnowledgeCategory,
    MemoryId,
    Metadata,
    Namespace,
    Numbers,
    QueryTimes,
    Role,
    ScopeNames,
    Share,
    Similarity,
    Source,
    SourceIds,
    Tags,
    Threshold,
    Time,
    TopK,
    TypeName,
    TypeNames,
    UserId,
    ZoneName,
)
from agentmemory_operator.entrypoints.api.response_views import MemoryView
from agentmemory_operator.entrypoints.api.search_options import DiversityIn, IncludeIn, WeightsIn
from agentmemory_operator.memories.hierarchy import TreeRequest
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.criteria import STATE_CRITERIA, ListedState
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.filters import Selection, TagsMatch
from agentmemory_operator.memories.rules.record import LIST_ATTRIBUTES, PAYLOAD_KEYS, build_fast
from agentmemory_operator.memories.stored_memories import ListRequest
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.spec.expression.variables import MAX_DECAY_RATE
from agentmemory_operator.spec.presets.table import Weights

MAX_BATCH_ITEMS = 1_000
DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1_000
# Each period costs a request to Qdrant.
MAX_PERIODS = 100


class MemoryIn(Body):
    """A memory to store. Only `user_id` and `content` are required, and `vector` with provider `none`."""

    user_id: UserId = Field(description="Owner of the memory: a user, `group:NAME` or `global`.")
    content: Content = Field(description="Content of the memory.")
    type: TypeName | None = Field(
        default=None, description="One of the agent's types. Default: fact if the agent has it, else its first type."
    )
    importance: Importance = Field(
        default=0.5, description="0..1, or low (.25), medium (.5), high (.75), critical (1)."
    )
    confidence: Share | None = Field(default=None, description="Confidence of the author, 0..1.")
    decay_rate: Annotated[float, Field(ge=0, le=MAX_DECAY_RATE)] | None = Field(
        default=None, description="Decay rate per day, 0..10, for scoring models that use it."
    )
    session_id: Id | None = Field(default=None, description="Session or conversation that the memory comes from.")
    tags: Tags = Field(default=[], description="Labels for filtering; duplicates are dropped.")
    source: Source | None = Field(
        default=None, description="Origin: one of the listed values, or `x-` followed by a name of your own."
    )
    author: Author | None = Field(
        default=None, description="Author. Default: the caller; another one needs the verb impersonate."
    )
    speaker: Id | None = Field(default=None, description="Name of the speaker in the conversation.")
    role: Role | None = Field(default=None, description="Role of the speaker.")
    metadata: Metadata = Field(default={}, description="Additional data as a JSON object, at most 16 levels deep.")
    key: Id | None = Field(default=None, description="Key of the stated fact, for example `billing.method`.")
    subject: Id | None = Field(default=None, description="Subject that the memory describes the status of.")
    status_value: Id | None = Field(default=None, description="Status of the subject, in one word.")
    category: Id | None = Field(
        default=None, description="Kind of knowledge, for example semantic, episodic or procedural."
    )
    knowledge_category: KnowledgeCategory | None = Field(default=None, description="Topic of the knowledge.")
    event_type: Id | None = Field(
        default=None,
        description="Kind of event, for example user_interaction, tool_execution, error_event or agent_decision.",
    )
    context: Context | None = Field(default=None, description="Circumstances, as a text or a JSON object.")
    domain: Id | None = Field(default=None, description="Domain of knowledge.")
    source_ids: SourceIds = Field(
        default=[], description="IDs of the memories that this one was derived from; duplicates are dropped."
    )
    parent_id: MemoryId | None = Field(default=None, description="ID of the parent memory of the same user.")
    supersedes: MemoryId | None = Field(default=None, description="ID of the memory that this one replaces.")
    namespace: Namespace = Field(
        default=[], description="Parts of the namespace, outermost first. After `memories`, user_id must follow."
    )
    expires_at: Time | None = Field(default=None, description="Expiry time, after which no request returns the memory.")
    valid_from: Time | None = Field(default=None, description="Start of the memory's validity. Default: `created_at`.")
    valid_to: Time | None = Field(default=None, description="End of the memory's validity; superseding ends it too.")
    created_at: Time | None = Field(default=None, description="Creation time, for older memories. Default: now.")
    pinned: StrictBool = Field(default=False, description="True to exclude the memory from cleanups.")
    zone: ZoneName | None = Field(default=None, description="Privacy zone, one that the object allows. Default: none.")
    vector: Numbers | None = Field(
        default=None, description="Vector of the content. Required with provider `none`, otherwise not allowed."
    )

    def new_memory(
        self, *, default_type: str | None, stored_by: str | None = None, idempotency_key: str | None = None
    ) -> IncomingMemory:
        """Convert to the `IncomingMemory` of the use case. A missing type becomes `default_type`.

        Args:
            default_type: None lets the use case choose the type.
            stored_by: Authenticated caller, who becomes the author if the body names none. None if there is no caller.
            idempotency_key: Key from the request header; None if the client sends none.
        """
        values = self.__dict__ | {"stored_by": stored_by, "idempotency_key": idempotency_key}
        if self.type is None:
            values["type"] = default_type
        for name in values.keys() & LIST_ATTRIBUTES:
            values[name] = tuple(values[name])
        return build_fast(IncomingMemory, values)


class BatchIn(Body):
    """Memories to store; each is stored or rejected individually."""

    memories: Annotated[list[MemoryIn], Field(min_length=1, max_length=MAX_BATCH_ITEMS)]


class BatchEnvelope(Body):
    """A batch with unvalidated items, so that an invalid item does not reject the others."""

    memories: Annotated[list[Any], Field(min_length=1, max_length=MAX_BATCH_ITEMS)]


class SearchIn(Body, MemoryView, QueryTimes):
    """A search: either `query` or `vector`, or both if callers send vectors and the agent has a keyword index."""

    user_id: UserId = Field(description="User whose memories are searched.")
    include_scopes: ScopeNames | None = Field(
        default=None, description="Shared scopes to search too. Default: `global` if the caller may read it."
    )
    query: Content | None = Field(default=None, description="Text to search for.")
    vector: Numbers | None = Field(default=None, description="Vector to search for, with the agent's dimensions.")
    top_k: TopK | None = Field(default=None, description="Maximum number of results. Default: the object's `limit`.")
    threshold: Threshold | None = Field(
        default=None, description="Minimum combined score. Default: the object's `scoreThreshold`."
    )
    min_similarity: Similarity | None = Field(
        default=None,
        description="Minimum similarity, -1..1; -1 removes the minimum. Needs `allowOverrides` in the object. Default:"
        " the object's `minSimilarity`.",
    )
    min_priority: Share | None = Field(
        default=None, description="Minimum priority, 0..1; model Priority only. Default: the object's `minPriority`."
    )
    types: TypeNames | None = Field(default=None, min_length=1, description="Only memories of these types.")
    tags: FilterTags | None = Field(default=None, min_length=1, description="Only memories with any of these tags.")
    tags_match: TagsMatch = Field(default="any", description="`any`: memories have one of the tags; `all`: every tag.")
    session_id: Id | None = Field(default=None, description="Only memories of this session.")
    namespace: Namespace = Field(default=[], description="Only memories with a namespace that starts with these parts.")
    filters: Filters = Field(
        default={}, description="Conditions on fields: value, operators, AND, OR, NOT. See docs/filters.md."
    )
    at_time: Time | None = Field(
        default=None, description="Only memories that were valid at this time, including versions superseded since."
    )
    include_superseded: StrictBool = Field(default=False, description="Also return superseded versions.")
    hybrid: StrictBool | None = Field(
        default=None,
        description=(
            "Search by keywords too; false searches by vectors only. Default: true if the agent has a keyword index."
        ),
    )
    weights: WeightsIn | None = Field(
        default=None,
        description="Weights for this search. Needs the model Weighted, and `allowOverrides` in the object."
        " Default: the object's.",
    )
    diversity: DiversityIn | None = Field(default=None, description="Limits on similar results. Default: none.")
    include: IncludeIn = Field(default=IncludeIn(), description="Additional data for each result.")
    terms: StrictBool = Field(default=False, description="Also return similarity, recency and utility of each result.")
    explain: StrictBool = Field(
        default=False, description="Also return all terms of each score and verify the ranking; the search is slower."
    )

    @model_validator(mode="after")
    def _require_query(self) -> "SearchIn":
        if self.query is None and self.vector is None:
            raise PydanticCustomError("one_of", "send one of query and vector", {"field": "query"})
        return self

    def search_request(self, *, default_scopes: tuple[str, ...], default_time_zone: str | None = None) -> SearchRequest:
        """Convert to the `SearchRequest` of the use case.

        Args:
            default_scopes: Shared scopes to search if the body has no `include_scopes`.
            default_time_zone: Zone from the request header, used if the body names none. None without the header.

        Raises:
            RequestInvalid: If `filters` are invalid.
        """
        selection = Selection(
            user_id=self.user_id,
            scopes=default_scopes if self.include_scopes is None else tuple(self.include_scopes),
            types=tuple(self.types or ()),
            tags=tuple(self.tags or ()),
            tags_match=self.tags_match,
            session_id=self.session_id,
            namespace=tuple(self.namespace),
            at_time=self.at_time,
            include_superseded=self.include_superseded,
            criterion=parse_filters(self.filters),
        )
        return SearchRequest(
            **{name: getattr(self, name) for name in _SENT_AS_IS},
            selection=selection,
            weights=Weights(**dict(self.weights)) if self.weights else None,
            per_session=self.diversity.per_session if self.diversity else None,
            neighbours=self.include.neighbours,
            **self.time_options(default_time_zone),
        )


_SENT_AS_IS = ("query", "vector", "top_k", "threshold", "min_similarity", "min_priority", "hybrid", "terms", "explain")
_NOT_GIVEN: Any = None


def _drop_default(schema: dict[str, Any]) -> None:
    """Remove the default from the schema: an omitted field stays unchanged, which no value can express."""
    del schema["default"]


_FIXED = {
    "content": "cannot be changed: store a new memory with supersedes set to this memory's ID",
    "parent_id": "cannot be changed, to prevent cycles: store a new memory with"
    " supersedes set to this memory's ID, and the new parent",
}


class ChangeIn(Body):
    """Fields to change in a memory; omitted fields stay unchanged."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    importance: Importance = Field(
        default=_NOT_GIVEN, description="0..1, or low, medium, high, critical.", json_schema_extra=_drop_default
    )
    tags: Tags = Field(default=_NOT_GIVEN, description="Replaces the existing tags.", json_schema_extra=_drop_default)
    metadata: Metadata = Field(
        default=_NOT_GIVEN, description="Replaces the existing metadata.", json_schema_extra=_drop_default
    )
    expires_at: Time | None = Field(
        default=None,
        description="Expiry time, after which no request returns the memory; null removes the expiry.",
        json_schema_extra=_drop_default,
    )
    pinned: StrictBool = Field(
        default=_NOT_GIVEN, description="True to exclude the memory from cleanups.", json_schema_extra=_drop_default
    )
    zone: ZoneName | None = Field(
        default=None,
        description="Privacy zone of the memory and its earlier versions; must be the only change. A lower zone or null"
        " needs the verb admin.",
        json_schema_extra=_drop_default,
    )

    @model_validator(mode="before")
    @classmethod
    def _check_changes(cls, body: Any) -> Any:
        fixed = next((name for name in _FIXED if name in body), None) if isinstance(body, dict) else None
        if fixed:
            raise PydanticCustomError("fixed", "{message}", {"message": _FIXED[fixed], "field": fixed})
        if isinstance(body, dict) and not body:
            message = f"send at least one of {', '.join(cls.model_fields)}"
            raise PydanticCustomError("empty", "{message}", {"message": message})
        if isinstance(body, dict) and "zone" in body and len(body) > 1:
            message = "must be the only change in the request: send the other changes separately"
            raise PydanticCustomError("alone", "{message}", {"message": message, "field": "zone"})
        return body

    def changes(self) -> dict[str, Any]:
        """Return the sent fields by their key in the stored payload."""
        return {PAYLOAD_KEYS[name]: getattr(self, name) for name in sorted(self.model_fields_set)}


class WorkingIn(Body):
    """A working memory to add."""

    content: Content = Field(description="Content of the memory.")
    importance: Importance = Field(default=0.5, description="0..1, or low, medium, high, critical.")
    vector: Numbers | None = Field(
        default=None, description="Vector of the content. Required with provider `none`, otherwise not allowed."
    )

    def new_memory(self, *, user_id: str, session_id: str, stored_by: str | None) -> IncomingMemory:
        """Convert to the `IncomingMemory` of the use case."""
        return IncomingMemory(**dict(self), user_id=user_id, session_id=session_id, stored_by=stored_by)


class Parameters(BaseModel):
    """Query parameters. Strings are converted to the field's type; unknown parameters are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UserParameters(Parameters):
    """Query parameters of requests about the memories of one user."""

    user_id: UserId = Field(description="User who owns the memory.")


class ChildrenParameters(UserParameters):
    """Query parameters for listing the children of a memory, page by page."""

    limit: int = Field(default=DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE, description="Memories per page.")
    cursor: str | None = Field(default=None, max_length=1024, description="`next_cursor` of the previous page.")


class TreeParameters(UserParameters):
    """Query parameters for reading a tree."""

    depth: int = Field(default=8, ge=1, le=32, description="Maximum number of levels below the memory.")
    limit: int = Field(default=100, ge=1, le=MAX_PAGE_SIZE, description="Maximum number of descendants.")

    def tree_request(self) -> TreeRequest:
        """Convert to the `TreeRequest` of the use case."""
        return TreeRequest(user_id=self.user_id, depth=self.depth, limit=self.limit)


class StatsParameters(Parameters):
    """Query parameters for counting memories."""

    user_id: UserId | None = Field(
        default=None, description="User whose memories are counted. Default: all users and scopes."
    )
    periods: int = Field(
        default=0,
        ge=0,
        le=MAX_PERIODS,
        description="Also count active memories by day of creation (UTC), in at most this many periods of days.",
    )


class MemoryParameters(UserParameters, MemoryView):
    """Query parameters for reading a memory."""


class ListParameters(Parameters, MemoryView):
    """Query parameters for listing a user's memories, newest first, page by page."""

    user_id: UserId = Field(description="User whose memories are listed.")
    include_scopes: ScopeNames = Field(default=[], description="Shared scope to list too; may be repeated.")
    type: TypeNames = Field(default=[], description="Only memories of this type; repeat it to allow several types.")
    tag: FilterTags = Field(default=[], description="Only memories with this tag; repeat it for several tags.")
    tags_match: TagsMatch = Field(default="any", description="`any`: memories have one of the tags; `all`: every tag.")
    session_id: Id | None = Field(default=None, description="Only memories of this session.")
    namespace: Namespace = Field(
        default=[], description="Only memories in this namespace; repeat it for each leading part, in order."
    )
    at_time: Time | None = Field(
        default=None, description="Only memories that were valid at this time, including versions superseded since."
    )
    created_before: Time | None = Field(default=None, description="Only memories created before this time.")
    include_superseded: bool = Field(default=False, description="Also return superseded versions.")
    state: ListedState | None = Field(
        default=None, description="Only `active`, only `superseded`, or only `pinned` memories."
    )
    limit: int = Field(default=DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE, description="Memories per page.")
    cursor: str | None = Field(default=None, max_length=1024, description="`next_cursor` of the previous page.")

    def list_request(self) -> ListRequest:
        """Convert to the `ListRequest` of the use case."""
        selection = Selection(
            user_id=self.user_id,
            scopes=tuple(self.include_scopes),
            types=tuple(self.type),
            tags=tuple(self.tag),
            tags_match=self.tags_match,
            session_id=self.session_id,
            namespace=tuple(self.namespace),
            at_time=self.at_time,
            include_superseded=self.include_superseded or self.state == "superseded",
            criterion=STATE_CRITERIA[self.state] if self.state else None,
        )
        return ListRequest(
            selection=selection, created_before=self.created_before, limit=self.limit, cursor=self.cursor
        )
