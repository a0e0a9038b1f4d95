"""Bodies and query parameters of mem0's dialects. As on mem0's servers, unknown fields are ignored."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.fields import Content, Id, Metadata, Role, UserId
from agentmemory_operator.entrypoints.api.mem0.filter_reader import RESERVED_KEY
from agentmemory_operator.entrypoints.api.mem0.mem0_times import day_after, read_time_ms
from agentmemory_operator.spec.times import LAST_MS

Json = dict[str, Any]

ENTITY_NAMES = ("user_id", "agent_id", "app_id", "run_id")
MAX_MESSAGES = 256
MAX_FIELDS = 64
MAX_PAGE_SIZE = 200
DEFAULT_PAGE_SIZE = 100
MAX_TOP_K = 1_000
MAX_BATCH = 1_000
# Beyond every score, and far from the limits of float32.
MAX_THRESHOLD = 1_000
# Options that change results on mem0's servers and have no effect here. A header of the response names them.
_WITHOUT_EFFECT = frozenset(
    {
        *("custom_instructions", "agent_custom_instructions", "custom_categories", "includes", "excludes", "prompt"),
        *("structured_data_schema", "immutable", "enable_graph", "memory_type", "prompt_profile_id"),
        *("rerank", "keyword_search", "show_expired", "explain"),
    }
)


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("value", "{message}", {"message": message})


def _time_ms(value: Any) -> int:
    try:
        return read_time_ms(value)
    except ValueError as error:
        raise _refuse(str(error)) from None


def _text_of(content: Any) -> Any:
    """Return the text of a message whose content is a list of parts, or one part. Only text can be stored."""
    parts = [content] if isinstance(content, Mapping) else content
    if not isinstance(parts, list):
        return content
    found = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise _refuse("must be text: images and documents cannot be stored")
    return "\n".join(texts)


def _messages_of(value: Any) -> Any:
    """Return a list of messages: a text is one message of the user."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return [value] if isinstance(value, Mapping) else value


def _check_reserved(metadata: Json) -> Json:
    if RESERVED_KEY in metadata:
        raise _refuse(f"must not have the key {RESERVED_KEY!r}, which is reserved")
    return metadata


Time = Annotated[int, BeforeValidator(_time_ms)]
Expiration = Annotated[int, BeforeValidator(lambda value: _time_ms(day_after(value)))]
"""Unix milliseconds from which a memory is no longer visible; from a date, the end of that day."""
OwnMetadata = Annotated[Metadata, AfterValidator(_check_reserved)]


class Mem0Body(BaseModel):
    """A body of mem0's clients. Values are converted as mem0's servers do, for example "yes" to true."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @property
    def without_effect(self) -> list[str]:
        """Names of the options that are set and have no effect, sorted."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value and name in _WITHOUT_EFFECT)


class EntityFields(Mem0Body):
    """Entities of mem0: one user, and optionally an agent, app and run."""

    user_id: UserId | None = None
    agent_id: Id | None = None
    app_id: Id | None = None
    run_id: Id | None = None

    @property
    def entities(self) -> dict[str, str]:
        """The entities that are set."""
        return {name: value for name in ENTITY_NAMES if (value := getattr(self, name)) is not None}


class Mem0MessageIn(Mem0Body):
    """A message to store."""

    role: Role
    content: Annotated[Content, BeforeValidator(_text_of)]
    name: Id | None = None


class Mem0AddIn(EntityFields):
    """Messages to store."""

    messages: Annotated[
        list[Mem0MessageIn], BeforeValidator(_messages_of), Field(min_length=1, max_length=MAX_MESSAGES)
    ]
    metadata: OwnMetadata | None = None
    infer: bool | None = None
    expiration_date: Expiration | None = None
    # Each message is stored a millisecond after the one before it.
    timestamp: Annotated[Time, Field(le=LAST_MS - MAX_MESSAGES)] | None = None
    filters: EntityFields = EntityFields()
    output_format: str | None = None

    @property
    def named_entities(self) -> dict[str, str]:
        """The entities, those in `filters` included."""
        return self.filters.entities | self.entities


class Mem0ListIn(EntityFields):
    """A list of memories."""

    filters: Json | None = None
    page: Annotated[int, Field(ge=1)] | None = None
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] | None = None
    start_date: str | None = None
    end_date: str | None = None
    categories: list[str] | None = None
    keywords: str | None = None
    metadata: Json | None = None
    fields: Annotated[list[str], Field(max_length=MAX_FIELDS)] | None = None

    def documents(self) -> list[Json]:
        """Return the filters of the request, all of which must hold."""
        found: list[Json] = [self.filters or {}, self.entities]
        if self.start_date:
            found.append({"created_at": {"gte": self.start_date}})
        if self.end_date:
            following = day_after(self.end_date)
            found.append({"created_at": {"lte" if following == self.end_date else "lt": following}})
        if self.categories:
            found.append({"categories": {"in": self.categories}})
        if self.keywords:
            found.append({"keywords": self.keywords})
        if self.metadata:
            found.append({"metadata": self.metadata})
        return found


class Mem0SearchIn(Mem0ListIn):
    """A search."""

    query: Content
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    threshold: Annotated[float, Field(ge=-MAX_THRESHOLD, le=MAX_THRESHOLD)] | None = None
    reference_date: Time | None = None
    output_format: str | None = None


class Mem0UpdateIn(Mem0Body):
    """Changes of a memory."""

    text: Content | None = None
    metadata: OwnMetadata | None = None
    expiration_date: Expiration | None = None
    timestamp: Time | None = None


class Mem0BatchItemIn(Mem0UpdateIn):
    """Changes of one memory of a batch."""

    memory_id: str


class Mem0BatchIn(Mem0Body):
    """Memories to change or delete."""

    memories: Annotated[list[Mem0BatchItemIn], Field(min_length=1, max_length=MAX_BATCH)]


class Mem0PageParameters(Mem0Body):
    """Query parameters for the position of a list."""

    page: Annotated[int, Field(ge=1)] | None = None
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] | None = None


class Mem0QueryParameters(EntityFields):
    """Query parameters of the open server's list, and of deletions."""

    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    metadata: str | None = None
