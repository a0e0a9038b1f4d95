"""Calls about memories, conversations, sessions and erasure; each becomes a method of a client, an agent or a user."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from agentmemory_client.exchange import Call, Listing, build_path, if_match_header, new_idempotency_key, to_json
from agentmemory_client.problems import ApiError, read_error
from agentmemory_client.values import (
    AgentSummary,
    ConversationStored,
    Kept,
    Memory,
    Page,
    Preview,
    Receipt,
    SearchResult,
    Stats,
    Stored,
    Tree,
    parse_stored_working_memory,
    read_page,
    read_receipts,
    read_search,
    read_tree,
    read_value,
)

T = TypeVar("T")

# An erasure of 100,000 memories takes a minute.
ERASURE_TIMEOUT_S = 900.0


class MemoryOptions(TypedDict, total=False):
    """Optional fields of a memory. docs/http-api.md explains each."""

    type: str
    importance: float | str
    confidence: float
    decay_rate: float
    session_id: str
    tags: Sequence[str]
    source: str
    author: str
    speaker: str
    role: str
    metadata: Mapping[str, Any]
    key: str
    subject: str
    status_value: str
    category: str
    knowledge_category: str
    event_type: str
    context: str | Mapping[str, Any]
    domain: str
    source_ids: Sequence[str]
    parent_id: str
    namespace: Sequence[str]
    supersedes: str
    created_at: datetime | str
    expires_at: datetime | str
    valid_from: datetime | str
    valid_to: datetime | str
    pinned: bool
    zone: str
    vector: Sequence[float]


class NewMemory(MemoryOptions):
    """One memory of a batch."""

    user_id: str
    content: str


class MessageOptions(TypedDict, total=False):
    """Optional fields of a message."""

    speaker: str
    at: datetime | str
    vector: Sequence[float]


class Message(MessageOptions):
    """One message of a conversation.

    Attributes:
        role: user, assistant, tool or system.
    """

    role: str
    content: str


class ConversationOptions(TypedDict, total=False):
    """Optional fields of a conversation."""

    session_id: str
    author: str
    zone: str


class ChangeOptions(TypedDict, total=False):
    """Fields that can be changed in place. A missing field is unchanged; `expires_at=None` removes the expiry."""

    importance: float | str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    expires_at: datetime | str | None
    pinned: bool
    zone: str | None


class TreeOptions(TypedDict, total=False):
    """Limits of a tree.

    Attributes:
        depth: Maximum number of levels below the memory.
        limit: Maximum number of memories in total.
    """

    depth: int
    limit: int


class KeepOptions(TypedDict, total=False):
    """Optional fields of a working memory."""

    importance: float | str
    vector: Sequence[float]


class SearchOptions(TypedDict, total=False):
    """Options of a search. docs/filters.md explains each."""

    vector: Sequence[float]
    include_scopes: Sequence[str]
    top_k: int
    threshold: float
    min_similarity: float
    min_priority: float
    types: Sequence[str]
    tags: Sequence[str]
    tags_match: Literal["any", "all"]
    session_id: str
    namespace: Sequence[str]
    filters: Mapping[str, Any]
    at_time: datetime | str
    include_superseded: bool
    hybrid: bool
    reference_time: datetime | str
    time_zone: str
    weights: Mapping[str, float]
    diversity: Mapping[str, int]
    include: Mapping[str, int]
    terms: bool
    explain: bool
    format: Literal["full", "compact"]


class ListOptions(TypedDict, total=False):
    """Filters of a list. Any of the types and tags matches; with `tags_match="all"` a memory must have all tags."""

    include_scopes: Sequence[str]
    type: str | Sequence[str]
    tag: str | Sequence[str]
    tags_match: Literal["any", "all"]
    session_id: str
    namespace: Sequence[str]
    at_time: datetime | str
    created_before: datetime | str
    include_superseded: bool
    state: Literal["active", "superseded", "pinned"]
    limit: int
    cursor: str
    format: Literal["full", "compact"]


def agents() -> Call[tuple[AgentSummary, ...]]:
    """List the agents that the caller may use."""
    return Call(
        method="GET",
        path="/v1/agents",
        read=lambda answer: tuple(read_value(AgentSummary, line) for line in answer["results"]),
    )


def remember(
    agent: str, user_id: str, content: str, *, idempotency_key: str | None = None, **options: Unpack[MemoryOptions]
) -> Call[Stored]:
    """Store a memory durably. `Stored.event` states whether it is new, replaces another one or is a duplicate."""
    body = to_json({"user_id": user_id, "content": content, **options})
    path = build_path(agent, "memories")
    return Call(method="POST", path=path, body=body, key=idempotency_key or new_idempotency_key(), read=_stored)


def remember_many(
    agent: str, memories: Sequence[NewMemory], *, idempotency_key: str | None = None
) -> Call[list[Stored | ApiError]]:
    """Store up to 1,000 memories. The results are in the order of `memories`; a refused memory has an ApiError."""
    return Call(
        method="POST",
        path=build_path(agent, "memories", "batch"),
        body=to_json({"memories": list(memories)}),
        key=idempotency_key or new_idempotency_key(),
        read=lambda answer: [read_error(result) or _stored(result) for result in answer["results"]],
    )


def converse(
    agent: str,
    user_id: str,
    messages: Sequence[Message],
    *,
    idempotency_key: str | None = None,
    **options: Unpack[ConversationOptions],
) -> Call[ConversationStored]:
    """Store the messages of a conversation durably. If the agent has a model, it distils memories from them later."""
    body = to_json({"user_id": user_id, "messages": list(messages), **options})
    path = build_path(agent, "messages")
    read = partial(read_value, ConversationStored)
    return Call(method="POST", path=path, body=body, key=idempotency_key or new_idempotency_key(), read=read)


def search(agent: str, user_id: str, query: str | None = None, **options: Unpack[SearchOptions]) -> Call[SearchResult]:
    """Return the best memories for a query, or for the option `vector`."""
    return _search(read_search, user_id, agent, query, **options)


def search_fields(
    agent: str, user_id: str, fields: Sequence[str], query: str | None = None, **options: Unpack[SearchOptions]
) -> Call[dict[str, Any]]:
    """Search, and return the response as JSON.

    Each memory has only the named fields and its `score`; times are text.
    """
    return _search(dict, user_id, agent, query, fields=list(fields), **options)


def memories(agent: str, user_id: str, **options: Unpack[ListOptions]) -> Listing[Memory]:
    """List a user's memories, newest first. Pages are read on demand."""
    return Listing(page(agent, user_id, **options))


def page(agent: str, user_id: str, **options: Unpack[ListOptions]) -> Call[Page]:
    """Read one page of a user's memories, newest first."""
    return _read(read_page, user_id, agent, "memories", **options)


def get(agent: str, user_id: str, memory_id: str) -> Call[Memory]:
    """Read a memory.

    Raises:
        ApiError: 404 if the user has no such memory.
    """
    path = build_path(agent, "memories", memory_id)
    return Call(method="GET", path=path, parameters={"user_id": user_id}, read=_memory, has_etag=True)


def change(
    agent: str,
    user_id: str,
    memory_id: str,
    *,
    if_match: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[ChangeOptions],
) -> Call[Memory]:
    """Change a memory in place and return its new state.

    Args:
        if_match: Change only the version with this `etag`; None changes any.

    Raises:
        PreconditionFailed: If the stored version is not the one of `if_match`.
        ValueError: If there is no option. Nothing was sent.
    """
    if not options:
        raise ValueError(f"change: nothing to change: give one of {', '.join(ChangeOptions.__annotations__)}")
    return Call(
        method="PATCH",
        path=build_path(agent, "memories", memory_id),
        parameters={"user_id": user_id},
        body=to_json(options),
        headers=if_match_header(if_match),
        key=idempotency_key or new_idempotency_key(),
        read=_memory,
        has_etag=True,
    )


def stats(agent: str, user_id: str | None = None, *, periods: int | None = None) -> Call[Stats]:
    """Count the memories of a user, or of the whole agent if `user_id` is None.

    Args:
        periods: Maximum number of periods in which active memories are also counted by day of creation; None for none.
    """
    options = {"user_id": user_id, "periods": periods}
    parameters = {name: value for name, value in options.items() if value is not None}
    return Call(method="GET", path=build_path(agent, "stats"), parameters=parameters, read=partial(read_value, Stats))


def history(agent: str, user_id: str, memory_id: str) -> Call[tuple[Memory, ...]]:
    """List all versions of a memory, oldest first. `memory_id` may be any of them."""
    return _read(_memories, user_id, agent, "memories", memory_id, "history")


def children(agent: str, user_id: str, memory_id: str) -> Listing[Memory]:
    """List the direct children of a memory, newest first. Pages are read on demand."""
    return Listing(_read(read_page, user_id, agent, "memories", memory_id, "children"))


def tree(agent: str, user_id: str, memory_id: str, **options: Unpack[TreeOptions]) -> Call[Tree]:
    """Read a memory with its descendants, up to the limits of the options or, without them, of the API."""
    return _read(read_tree, user_id, agent, "memories", memory_id, "tree", **options)


def working(agent: str, user_id: str, session_id: str) -> Call[tuple[Memory, ...]]:
    """List the working memories of a session, most recently used first."""
    return _read(_memories, user_id, agent, "sessions", session_id, "working")


def keep(agent: str, user_id: str, session_id: str, content: str, **options: Unpack[KeepOptions]) -> Call[Kept]:
    """Add a working memory to a session. If the session is full, the least recently used one is evicted."""
    path = build_path(agent, "sessions", session_id, "working")
    body = {"content": content, **options}
    return Call(method="PUT", path=path, parameters={"user_id": user_id}, body=body, read=parse_stored_working_memory)


def end(agent: str, user_id: str, session_id: str) -> Call[dict[str, int]]:
    """End a session; return the number of dropped memories by type."""
    path = build_path(agent, "sessions", session_id, "end")
    return Call(method="POST", path=path, parameters={"user_id": user_id}, read=lambda answer: dict(answer["counts"]))


def delete(agent: str, user_id: str, memory_id: str, *, if_match: str | None = None) -> Call[None]:
    """Delete a memory. The memories that it replaced become visible again.

    Args:
        if_match: Delete only the version with this `etag`; None deletes any.

    Raises:
        PreconditionFailed: If the stored version is not the one of `if_match`.
        ApiError: 404 if the user has no such memory. A 404 after a retry is no error.
    """
    return Call(
        method="DELETE",
        path=build_path(agent, "memories", memory_id),
        parameters={"user_id": user_id},
        headers=if_match_header(if_match),
        read=_nothing,
        # A 404 on a retry is no error: an earlier attempt has deleted the memory.
        on_not_found=lambda: None,
    )


def _search(read: Callable[[Any], T], user_id: str, agent: str, query: str | None, **options: Any) -> Call[T]:
    query_field = {} if query is None else {"query": query}
    body = to_json({"user_id": user_id, **query_field, **options})
    return Call(method="POST", path=build_path(agent, "search"), body=body, read=read)


def _read(read: Callable[[Any], T], user_id: str, *parts: str, **options: Any) -> Call[T]:
    return Call(method="GET", path=build_path(*parts), parameters={"user_id": user_id, **options}, read=read)


def _memory(answer: Any) -> Memory:
    return read_value(Memory, answer)


def _memories(answer: Any) -> tuple[Memory, ...]:
    return tuple(map(_memory, answer["results"]))


def _stored(answer: Any) -> Stored:
    return read_value(Stored, answer)


def _nothing(answer: Any) -> None:
    return None


class ForgetOptions(TypedDict, total=False):
    """Conditions that select memories to erase: at least one of `filters`, `older_than` and `zone`, and none empty.

    Attributes:
        crypto: True to delete the zone keys before the memories. It is no condition.
    """

    filters: Mapping[str, Any]
    older_than: datetime | str
    zone: str
    crypto: bool


class ReceiptOptions(TypedDict, total=False):
    """Options of `receipts`.

    Attributes:
        user_id: Only erasures of this user; all users without it.
        limit: Maximum number of receipts on a page.
        before: Only receipts written before this time.
    """

    user_id: str
    limit: int
    before: datetime | str


def forget(
    agent: str, user_id: str | None, *, idempotency_key: str | None = None, **options: Unpack[ForgetOptions]
) -> Call[Receipt]:
    """Erase the memories of a user that meet all conditions.

    Args:
        user_id: None to delete the key of an organisation, with `zone="PROFESSIONAL", crypto=True`.

    Raises:
        ValueError: If there is no condition, or an empty one; nothing was sent. `forget_everything` erases a user.
    """
    return _forget(agent, {"user_id": user_id, **_narrowed(options)}, idempotency_key)


def forget_everything(
    agent: str, user_id: str, *, crypto: bool = False, idempotency_key: str | None = None
) -> Call[Receipt]:
    """Erase a user: all memories, and everything else that is stored about the user.

    Args:
        crypto: True to delete the user's zone keys before the memories.
    """
    return _forget(agent, _whole(user_id, crypto), idempotency_key)


def would_forget(agent: str, user_id: str | None, **options: Unpack[ForgetOptions]) -> Call[Preview]:
    """Preview the memories that `forget` would erase now. Raises: As `forget`."""
    return _preview(agent, {"user_id": user_id, **_narrowed(options)})


def would_forget_everything(agent: str, user_id: str, *, crypto: bool = False) -> Call[Preview]:
    """Preview the memories that `forget_everything` would erase now."""
    return _preview(agent, _whole(user_id, crypto))


def _forget(agent: str, body: dict[str, Any], idempotency_key: str | None) -> Call[Receipt]:
    key, read = idempotency_key or new_idempotency_key(), partial(read_value, Receipt)
    path = build_path(agent, "forget")
    return Call(method="POST", path=path, body=to_json(body), key=key, read=read, timeout_s=ERASURE_TIMEOUT_S)


def _preview(agent: str, body: dict[str, Any]) -> Call[Preview]:
    body, path = to_json(body | {"dry_run": True}), build_path(agent, "forget")
    return Call(method="POST", path=path, body=body, read=partial(read_value, Preview), timeout_s=ERASURE_TIMEOUT_S)


def _narrowed(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options unchanged.

    Raises:
        ValueError: If they have no condition, or an empty one: earlier APIs would erase the whole user.
    """
    conditions = {name: value for name, value in options.items() if name != "crypto"}
    if not conditions:
        raise ValueError("filters, older_than or zone is required; to erase the whole user, call forget_everything")
    for name, value in conditions.items():
        if not value:
            raise ValueError(f"{name} is empty: give a condition, or call forget_everything to erase the whole user")
    return options


def _whole(user_id: str, crypto: bool) -> dict[str, Any]:
    return {"user_id": user_id, "everything": True} | ({"crypto": True} if crypto else {})


def receipts(agent: str, **options: Unpack[ReceiptOptions]) -> Listing[Receipt]:
    """List the receipts of erasures, newest first. Pages are read on demand."""
    call = Call(method="GET", path=build_path(agent, "receipts"), parameters=to_json(options), read=read_receipts)
    return Listing(call, mark="before")
