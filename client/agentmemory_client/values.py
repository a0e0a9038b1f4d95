"""What the API answers, as values.

A field that a newer API adds is kept in `extra`; one that an older API does not have is its default. What is one of a
few words (a zone, an event, a role) is text, so that a newer API's words come through.
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
    | {"at", "next_before"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What every answer has.

    Attributes:
        extra: fields that this client does not know, as the API sent them.
    """

    extra: Json = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Answer):
    """A stored memory.

    Attributes:
        content: None where it is locked.
        supersedes_ids: of a merged memory, all that it took the place of.
        connections: memories that it belongs together with, each with `id`, `description` and `run`.
        consolidated: a consolidation has read it, or made it.
        version: Number of an item's version, from 1; None of other memories.
        zone: how it is sealed; None is not at all.
        locked: its key is away, or was deleted.
        entities: the names that it speaks of, each with name, kind and role.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Memory):
    """A result of a search.

    Attributes:
        similarity, recency, utility: only with `terms`; None of those that the scoring model does not have.
        neighbours: what stands around it in its session, in order, only with `include`.
        explain: the terms of the score, only when asked for.
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
        generation: of the object whose settings ranked.
        warnings: what makes the search dear, with the way out.
        candidates: how far the engine looked, and how many a threshold removed; only with `explain`.
        threshold, min_similarity: what was in force on the score and on the similarity; None: nothing, or an older API.
    """

    results: tuple[Found, ...]
    generation: int
    total_candidates: int
    removed_by_threshold: int
    took_ms: float
    warnings: tuple[str, ...] = ()
    candidates: Json | None = None
    threshold: float | None = None
    min_similarity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Answer):
    """A memory that is durable.

    Attributes:
        event: ADD, SUPERSEDE, or for what was there already CORROBORATE (another author says so) and NONE.
    """

    id: str
    event: str
    supersedes: str | None = None
    recorded: bool = True
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationStored(Answer):
    """A conversation that is durable.

    Attributes:
        turns: ids in order; None of one that was not stored, of which a warning tells.
        run: of the distillation that follows; None where none does.
    """

    turns: tuple[str | None, ...]
    run: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode(Memory):
    """A memory and what is below it, oldest first."""

    children: "tuple[TreeNode, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(Answer):
    """A memory with all that is below it; truncated: there is more, deeper or beside."""

    root: TreeNode
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(Answer):
    """Counts of memories.

    Attributes:
        user_id: None is the whole agent.
        states: by `active`, `superseded`, `hidden`, `expired`, `pending`.
        types: the same by type.
        decayed_below_50pct: active ones whose effective confidence is below .5; None: the model has none.
    """

    total: int
    states: Mapping[str, int]
    types: Mapping[str, Mapping[str, int]]
    user_id: str | None = None
    decayed_below_50pct: int | None = None
    oldest: datetime | None = None
    newest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Answer):
    """A working memory that is durable.

    Attributes:
        event: ADD, or NONE for what the session had in mind already.
        evicted: what had to go for it.
    """

    id: str
    event: str
    evicted: Memory | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Answer):
    """Memories, newest first; `next_cursor` is None on the last page."""

    results: tuple[Memory, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStored(Answer):
    """An item that is durable.

    Attributes:
        message: whether it is new, or replaced what lay under its key.
    """

    memory_id: str
    key: str
    message: str
    success: bool = True
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPage(Answer):
    """Keys of a namespace; `next_cursor` is None on the last page."""

    results: tuple[str, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSize(Answer):
    """A namespace and how many items lie in it."""

    namespace: tuple[str, ...]
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Answer):
    """What an erasure came to.

    Attributes:
        counts: `total`, and `types` by name.
        sha256: of the ids of the erased memories, sorted, each followed by a line feed.
        scope: in a list: `user`, `zone`, `older_than` or `filters`.
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
    """What would be erased: counts, the ids of at most 100, and how many are not named."""

    counts: Mapping[str, Any]
    ids: tuple[str, ...]
    more: int
    dry_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsPage(Answer):
    """Receipts, newest first; `next_before` is None on the last page."""

    results: tuple[Receipt, ...]
    next_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineError(Answer):
    """Why a line was not taken in; `error` is an ApiError."""

    line: int
    error: ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(Answer):
    """What an import came to.

    Attributes:
        present: lines whose memories were there already.
        errors: of the first 100 lines that failed.
        more_errors: how many failed besides.
    """

    lines: int
    imported: int
    present: int
    failed: int
    errors: tuple[LineError, ...] = ()
    more_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSummary(Answer):
    """An agent; `memories` is None while it is not ready."""

    agent: str
    namespace: str
    preset: str
    ready: bool
    generation: int
    memories: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToken(Answer):
    """A user token; whoever has it acts for its user until it expires."""

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
        name: None if nobody has named it.
        created_at: When it was first named; None if nobody has.
        oldest, newest: Creation of a memory that a search can find; None without memories.
    """

    user_id: str
    name: str | None = None
    created_at: datetime | None = None
    memories: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersPage(Answer):
    """Users, by name; `next_cursor` is None on the last page."""

    results: tuple[UserSummary, ...]
    next_cursor: str | None = None
    truncated: bool = False


def read_value(type_: type[T], document: Json) -> T:
    """A value of flat fields: lists become tuples, times datetimes."""
    known = {field.name for field in fields(type_)} - {"extra"}  # type: ignore[arg-type] # a dataclass
    extra = {name: value for name, value in document.items() if name not in known}
    values = {name: _value(name, value) for name, value in document.items() if name in known}
    return type_(**values, extra=extra)  # type: ignore[call-arg] # each is an Answer


def read_search(document: Json) -> SearchResult:
    """The answer of a search."""
    return read_value(SearchResult, document | {"results": [_read_found(found) for found in document["results"]]})


def _read_found(document: Json) -> Found:
    if (around := document.get("neighbours")) is None:
        return read_value(Found, document)
    return read_value(Found, document | {"neighbours": tuple(read_value(Memory, memory) for memory in around)})


def read_page(document: Json) -> Page:
    """A page of memories."""
    return read_value(Page, document | {"results": [read_value(Memory, memory) for memory in document["results"]]})


def read_tree(document: Json) -> Tree:
    """A memory with all that is below it."""
    return read_value(Tree, document | {"root": _read_node(document["root"])})


def _read_node(document: Json) -> TreeNode:
    return read_value(TreeNode, document | {"children": [_read_node(child) for child in document["children"]]})


def read_receipts(document: Json) -> ReceiptsPage:
    """A page of receipts."""
    return read_value(ReceiptsPage, document | {"results": [read_value(Receipt, one) for one in document["results"]]})


def read_users(document: Json) -> UsersPage:
    """A page of users."""
    return read_value(UsersPage, document | {"results": [read_value(UserSummary, one) for one in document["results"]]})


def read_kept(document: Json) -> Kept:
    """A working memory that was kept."""
    evicted = document.get("evicted")
    return read_value(Kept, document | {"evicted": evicted and read_value(Memory, evicted)})


def _value(name: str, value: Any) -> Any:
    if name in _TIMES:
        return None if value is None else datetime.fromisoformat(value)
    return tuple(value) if isinstance(value, list) else value
