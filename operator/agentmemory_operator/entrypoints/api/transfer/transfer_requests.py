"""Lines of an export: request models, parsing and rendering."""

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.consolidation.rules.batch_plan import MAX_CONNECTIONS
from agentmemory_operator.consolidation.rules.model_findings import MAX_BATCH_MEMORIES as MAX_MERGED
from agentmemory_operator.consolidation.rules.model_findings import MAX_NOTE_CHARS
from agentmemory_operator.entities.rules.sheet import EntitySheet
from agentmemory_operator.entrypoints.api import response_views
from agentmemory_operator.entrypoints.api.bodies import parse_json, validate_body
from agentmemory_operator.entrypoints.api.fields import (
    Author,
    Body,
    Content,
    Id,
    Importance,
    ItemText,
    MemoryId,
    Metadata,
    Tags,
    Time,
    UserId,
    Version,
    Whole,
)
from agentmemory_operator.entrypoints.api.load.json_limits import LimitExceeded, MalformedJson, count_parts
from agentmemory_operator.entrypoints.api.memory_requests import MemoryIn, Parameters, UserParameters
from agentmemory_operator.entrypoints.api.memory_schemas import Answer, ProblemOut
from agentmemory_operator.entrypoints.api.problems import ProblemRaised
from agentmemory_operator.entrypoints.api.transfer.sheet_lines import PROFILE_FIELD, SHEET_FIELD, ProfileLine, SheetLine
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.entities import MAX_ENTITIES, MAX_ENTITY_NAME_CHARS, EntityKind, EntityRole
from agentmemory_operator.memories.rules.item_versions import ItemVersion
from agentmemory_operator.memories.rules.profile import UserProfile
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.memories.transfer.exports import ExportedMemory
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.runtime.tasks import run_without_pause
from agentmemory_operator.spec.caller_rights import Verb
from agentmemory_operator.spec.memory_types import MAX_ITEM_VERSIONS
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]
MEDIA_TYPE = "application/x-ndjson"
MAX_ERRORS = 100
# Maximum length of an encrypted text, equal to that of a line.
MAX_SEALED_CHARS = 1 << 20
_NEW = frozenset(MemoryIn.model_fields) - {"user_id"}


class ExportParameters(UserParameters):
    """Query parameters of an export."""

    vectors: bool = Field(default=False, description="True to include vectors, so an import need not embed again.")
    plain: bool = Field(
        default=False, description="True to export encrypted memories in plain text; needs the verb admin."
    )


class ImportParameters(Parameters):
    """Query parameters of an import."""

    user_id: UserId = Field(description="Owner of the memories; lines with another `user_id` are rejected.")
    include_erased: bool = Field(default=False, description="True to import also memories erased with `forget`.")


class VersionIn(Body):
    """An earlier version of an item."""

    content: ItemText
    metadata: Metadata = Field(default={})
    importance: Importance = 0.5
    tags: Tags = Field(default=[])
    category: Id | None = None
    valid_from: Time
    valid_to: Time
    updated_at: Time | None = None
    version: Version | None = Field(default=None, description="Number of this version, from 1.")

    def item_version(self) -> ItemVersion:
        """Convert to the `ItemVersion` of the use case."""
        return ItemVersion(**dict(self) | {"tags": tuple(self.tags)})


class NamedIn(Body):
    """A name that a memory mentions."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_ENTITY_NAME_CHARS)]
    kind: EntityKind
    role: EntityRole


class ConnectionIn(Body):
    """A link to a related memory."""

    id: MemoryId
    description: str = Field(min_length=1, max_length=MAX_NOTE_CHARS)
    run: str | None = Field(
        default=None, max_length=12, description="Consolidation run that found it; ignored on import."
    )


class LineIn(MemoryIn):
    """A line of an export: the fields of a new memory, and those that it gained after it was stored."""

    user_id: UserId | None = Field(default=None, description="If given, must be that of the request.")  # type: ignore[assignment]
    content: Content | None = Field(default=None, description="Content of the memory; required without `sealed`.")  # type: ignore[assignment]
    sealed: str | None = Field(
        default=None,
        max_length=MAX_SEALED_CHARS,
        description="Encrypted text of a memory with a zone; the import decrypts it with the agent's keys.",
    )
    locked: StrictBool = Field(default=False, description="True if the content is not included; ignored on import.")
    source: Id | None = Field(default=None, description="Origin; any name, because older memories have other names.")
    id: MemoryId | None = Field(default=None, description="ID of the memory. Default: derived from the line.")
    supersedes_ids: list[MemoryId] = Field(
        default=[], max_length=MAX_MERGED, description="For a merged memory: IDs of all memories that it supersedes."
    )
    superseded_by: MemoryId | None = Field(default=None, description="ID of the next version.")
    superseded_at: Time | None = Field(default=None, description="Time when the next version superseded the memory.")
    stated_valid_to: Time | None = Field(default=None, description="`valid_to` before a later version ended it.")
    last_accessed_at: Time | None = Field(default=None, description="Time when a search last returned the memory.")
    access_count: Whole = Field(default=0, ge=0, le=2**53, description="Number of searches that returned it.")
    observed_by: list[Author] = Field(default=[], max_length=20, description="Authors who stored this content.")
    observation_count: Whole = Field(default=1, ge=1, le=2**53, description="Number of authors; ignored on import.")
    updated_at: Time | None = Field(
        default=None, description="Time of the last change. Default: `created_at` of the line."
    )
    connections: list[ConnectionIn] = Field(default=[], max_length=MAX_CONNECTIONS, description="Related memories.")
    consolidated: StrictBool = Field(default=False, description="True if a consolidation processed or created it.")
    versions: list[VersionIn] = Field(
        default=[], max_length=MAX_ITEM_VERSIONS, description="For an item: replaced versions, newest first."
    )
    version: Version | None = Field(
        default=None, description="For an item: number of its version; otherwise ignored on import."
    )
    item: StrictBool = Field(default=False, description="True for an item, addressed by `key` and `namespace`.")
    entities: list[NamedIn] = Field(
        default=[],
        max_length=MAX_ENTITIES,
        description="Names that the memory mentions; ignored on import, which extracts them again.",
    )
    embedding: str | None = Field(default=None, max_length=1024, description="Embedding that created `vector`.")

    @model_validator(mode="after")
    def _require_content(self) -> "LineIn":
        if self.content is None and self.sealed is None:
            raise PydanticCustomError("content", "required unless the line has a sealed text", {"field": "content"})
        if self.sealed is not None and (self.zone is None or self.id is None):
            raise PydanticCustomError("sealed", "a sealed text needs its zone and id", {"field": "sealed"})
        return self

    @model_validator(mode="after")
    def _require_item_key(self) -> "LineIn":
        has_key = self.sealed is not None or self.key is not None
        if self.item and (not has_key or len(self.namespace) < 2):
            message = "an item needs a key and a namespace of at least two parts"
            raise PydanticCustomError("item", "{message}", {"message": message, "field": "item"})
        return self

    def line(self, user_id: str, *, default_type: str | None, rights: AgentRights) -> ImportLine:
        """Convert to the `ImportLine` of the use case.

        Args:
            default_type: Type of a line without one. None lets the use case choose.

        Raises:
            Forbidden: If the line names an author that the caller may not name.
            RequestInvalid: If the line belongs to another user.
        """
        rights.check_author(self.author)
        for author in self.observed_by:
            rights.check_author(author, field="observed_by")
        if self.user_id not in (None, user_id):
            raise RequestInvalid([FieldError("user_id", f"{self.user_id!r} is not the user of the request")])
        values = {name: getattr(self, name) for name in _NEW} | {"user_id": user_id, "content": self.content or ""}
        # A line without an author gets the caller as author, or stays without one if the caller may impersonate.
        stored_by = None if Verb.IMPERSONATE in rights.verbs else rights.author
        memory = MemoryIn.model_construct(**values).new_memory(default_type=default_type, stored_by=stored_by)
        return ImportLine(
            memory=memory,
            id=self.id,
            supersedes_ids=tuple(self.supersedes_ids),
            superseded_by=self.superseded_by,
            superseded_at=self.superseded_at,
            stated_end=self.stated_valid_to,
            last_accessed_at=self.last_accessed_at,
            access_count=self.access_count,
            observed_by=tuple(self.observed_by),
            is_item=self.item,
            changed_at=self.updated_at if self.updated_at is not None else self.created_at,
            connections=tuple(
                {"id": connection.id, "description": connection.description} for connection in self.connections
            ),
            is_consolidated=self.consolidated,
            versions=tuple(version.item_version() for version in self.versions),
            item_version=self.version,
            vector_of=self.embedding,
            encrypted_text=self.sealed,
        )


class LineErrorOut(Answer):
    """A line that was not imported, with its error."""

    line: int = Field(description="Line number, from 1.")
    error: ProblemOut


class ImportCountsOut(Answer):
    """Number of memories and failed lines by result."""

    lines: int = Field(description="Sum of the other three. Lines that are no memories count only if they failed.")
    imported: int
    present: int = Field(description="Lines of existing memories, which the import left unchanged.")
    failed: int


class ImportedOut(Answer):
    """Result of an import."""

    counts: ImportCountsOut
    errors: list[LineErrorOut] = Field(description="Errors of the first 100 failed lines.")
    more_errors: int


def read_line(
    text: bytes, *, user_id: str, default_type: str | None, rights: AgentRights
) -> ImportLine | EntitySheet | UserProfile | None:
    """Parse a line: a memory, the entity sheet, or the user's name. Return None for the counts at the end.

    Args:
        user_id: User of the request.
        default_type: Type of a memory without one. None lets the use case choose.

    Raises:
        Forbidden: If the line names an author that the caller may not name.
        RequestInvalid: If the line is invalid, belongs to another user, or marks the end of an interrupted export.
    """
    try:
        run_without_pause(count_parts(text))
        document = parse_json(text)
    except (LimitExceeded, MalformedJson) as error:
        raise RequestInvalid([FieldError("line", str(error))]) from None
    except ProblemRaised as error:
        raise RequestInvalid([FieldError("line", error.problem.detail.replace("the body", "it"))]) from None
    value = document.value
    if isinstance(value, dict) and value.keys() == {"counts"}:
        return None
    if isinstance(value, dict) and value.keys() == {SHEET_FIELD}:
        return validate_body(SheetLine, document).entities.sheet()
    if isinstance(value, dict) and value.keys() == {PROFILE_FIELD}:
        return validate_body(ProfileLine, document).profile()
    if isinstance(value, dict) and value.keys() == {"error"}:
        raise RequestInvalid([FieldError("line", "the export was interrupted here: export again")])
    return validate_body(LineIn, document).line(user_id, default_type=default_type, rights=rights)


def render_line(exported: ExportedMemory, *, embedding: str) -> bytes:
    """Render a memory as a line without null and empty fields.

    Args:
        embedding: Name of the embedding that created the vector, written only with a vector.
    """
    rendered = response_views.render_memory(exported.record)
    line = {name: value for name, value in rendered.items() if value not in (None, (), [], {})}
    if exported.sealed is not None:
        line["sealed"] = exported.sealed
    if exported.is_item:
        line["item"] = True
    if exported.versions:
        line["versions"] = [_version(record) for record in exported.versions]
    if exported.stated_end is not None:
        line["stated_valid_to"] = render_time(exported.stated_end)
    if exported.vector is not None:
        line |= {"vector": exported.vector, "embedding": embedding}
    return orjson.dumps(line) + b"\n"


def _version(record: MemoryRecord) -> Json:
    rendered = response_views.render_memory(record)
    return {name: rendered[name] for name in VersionIn.model_fields if rendered[name] not in (None, (), [], {})}


def render_end(counts: Mapping[str, int]) -> bytes:
    """Render the last line of an export: the number of memories by type."""
    return orjson.dumps({"counts": {"total": sum(counts.values()), "types": dict(sorted(counts.items()))}}) + b"\n"


def render_error(problem: Json) -> bytes:
    """Render the last line of an interrupted export."""
    return orjson.dumps({"error": problem}) + b"\n"
