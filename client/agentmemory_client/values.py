"""Responses of the API as dataclasses.

A field that a newer API adds is kept in `extra`; a field that an older API lacks has its default. Enumerations (zone,
event, role) are plain text, so values of a newer API pass through.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from agentmemory_client.problems import ApiError

Json = dict[str, Any]
T = TypeVar("T")

_TIMES = frozenset(
    {
        "created_at",
        "updated_at",
        "valid_from",
        "valid_to",
        "expires_at",
        "superseded_at",
        "last_accessed_at",
        "oldest",
        "newest",
    }
    | {"at", "next_before"}
    # Those of an agent's state.
    | {"since", "deleted_at", "started_at", "moved_at", "ended_at", "proven_at", "rolled_back_at", "previous_until"}
    | {"next_snapshot_at"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Base of all responses.

    Attributes:
        extra: Fields that this client version does not define, as the API sent them.
    """

    extra: Json = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Answer):
    """A stored memory.

    Attributes:
        content: None if the memory is locked.
        supersedes_ids: Ids of all memories that a merged memory replaced.
        connections: Related memories, each with `id`, `description` and `run`.
        consolidated: True if a consolidation has read or created the memory.
        version: Number of an item's version, from 1; None for other memories.
        zone: Privacy zone, which determines the encryption key; None if the memory is not encrypted.
        locked: True if its key is unavailable or was deleted.
        entities: Names that the memory mentions, each with name, kind and role.
        etag: Tag of this version, for `if_match`; only of a memory or item that was read or changed alone, else None.
            Not compared.
    """

    id: str
    user_id: str
    content: str | None
    type: str
    importance: float
    created_at: datetime
    updated_at: datetime | None = None
    priority: float | None = None
    confidence: float | None = None
    decay_rate: float | None = None
    session_id: str | None = None
    tags: tuple[str, ...] = ()
    source: str | None = None
    author: str | None = None
    speaker: str | None = None
    role: str | None = None
    metadata: Json = field(default_factory=dict)
    key: str | None = None
    subject: str | None = None
    status_value: str | None = None
    category: str | None = None
    knowledge_category: str | None = None
    event_type: str | None = None
    context: str | Json | None = None
    domain: str | None = None
    source_ids: tuple[str, ...] = ()
    parent_id: str | None = None
    observed_by: tuple[str, ...] = ()
    observation_count: int = 1
    namespace: tuple[str, ...] = ()
    entities: tuple[Json, ...] = ()
    version: int | None = None
    supersedes: str | None = None
    supersedes_ids: tuple[str, ...] = ()
    superseded_by: str | None = None
    superseded_at: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    last_accessed_at: datetime | None = None
    access_count: int = 0
    pinned: bool = False
    connections: tuple[Json, ...] = ()
    consolidated: bool = False
    zone: str | None = None
    locked: bool = False
    etag: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Memory):
    """A result of a search.

    Attributes:
        similarity, recency, utility: Set only with `terms`, and only the terms that the scoring model has.
        neighbours: Memories around this one in its session, in order; None without `include`.
        explain: Terms of the score; None unless `explain` was requested.
    """

    score: float
    similarity: float | None = None
    recency: float | None = None
    utility: float | None = None
    neighbours: tuple[Memory, ...] | None = None
    explain: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(Answer):
    """Results, best first.

    Attributes:
        generation: Generation of the AgentMemory object that provided the ranking settings.
        warnings: Reasons why the search is expensive, with the remedy, was not reranked, or has few results.
        candidates: `scored`, `below_threshold` and `eligible` numbers of memories, and whether the result is `exact`;
            only with `explain`.
        time_spans: Times that the query names, each with `since`, `until` and `words`, also where they do not count;
            only with `explain`.
        threshold, min_similarity: Applied minimum of score and similarity; None if not applied, or with an older API.
        left_out: Id, session and score of the memories that `diversity` left out; only with `explain`.
    """

    results: tuple[Found, ...]
    generation: int
    total_candidates: int
    removed_by_threshold: int
    took_ms: float
    warnings: tuple[str, ...] = ()
    candidates: Json | None = None
    time_spans: tuple[Json, ...] | None = None
    threshold: float | None = None
    min_similarity: float | None = None
    left_out: tuple[Json, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Answer):
    """Result of storing a memory durably.

    Attributes:
        event: ADD or SUPERSEDE. For a duplicate CORROBORATE if it has another author, otherwise NONE.
        recorded: False if the memory is a duplicate and nothing was stored. A request that is repeated with its
            idempotency key gets the value of the first.
    """

    id: str
    event: str
    supersedes: str | None = None
    recorded: bool = True
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationStored(Answer):
    """Result of storing a conversation durably.

    Attributes:
        turns: Ids of the messages in order; None for one that was not stored, which a warning explains.
        run: Id of the distillation that follows; None if there is none.
    """

    turns: tuple[str | None, ...]
    run: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode(Memory):
    """A memory with its descendants; children are sorted oldest first."""

    children: "tuple[TreeNode, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(Answer):
    """A memory with its descendants.

    Attributes:
        truncated: True if the limits left out further descendants.
    """

    root: TreeNode
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(Answer):
    """Counts of memories.

    Attributes:
        user_id: None for the whole agent.
        states: Counts by `active`, `superseded`, `hidden`, `expired` and `pending`.
        types: The same counts for each type.
        decayed_below_50pct: Active memories with an effective confidence below 0.5; None if the model has no
            confidence.
        periods: Active memories by day of creation, each with start, days and memories; None unless requested.
    """

    total: int
    states: Mapping[str, int]
    types: Mapping[str, Mapping[str, int]]
    user_id: str | None = None
    decayed_below_50pct: int | None = None
    oldest: datetime | None = None
    newest: datetime | None = None
    periods: tuple[Json, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Answer):
    """Result of storing a working memory durably.

    Attributes:
        event: ADD, or NONE if the session already had the same memory.
        evicted: Memory that was removed to make room; None if there was space.
    """

    id: str
    event: str
    evicted: Memory | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Answer):
    """A page of memories, newest first; `next_cursor` is None on the last page."""

    results: tuple[Memory, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStored(Answer):
    """Result of storing an item durably.

    Attributes:
        message: Text that states if the item is new or replaced another one.
        etag: Tag of the item right after this write, for `if_match`. None if a repeated write was deleted since, and
            with an older API.
    """

    memory_id: str
    key: str
    message: str
    success: bool = True
    etag: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPage(Answer):
    """A page of the keys of a namespace; `next_cursor` is None on the last page."""

    results: tuple[str, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSize(Answer):
    """A namespace and its number of items."""

    namespace: tuple[str, ...]
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Answer):
    """Result of an erasure.

    Attributes:
        counts: `total`, and `types` by name.
        sha256: Hash over the sorted ids of the erased memories, each followed by a line feed.
        scope: In a list: `user`, `zone`, `older_than` or `filters`.
        keys_deleted: Zones that had keys, all of which were destroyed.
    """

    id: str
    counts: Mapping[str, Any]
    sha256: str
    at: datetime
    scope: str | None = None
    keys_deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Answer):
    """Memories that would be erased: counts, up to 100 ids, and the number of further ids."""

    counts: Mapping[str, Any]
    ids: tuple[str, ...]
    more: int
    dry_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsPage(Answer):
    """A page of receipts, newest first; `next_before` is None on the last page."""

    results: tuple[Receipt, ...]
    next_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineError(Answer):
    """Error of one line of an import; lines count from 1."""

    line: int
    error: ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(Answer):
    """Result of an import.

    Attributes:
        lines: Number of lines that were read.
        present: Number of lines with memories that were stored already.
        errors: Errors of the first 100 failed lines.
        more_errors: Number of further failed lines.
    """

    lines: int
    imported: int
    present: int
    failed: int
    errors: tuple[LineError, ...] = ()
    more_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSummary(Answer):
    """An agent; `memories` is None until it is ready.

    Attributes:
        state: State of its object in words, as the operator reports it; None if it is unknown.
    """

    agent: str
    namespace: str
    preset: str
    ready: bool
    state: str | None = None
    generation: int
    memories: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToken(Answer):
    """A token that lets its bearer act for one user until it expires."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSummary(Answer):
    """A user or scope with memories that a search can find."""

    user_id: str
    memories: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDetails(Answer):
    """A user or scope.

    Attributes:
        name: None if it has no name.
        created_at: Time at which it was first named; None if it has no name.
        oldest, newest: Creation times of memories that a search can find; None without memories.
    """

    user_id: str
    name: str | None = None
    created_at: datetime | None = None
    memories: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersPage(Answer):
    """A page of users, sorted by user id; `next_cursor` is None on the last page.

    Attributes:
        truncated: True if there are more users than the API lists; those with the fewest memories are omitted.
    """

    results: tuple[UserSummary, ...]
    next_cursor: str | None = None
    truncated: bool = False


def read_value(type_: type[T], document: Json) -> T:
    """Build a flat response: lists become tuples, time fields datetimes, unknown fields `extra`."""
    known = {field.name for field in fields(type_)} - {"extra"}  # type: ignore[arg-type] # a dataclass
    extra = {name: value for name, value in document.items() if name not in known}
    values = {name: _value(name, value) for name, value in document.items() if name in known}
    return type_(**values, extra=extra)  # type: ignore[call-arg] # each is an Answer


def read_search(document: Json) -> SearchResult:
    """Build the result of a search from its JSON; neighbours of a result become `Memory` objects."""
    return read_value(SearchResult, document | {"results": [_read_found(found) for found in document["results"]]})


def _read_found(document: Json) -> Found:
    if (around := document.get("neighbours")) is None:
        return read_value(Found, document)
    return read_value(Found, document | {"neighbours": tuple(read_value(Memory, memory) for memory in around)})


def read_page(document: Json) -> Page:
    """Build a page of memories from its JSON."""
    return read_value(Page, document | {"results": [read_value(Memory, memory) for memory in document["results"]]})


def read_tree(document: Json) -> Tree:
    """Build a tree of memories from its JSON, at any depth."""
    return read_value(Tree, document | {"root": _read_node(document["root"])})


def _read_node(document: Json) -> TreeNode:
    return read_value(TreeNode, document | {"children": [_read_node(child) for child in document["children"]]})


def read_receipts(document: Json) -> ReceiptsPage:
    """Build a page of receipts from its JSON."""
    return read_value(ReceiptsPage, document | {"results": [read_value(Receipt, row) for row in document["results"]]})


def read_users(document: Json) -> UsersPage:
    """Build a page of users from its JSON."""
    return read_value(UsersPage, document | {"results": [read_value(UserSummary, row) for row in document["results"]]})


def parse_stored_working_memory(document: Json) -> Kept:
    """Build the result of storing a working memory from its JSON, with the evicted memory, if any."""
    evicted = document.get("evicted")
    return read_value(Kept, document | {"evicted": evicted and read_value(Memory, evicted)})


def _value(name: str, value: Any) -> Any:
    if name in _TIMES:
        return None if value is None else datetime.fromisoformat(value)
    return tuple(value) if isinstance(value, list) else value
