"""What callers send: strict models, unknown fields refused. A field stands here only when something acts on it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.answers import Shown
from agentmemory_operator.entrypoints.api.fields import (
    AskedTags,
    Author,
    Content,
    Context,
    Filters,
    Id,
    Importance,
    KnowledgeCategory,
    MemoryId,
    Metadata,
    Namespace,
    Numbers,
    Role,
    ScopeNames,
    Share,
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
from agentmemory_operator.memories.hierarchy import TreeRequest
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.criteria_json import read_filters
from agentmemory_operator.memories.rules.filters import Selection, TagsMatch
from agentmemory_operator.memories.rules.record import LISTS, PAYLOAD_KEYS
from agentmemory_operator.memories.stored import ListRequest
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.spec.expression.variables import MAX_DECAY_RATE
from agentmemory_operator.spec.presets.table import Weights

BATCH_MAX = 1_000
LIST_LIMIT = 50
# As of the object's own weights: `spec/kinds/cel/scoring.py`.
WEIGHTS_TOLERANCE = 1e-6
LIST_LIMIT_MAX = 1_000


class Body(BaseModel):
    """A JSON body: strict types, no unknown fields, no numbers that are not finite."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class MemoryIn(Body):
    """A memory to store. Only `user_id` and `content` are needed."""

    user_id: UserId = Field(description="Whose memory it is: a user, `group:NAME` or `global`.")
    content: Content = Field(description="The text itself.")
    type: TypeName | None = Field(default=None, description="One of the agent's types. Default: fact, else its first.")
    importance: Importance = Field(
        default=0.5, description="0..1, or low (.25), medium (.5), high (.75), critical (1)."
    )
    confidence: Share | None = Field(default=None, description="How sure the author is, 0..1.")
    decay_rate: Annotated[float, Field(ge=0, le=MAX_DECAY_RATE)] | None = Field(
        default=None, description="How fast it fades a day, 0..10, where the scoring model asks for it."
    )
    session_id: Id | None = Field(default=None, description="The conversation it came from.")
    tags: Tags = Field(default=[], description="Labels that a search can ask for; repeats are dropped.")
    source: Source | None = Field(
        default=None, description="Where it came from: one of these, or `x-` and a name of your own."
    )
    author: Author | None = Field(
        default=None, description="Who stores it. Default: the caller; another one takes the verb impersonate."
    )
    speaker: Id | None = Field(default=None, description="Who said it in the conversation.")
    role: Role | None = Field(default=None, description="What the speaker is.")
    metadata: Metadata = Field(default={}, description="Anything else, as a JSON object at most 16 levels deep.")
    key: Id | None = Field(default=None, description="What it is a value of, as `billing.method`.")
    subject: Id | None = Field(default=None, description="Whose or what state it tells.")
    status_value: Id | None = Field(default=None, description="The state itself, in a word.")
    category: Id | None = Field(default=None, description="What kind of knowledge: semantic, episodic, procedural, …")
    knowledge_category: KnowledgeCategory | None = Field(default=None, description="What it is about.")
    event_type: Id | None = Field(
        default=None,
        description="Of an event: user_interaction, tool_execution, error_event, system_event, agent_decision, …",
    )
    context: Context | None = Field(default=None, description="What was the case then: a text, or a JSON object.")
    domain: Id | None = Field(default=None, description="The field of knowledge that it belongs to.")
    source_ids: SourceIds = Field(default=[], description="Memories that it was made of; repeats are dropped.")
    parent_id: MemoryId | None = Field(default=None, description="The memory of the same user that it is a part of.")
    supersedes: MemoryId | None = Field(default=None, description="Id of the memory that this one replaces.")
    namespace: Namespace = Field(
        default=[], description="Where it belongs, from the outside in. `memories` is followed by user_id."
    )
    expires_at: Time | None = Field(default=None, description="From then on it is never returned.")
    valid_from: Time | None = Field(default=None, description="Since when it is true. Default: `created_at`.")
    valid_to: Time | None = Field(default=None, description="Until when it is true; what replaces it ends it too.")
    created_at: Time | None = Field(default=None, description="For imports of history. Default: now.")
    pinned: StrictBool = Field(default=False, description="Never cleaned up.")
    zone: ZoneName | None = Field(
        default=None, description="How it is sealed, of the zones that the object allows. Default: not at all."
    )
    vector: Numbers | None = Field(default=None, description="Only, and always, with embedding provider `none`.")

    def new_memory(
        self, *, default_type: str | None, stored_by: str | None = None, idempotency_key: str | None = None
    ) -> IncomingMemory:
        """What the use case takes."""
        decided = {"type": self.type if self.type is not None else default_type}
        decided |= {"stored_by": stored_by, "idempotency_key": idempotency_key}
        lists = {name: tuple(value) for name, value in self if name in LISTS}
        return IncomingMemory(**dict(self) | lists | decided)


class BatchIn(Body):
    """Memories to store; each is stored or refused by itself."""

    memories: Annotated[list[MemoryIn], Field(min_length=1, max_length=BATCH_MAX)]


class BatchEnvelope(Body):
    """A batch whose items are still unchecked, because one bad item does not lose the others."""

    memories: Annotated[list[Any], Field(min_length=1, max_length=BATCH_MAX)]


class WeightsIn(Body):
    """Shares of the combined score, together 1."""

    similarity: Share = Field(description="Share of the similarity, 0..1.")
    recency: Share = Field(description="Share of the recency, 0..1.")
    utility: Share = Field(description="Share of the utility, 0..1.")

    @model_validator(mode="after")
    def _add_up(self) -> "WeightsIn":
        total = self.similarity + self.recency + self.utility
        if abs(total - 1) > WEIGHTS_TOLERANCE:
            message = f"must add up to 1 (to within {WEIGHTS_TOLERANCE:f}), not {total:.6f}"
            raise PydanticCustomError("weights", "{message}", {"message": message})
        return self


class IncludeIn(Body):
    """What else each result brings along."""

    neighbours: Annotated[int, Field(ge=0, le=3)] = Field(
        default=0,
        description="So many memories before and after each result in its session, 0..3, where the agent has keywords.",
    )


class SearchIn(Body, Shown):
    """What to look for; one of `query` and `vector`, both where callers send vectors and the agent has keywords."""

    user_id: UserId = Field(description="Whose memories.")
    include_scopes: ScopeNames | None = Field(
        default=None,
        description="Shared scopes whose memories are searched too. Default: `global`, where the caller may read it.",
    )
    query: Content | None = Field(default=None, description="Text to embed.")
    vector: Numbers | None = Field(default=None, description="A vector of the agent's size in the query's place.")
    top_k: TopK | None = Field(default=None, description="How many at most. Default: the object's `limit`.")
    threshold: Threshold | None = Field(
        default=None, description="Least combined score. Default: the object's `scoreThreshold`."
    )
    min_priority: Share | None = Field(
        default=None,
        description="Least priority, with the model Priority. Default: the object's `minPriority`.",
    )
    types: TypeNames | None = Field(default=None, min_length=1, description="Only memories of these types.")
    tags: AskedTags | None = Field(
        default=None, min_length=1, description="Only memories that carry any of these tags."
    )
    tags_match: TagsMatch = Field(default="any", description="`all`: only those that carry every one of `tags`.")
    session_id: Id | None = Field(default=None, description="Only memories of this session.")
    namespace: Namespace = Field(default=[], description="Only memories whose namespace begins with these parts.")
    filters: Filters = Field(
        default={}, description="Conditions on fields: value, operators, AND, OR, NOT. See docs/filters.md."
    )
    at_time: Time | None = Field(default=None, description="Only what was true then, replaced since or not.")
    include_superseded: StrictBool = Field(default=False, description="Also versions that others replaced.")
    hybrid: StrictBool | None = Field(
        default=None,
        description="Search by words too; false searches by meaning alone. Default: where the agent has keywords.",
    )
    weights: WeightsIn | None = Field(
        default=None,
        description="For this search alone, with the model Weighted, where the object's `allowOverrides` lets it."
        " Default: the object's.",
    )
    include: IncludeIn = Field(default=IncludeIn(), description="What else each result brings along.")
    terms: StrictBool = Field(default=False, description="Also return similarity, recency and utility of each result.")
    explain: StrictBool = Field(
        default=False, description="Also return all terms of each score, and prove the answer: a dearer search."
    )

    @model_validator(mode="after")
    def _has_one_question(self) -> "SearchIn":
        if self.query is None and self.vector is None:
            raise PydanticCustomError("one_of", "send one of query and vector", {"field": "query"})
        return self

    def search_request(self, *, default_scopes: tuple[str, ...]) -> SearchRequest:
        """What the use case takes.

        Raises:
            RequestInvalid: `filters` are wrong.
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
            criterion=read_filters(self.filters),
        )
        return SearchRequest(
            selection=selection,
            query=self.query,
            vector=self.vector,
            top_k=self.top_k,
            threshold=self.threshold,
            min_priority=self.min_priority,
            hybrid=self.hybrid,
            weights=Weights(**dict(self.weights)) if self.weights else None,
            terms=self.terms,
            neighbours=self.include.neighbours,
            explain=self.explain,
        )


_NOT_GIVEN: Any = None


def _drop_default(schema: dict[str, Any]) -> None:
    """Say nothing of a default: what is not sent stays as it is, which no value stands for."""
    del schema["default"]


_FIXED = {
    "content": "never changes in place: store the new content with supersedes, and the id of this memory",
    "parent_id": "never changes in place, so that no memory comes to be above itself: store the memory anew with"
    " supersedes, the id of this one, and its parent",
}


class ChangeIn(Body):
    """What changes in a memory; what is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    importance: Importance = Field(default=_NOT_GIVEN, description="0..1, or a level.", json_schema_extra=_drop_default)
    tags: Tags = Field(default=_NOT_GIVEN, description="In the place of those it has.", json_schema_extra=_drop_default)
    metadata: Metadata = Field(
        default=_NOT_GIVEN, description="In the place of what it has.", json_schema_extra=_drop_default
    )
    expires_at: Time | None = Field(
        default=None, description="From then on it is never returned; null: never.", json_schema_extra=_drop_default
    )
    pinned: StrictBool = Field(default=_NOT_GIVEN, description="Never cleaned up.", json_schema_extra=_drop_default)
    zone: ZoneName | None = Field(
        default=None,
        description="How it and its earlier versions are sealed, alone in the request; a lower one, or null, takes the"
        " verb admin.",
        json_schema_extra=_drop_default,
    )

    @model_validator(mode="before")
    @classmethod
    def _says_something_else(cls, sent: Any) -> Any:
        fixed = next((name for name in _FIXED if name in sent), None) if isinstance(sent, dict) else None
        if fixed:
            raise PydanticCustomError("fixed", "{message}", {"message": _FIXED[fixed], "field": fixed})
        if isinstance(sent, dict) and not sent:
            message = f"send at least one of {', '.join(cls.model_fields)}"
            raise PydanticCustomError("empty", "{message}", {"message": message})
        if isinstance(sent, dict) and "zone" in sent and len(sent) > 1:
            message = "is changed alone: send what else changes in a request of its own"
            raise PydanticCustomError("alone", "{message}", {"message": message, "field": "zone"})
        return sent

    def changes(self) -> dict[str, Any]:
        """What was sent, by payload key."""
        return {PAYLOAD_KEYS[name]: getattr(self, name) for name in sorted(self.model_fields_set)}


class WorkingIn(Body):
    """What to keep in mind."""

    content: Content = Field(description="The text itself.")
    importance: Importance = Field(default=0.5, description="0..1, or low, medium, high, critical.")
    vector: Numbers | None = Field(default=None, description="Only, and always, with embedding provider `none`.")

    def new_memory(self, *, user_id: str, session_id: str, stored_by: str | None) -> IncomingMemory:
        """What the use case takes."""
        return IncomingMemory(**dict(self), user_id=user_id, session_id=session_id, stored_by=stored_by)


class Parameters(BaseModel):
    """Query parameters: strings that are read as what they stand for; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UserParameters(Parameters):
    """The parameter of every call on one memory."""

    user_id: UserId = Field(description="Whose memory.")


class ChildrenParameters(UserParameters):
    """Which of the memories below one."""

    limit: int = Field(default=LIST_LIMIT, ge=1, le=LIST_LIMIT_MAX, description="Memories a page.")
    cursor: str | None = Field(default=None, max_length=1024, description="`next_cursor` of the page before.")


class TreeParameters(UserParameters):
    """How much of a tree."""

    depth: int = Field(default=8, ge=1, le=32, description="Levels below the memory.")
    limit: int = Field(default=100, ge=1, le=LIST_LIMIT_MAX, description="Memories below it, in all.")

    def tree_request(self) -> TreeRequest:
        """What the use case takes."""
        return TreeRequest(user_id=self.user_id, depth=self.depth, limit=self.limit)


class StatsParameters(Parameters):
    """Whose memories to count."""

    user_id: UserId | None = Field(default=None, description="Whose memories. Default: all users' and scopes'.")


class MemoryParameters(UserParameters, Shown):
    """Whose memory, and how it is shown."""


class ListParameters(Parameters, Shown):
    """Which memories to list."""

    user_id: UserId = Field(description="Whose memories.")
    include_scopes: ScopeNames = Field(default=[], description="Memories of this shared scope too; repeated, of each.")
    type: TypeNames = Field(default=[], description="Only this type; repeated, any of them.")
    tag: AskedTags = Field(default=[], description="Only memories with this tag; repeated, with any of them.")
    tags_match: TagsMatch = Field(default="any", description="`all`: only memories with every `tag`.")
    session_id: Id | None = Field(default=None, description="Only this session.")
    namespace: Namespace = Field(default=[], description="Only this namespace: repeated, its first parts in order.")
    include_superseded: bool = Field(default=False, description="Also versions that others replaced.")
    limit: int = Field(default=LIST_LIMIT, ge=1, le=LIST_LIMIT_MAX, description="Memories a page.")
    cursor: str | None = Field(default=None, max_length=1024, description="`next_cursor` of the page before.")

    def list_request(self) -> ListRequest:
        """What the use case takes."""
        selection = Selection(
            user_id=self.user_id,
            scopes=tuple(self.include_scopes),
            types=tuple(self.type),
            tags=tuple(self.tag),
            tags_match=self.tags_match,
            session_id=self.session_id,
            namespace=tuple(self.namespace),
            include_superseded=self.include_superseded,
        )
        return ListRequest(selection=selection, limit=self.limit, cursor=self.cursor)
