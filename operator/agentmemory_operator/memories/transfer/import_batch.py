"""Lines of an export to be imported, and the reasons why a line is not written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentmemory_operator.errors import AgentMemoryError, Conflict
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.item_versions import ItemVersion
from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import (
    ERASURE_KEY,
    ITEM_NAMESPACE_KEY,
    TOMBSTONE_KEY,
    MemoryRecord,
    Payload,
)

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLine:
    """A memory as parsed from a line of an export.

    Attributes:
        memory: Fields as a caller sends them; `supersedes` and `parent_id` are ids of the export.
        id: Id in the export. None derives it from the statement, so a repeated line gets the same id. An item is stored
            under the id of its key instead.
        supersedes_ids: All predecessors of a merged memory.
        superseded_by, superseded_at: Id of the next version, and the time at which it superseded this one in Unix
            milliseconds; None for a head.
        stated_end: Original end of validity, Unix milliseconds, if a later version shortened it; else None.
        last_accessed_at: Unix milliseconds; None if it was never accessed.
        vector_of: `embedding_name` of the vector's source; None if the line has none. An agent with an embedder
            replaces a vector of another or an unknown source by a new one.
        encrypted_text: Encrypted text of a memory without plain content; None if the content is plain.
        is_item: True if it is an item, under a key of its namespace.
        changed_at: Time of the last edit by a caller, Unix milliseconds; None if never edited.
        connections: Related memories, as `id` and `description`.
        is_consolidated: True if a consolidation has read or created it.
        versions: Earlier versions of an item, newest first.
        item_version: Version number of an item; None in an export of an earlier API.
    """

    memory: IncomingMemory
    id: str | None = None
    supersedes_ids: tuple[str, ...] = ()
    superseded_by: str | None = None
    superseded_at: int | None = None
    stated_end: int | None = None
    last_accessed_at: int | None = None
    access_count: int = 0
    observed_by: tuple[str, ...] = ()
    is_item: bool = False
    changed_at: int | None = None
    versions: tuple[ItemVersion, ...] = ()
    item_version: int | None = None
    connections: tuple[Mapping[str, str], ...] = ()
    is_consolidated: bool = False
    vector_of: str | None = None
    encrypted_text: str | None = None

    @property
    def predecessors(self) -> tuple[str, ...]:
        """Ids of the direct predecessors, as in the export."""
        single_id = self.memory.supersedes
        return self.supersedes_ids or ((single_id,) if single_id else ())


Outcome = Literal["imported", "present"] | AgentMemoryError


@dataclass(slots=True)
class ImportBatch:
    """Lines in progress. The *index* of a line is its position in `lines`.

    Attributes:
        outcomes: Outcome of each line that has one, by index.
        drafts: Drafts that may still be written, by index.
        stored_rows: Stored payloads by id: of the drafts, and of the memories that the lines link to.
        immutable_ids: Ids of stored immutable memories, except imported versions that still wait for their successor.
        heads: Stored or imported head of each identity of the drafts.
        predecessor_ids: Predecessors of each draft that are stored or in the batch.
    """

    lines: Sequence[ImportLine]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    drafts: dict[int, MemoryDraft] = field(default_factory=dict)
    immutable_ids: frozenset[str] = frozenset()
    immutable_types: frozenset[str] = frozenset()
    stored_rows: dict[str, Payload] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    predecessor_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def indexes(self) -> dict[str, int]:
        """Index of each draft by id."""
        return {draft.record.id: index for index, draft in self.drafts.items()}

    def decrypt_lines(self, opened: Sequence[ImportLine | AgentMemoryError]) -> None:
        """Replace the lines by decrypted lines. An error becomes the outcome of its line."""
        self.outcomes |= {index: line for index, line in enumerate(opened) if isinstance(line, AgentMemoryError)}
        self.lines = [line if isinstance(line, ImportLine) else self.lines[index] for index, line in enumerate(opened)]

    def refuse(self, index: int, outcome: Outcome) -> None:
        """Set the outcome of a line, which is then not written."""
        self.outcomes[index] = outcome
        self.drafts.pop(index, None)


def find_refusal(batch: ImportBatch, index: int, *, can_restore_erased: bool) -> Outcome | None:
    """Return the outcome of a draft that must not be written: "present" or an error.

    None if it may be written; its predecessors and its identity are then recorded in the batch.
    """
    draft, line = batch.drafts[index], batch.lines[index]
    row, user_id = batch.stored_rows.get(draft.record.id), draft.record.user_id
    if row is not None:
        if TOMBSTONE_KEY not in row and row.get("userId") == user_id:
            return "present"
        if refusal := _taken_id(row, user_id, can_restore_erased=can_restore_erased):
            return refusal
    duplicate = next((n for n, other in batch.drafts.items() if n < index and other.record.id == draft.record.id), None)
    return "present" if duplicate is not None else _chain_refusal(batch, index, line)


def _taken_id(row: _Row, user_id: str, *, can_restore_erased: bool) -> AgentMemoryError | None:
    memory_id = row["id"]
    if ERASURE_KEY in row:
        remedy = "remove it, or import with include_erased=true"
        return None if can_restore_erased else Conflict(f"id: {memory_id} was erased by forget: {remedy}")
    if row.get("userId") != user_id:
        return Conflict(f"id: {memory_id} is already used: omit id to store it under a new one")
    if row.get("supersededById"):
        return Conflict(f"id: {memory_id} was deleted, and other versions follow it")
    return None


def _chain_refusal(batch: ImportBatch, index: int, line: ImportLine) -> AgentMemoryError | None:
    """Return the error if a version does not fit into its chain; else None.

    Records in the batch its predecessors, and the version as the head of its identity if no successor is known.
    """
    record = batch.drafts[index].record
    successor_id = line.superseded_by
    successor = batch.stored_rows.get(successor_id or "")
    if successor and TOMBSTONE_KEY not in successor and record.id not in predecessors(successor):
        return Conflict(f"superseded_by: {successor_id} exists and does not follow it; send the oldest version first")
    for predecessor_id in line.predecessors:
        if refusal := _refusal_to_follow(batch, index, predecessor_id):
            return refusal
    return _identity_refusal(batch, record, is_head=not has_successor(batch, line, record.id))


def _refusal_to_follow(batch: ImportBatch, index: int, predecessor_id: str) -> AgentMemoryError | None:
    record = batch.drafts[index].record
    follows = batch.predecessor_ids.get(record.id, ())
    immutable = Conflict(f"supersedes: {predecessor_id} is immutable in this agent (types[].immutable)")
    if (draft := batch.drafts.get(batch.indexes.get(predecessor_id, -1))) and draft.position < index:
        is_stated = batch.lines[draft.position].superseded_by == record.id
        if draft.record.type in batch.immutable_types and not is_stated:
            return immutable
        batch.predecessor_ids[record.id] = (*follows, predecessor_id)
    elif (row := batch.stored_rows.get(predecessor_id)) and _may_be_followed(row, record):
        if row.get("supersededById") not in (None, record.id):
            return successor_conflict(predecessor_id)
        if row["id"] in batch.immutable_ids and row.get("supersededById") is None:
            return immutable
        batch.predecessor_ids[record.id] = (*follows, row["id"])
    return None


def _identity_refusal(batch: ImportBatch, record: MemoryRecord, *, is_head: bool) -> AgentMemoryError | None:
    identity = record.identity_id
    if identity is None or not is_head:
        return None
    head = batch.heads.get(identity)
    if head not in (None, record.id, *batch.predecessor_ids.get(record.id, ())):
        return Conflict(f"{record.id}: {head} exists under the same key or subject and is newer")
    batch.heads[identity] = record.id
    return None


def has_successor(batch: ImportBatch, line: ImportLine, memory_id: str) -> bool:
    """Return whether the next version of a memory is in the batch or stored."""
    successor_id = line.superseded_by
    if successor_id is None:
        return False
    index = batch.indexes.get(successor_id)
    if index is not None and memory_id in batch.lines[index].predecessors:
        return True
    row = batch.stored_rows.get(successor_id)
    return bool(row and TOMBSTONE_KEY not in row and memory_id in predecessors(row))


def _may_be_followed(row: _Row, record: MemoryRecord) -> bool:
    is_other = TOMBSTONE_KEY in row or row.get("userId") != record.user_id
    return not (is_other or row.get("working") or ITEM_NAMESPACE_KEY in row)


def successor_conflict(memory_id: str | None) -> Conflict:
    """Return the error of a version whose predecessor has another successor."""
    return Conflict(f"supersedes: {memory_id} already has another successor")
