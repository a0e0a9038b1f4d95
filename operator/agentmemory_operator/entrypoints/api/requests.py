"""What callers send: strict models, unknown fields refused. A field stands here only when something acts on it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.fields import (
    Content,
    Id,
    Importance,
    MemoryId,
    Metadata,
    Numbers,
    Share,
    Tag,
    Tags,
    Threshold,
    Time,
    TopK,
    TypeName,
)
from agentmemory_operator.services.memories import ListRequest
from agentmemory_operator.services.recall import SearchRequest
from agentmemory_operator.services.remember import NewMemory

BATCH_MAX = 1_000
LIST_LIMIT = 50
LIST_LIMIT_MAX = 1_000


class Body(BaseModel):
    """A JSON body: strict types, no unknown fields, no numbers that are not finite."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class MemoryIn(Body):
    """A memory to store. Only `user_id` and `content` are needed."""

    user_id: Id = Field(description="Whose memory it is.")
    content: Content = Field(description="The text itself.")
    type: TypeName | None = Field(default=None, description="One of the agent's types. Default: fact, else its first.")
    importance: Importance = Field(
        default=0.5, description="0..1, or low (.25), medium (.5), high (.75), critical (1)."
    )
    confidence: Share | None = Field(default=None, description="How sure the author is, 0..1.")
    session_id: Id | None = Field(default=None, description="The conversation it came from.")
    tags: Tags = Field(default=[], description="Labels that a search can ask for; repeats are dropped.")
    source: Id | None = Field(default=None, description="Where it came from: conversation, tool_result, reflection, …")
    metadata: Metadata = Field(default={}, description="Anything else, as a JSON object at most 16 levels deep.")
    supersedes: MemoryId | None = Field(default=None, description="Id of the memory that this one replaces.")
    expires_at: Time | None = Field(default=None, description="From then on it is never returned.")
    created_at: Time | None = Field(default=None, description="For imports of history. Default: now.")
    vector: Numbers | None = Field(default=None, description="Only, and always, with embedding provider `none`.")

    def new_memory(self, *, default_type: str | None, idempotency_key: str | None = None) -> NewMemory:
        """Return what the use case takes."""
        return NewMemory(
            user_id=self.user_id,
            content=self.content,
            type=self.type if self.type is not None else default_type,
            importance=self.importance,
            confidence=self.confidence,
            session_id=self.session_id,
            source=self.source,
            tags=tuple(self.tags),
            metadata=self.metadata,
            supersedes=self.supersedes,
            created_at=self.created_at,
            expires_at=self.expires_at,
            vector=self.vector,
            idempotency_key=idempotency_key,
        )


class BatchIn(Body):
    """Memories to store; each is stored or refused by itself."""

    memories: Annotated[list[MemoryIn], Field(min_length=1, max_length=BATCH_MAX)]


class BatchEnvelope(Body):
    """A batch whose items are still unchecked, because one bad item does not lose the others."""

    memories: Annotated[list[Any], Field(min_length=1, max_length=BATCH_MAX)]


class SearchIn(Body):
    """What to look for; exactly one of `query` and `vector`."""

    user_id: Id = Field(description="Whose memories.")
    query: Content | None = Field(default=None, description="Text to embed.")
    vector: Numbers | None = Field(default=None, description="A vector of the agent's size in the query's place.")
    top_k: TopK | None = Field(default=None, description="How many at most. Default: the object's `limit`.")
    threshold: Threshold | None = Field(
        default=None, description="Least combined score. Default: the object's `scoreThreshold`."
    )
    types: list[TypeName] | None = Field(default=None, min_length=1, description="Only memories of these types.")
    tags: list[Tag] | None = Field(default=None, min_length=1, description="Only memories that carry all of these.")
    session_id: Id | None = Field(default=None, description="Only memories of this session.")
    explain: StrictBool = Field(default=False, description="Also return the terms of each score.")

    @model_validator(mode="after")
    def _has_one_question(self) -> "SearchIn":
        if (self.query is None) == (self.vector is None):
            raise PydanticCustomError("one_of", "send exactly one of query and vector", {"field": "query"})
        return self

    def search_request(self) -> SearchRequest:
        """Return what the use case takes."""
        return SearchRequest(
            user_id=self.user_id,
            query=self.query,
            vector=self.vector,
            top_k=self.top_k,
            threshold=self.threshold,
            types=tuple(self.types or ()),
            tags=tuple(self.tags or ()),
            session_id=self.session_id,
            explain=self.explain,
        )


class Parameters(BaseModel):
    """Query parameters: strings that are read as what they stand for; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UserParameters(Parameters):
    """The parameter of every call on one memory."""

    user_id: Id = Field(description="Whose memory.")


class ListParameters(Parameters):
    """Which memories to list."""

    user_id: Id = Field(description="Whose memories.")
    type: TypeName | None = Field(default=None, description="Only this type.")
    tag: Tag | None = Field(default=None, description="Only memories with this tag.")
    session_id: Id | None = Field(default=None, description="Only this session.")
    include_superseded: bool = Field(default=False, description="Also versions that others replaced.")
    limit: int = Field(default=LIST_LIMIT, ge=1, le=LIST_LIMIT_MAX, description="Memories a page.")
    cursor: str | None = Field(default=None, max_length=1024, description="`next_cursor` of the page before.")

    def list_request(self) -> ListRequest:
        """Return what the use case takes."""
        return ListRequest(**self.model_dump())
