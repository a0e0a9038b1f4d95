"""The calls of the API without the waiting: what is sent, how an answer is read, and when to ask again."""

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

import httpx

from agentmemory_operator.client.problems import ApiError, ApiUnreachable, problem_of
from agentmemory_operator.client.values import (
    AgentSummary,
    Kept,
    Memory,
    Page,
    SearchResult,
    Stats,
    Stored,
    Tree,
    read_kept,
    read_page,
    read_search,
    read_tree,
    read_value,
)

T = TypeVar("T")
Token: TypeAlias = str | Callable[[], str] | None
DEFAULT_URL = "http://127.0.0.1:8080"
# The API did nothing (429, 503), or may have (504, where repeating is safe all the same).
RETRIED = frozenset({429, 503, 504})
FIRST_WAIT_S = 0.5


class MemoryOptions(TypedDict, total=False):
    """What a memory may have besides user and content; docs/http-api.md explains each."""

    type: str
    importance: float | str
    confidence: float
    decay_rate: float
    session_id: str
    tags: Sequence[str]
    source: str
    author: str
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
    vector: Sequence[float]


class NewMemory(MemoryOptions):
    """A memory of a batch."""

    user_id: str
    content: str


class ChangeOptions(TypedDict, total=False):
    """What may change in place; what is left out stays, and `expires_at=None` is no end."""

    importance: float | str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    expires_at: datetime | str | None
    pinned: bool


class TreeOptions(TypedDict, total=False):
    """How much of a tree to read: levels, and memories in all."""

    depth: int
    limit: int


class KeepOptions(TypedDict, total=False):
    """What a working memory may have besides its content."""

    importance: float | str
    vector: Sequence[float]


class SearchOptions(TypedDict, total=False):
    """What narrows a search; docs/filters.md explains each."""

    vector: Sequence[float]
    include_scopes: Sequence[str]
    top_k: int
    threshold: float
    min_priority: float
    types: Sequence[str]
    tags: Sequence[str]
    session_id: str
    namespace: Sequence[str]
    filters: Mapping[str, Any]
    at_time: datetime | str
    include_superseded: bool
    hybrid: bool
    explain: bool


class ListOptions(TypedDict, total=False):
    """What narrows a list: any of the types, all of the tags."""

    include_scopes: Sequence[str]
    type: str | Sequence[str]
    tag: str | Sequence[str]
    session_id: str
    namespace: Sequence[str]
    include_superseded: bool
    limit: int
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the API is and how patiently it is asked.

    Attributes:
        token: sent as `Authorization: Bearer`; a callable is asked for each attempt.
        retries: attempts after the first.
        wait_max_s: the longest wait between two attempts, whatever the API asks for.
    """

    url: str = DEFAULT_URL
    token: Token = field(default=None, repr=False)
    timeout_s: float = 30.0
    retries: int = 3
    wait_max_s: float = 30.0

    @property
    def client_options(self) -> dict[str, Any]:
        """The options of an httpx client."""
        return {"base_url": self.url.rstrip("/"), "timeout": self.timeout_s}

    @property
    def authorization(self) -> dict[str, str]:
        """The headers that say who calls, now."""
        token = self.token() if callable(self.token) else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def wait_s(self, attempt: int, retry_after: str | None) -> float:
        """Return how long to wait after an attempt, counted from 0: as long as the API says, else twice as long."""
        if retry_after is not None and retry_after.isdigit():
            return min(float(retry_after), self.wait_max_s)
        # Spread, so that many callers do not come back at once.
        return min(FIRST_WAIT_S * 2.0**attempt * random.uniform(0.5, 1.0), self.wait_max_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One call: all of them may be repeated, writes because they carry an idempotency key.

    Attributes:
        read: makes the result of the answer's JSON.
        gone: the result where a repeated call finds nothing more to do (404).
        timeout_s: of a call that may take long; None is the connection's.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    parameters: Mapping[str, Any] | None = None
    body: Any = None
    key: str | None = None
    gone: Callable[[], T] | None = None
    timeout_s: float | None = None

    def request(self, connection: Connection) -> dict[str, Any]:
        """Return the arguments of an httpx request."""
        headers = connection.authorization | ({"Idempotency-Key": self.key} if self.key else {})
        sent: dict[str, Any] = {"method": self.method, "url": self.path, "headers": headers}
        sent |= {"timeout": self.timeout_s} if self.timeout_s else {}
        return (
            sent | ({"params": self.parameters} if self.parameters else {}) | ({"json": self.body} if self.body else {})
        )

    def settle(self, answer: httpx.Response, *, is_repeated: bool) -> T:
        """Return the result of the last answer.

        Raises:
            ApiError: it is an error.
        """
        if answer.is_success:
            return self.read(answer.json() if answer.content else None)
        if answer.status_code == 404 and is_repeated and self.gone:
            return self.gone()
        raise problem_of(answer.status_code, answer.content)


def unreachable(connection: Connection, error: httpx.TransportError) -> ApiUnreachable:
    """Return the error of a call that no answer came to."""
    return ApiUnreachable(f"no answer from {connection.url} ({type(error).__name__}): is the API running there?")


def list_agents() -> Call[tuple[AgentSummary, ...]]:
    """Return the call that lists agents."""
    return Call(method="GET", path="/v1/agents", read=lambda answer: tuple(map(_summary, answer["results"])))


def get_agent(agent: str) -> Call[dict[str, Any]]:
    """Return the call that reads an agent's settings in force."""
    return Call(method="GET", path=path_of(agent), read=lambda answer: dict(answer))


def remember(agent: str, user_id: str, content: str, *, key: str | None, options: MemoryOptions) -> Call[Stored]:
    """Return the call that stores one memory."""
    body = json_of({"user_id": user_id, "content": content, **options})
    path = path_of(agent, "memories")
    return Call(method="POST", path=path, body=body, key=key or _new_key(), read=_stored)


def remember_many(agent: str, memories: Sequence[NewMemory], *, key: str | None) -> Call[list[Stored | ApiError]]:
    """Return the call that stores a batch; one result an item, in order."""
    body = {"memories": [json_of(memory) for memory in memories]}
    path = path_of(agent, "memories", "batch")
    return Call(
        method="POST",
        path=path,
        body=body,
        key=key or _new_key(),
        read=lambda answer: [_outcome(result) for result in answer["results"]],
    )


def search(agent: str, user_id: str, query: str | None, *, options: SearchOptions) -> Call[SearchResult]:
    """Return the call that searches."""
    question = {} if query is None else {"query": query}
    body = json_of({"user_id": user_id, **question, **options})
    return Call(method="POST", path=path_of(agent, "search"), body=body, read=read_search)


def list_memories(agent: str, user_id: str, *, options: ListOptions) -> Call[Page]:
    """Return the call that reads one page of memories."""
    return Call(
        method="GET", path=path_of(agent, "memories"), parameters={"user_id": user_id, **options}, read=read_page
    )


def next_page(call: Call[Page], cursor: str) -> Call[Page]:
    """Return the call that reads the page after."""
    return replace(call, parameters={**(call.parameters or {}), "cursor": cursor})


def read_stats(agent: str, user_id: str | None) -> Call[Stats]:
    """Return the call that counts memories."""
    parameters = {} if user_id is None else {"user_id": user_id}
    return Call(method="GET", path=path_of(agent, "stats"), parameters=parameters, read=partial(read_value, Stats))


def get_memory(agent: str, user_id: str, memory_id: str) -> Call[Memory]:
    """Return the call that reads a memory."""
    path = path_of(agent, "memories", memory_id)
    return Call(method="GET", path=path, parameters={"user_id": user_id}, read=_memory)


def change_memory(agent: str, user_id: str, memory_id: str, *, options: ChangeOptions) -> Call[Memory]:
    """Return the call that changes a memory in place."""
    path = path_of(agent, "memories", memory_id)
    body = json_of(options)
    return Call(method="PATCH", path=path, parameters={"user_id": user_id}, body=body, read=_memory)


def read_history(agent: str, user_id: str, memory_id: str) -> Call[tuple[Memory, ...]]:
    """Return the call that reads the versions of a memory."""
    path = path_of(agent, "memories", memory_id, "history")
    return Call(method="GET", path=path, parameters={"user_id": user_id}, read=_memories)


def list_children(agent: str, user_id: str, memory_id: str) -> Call[Page]:
    """Return the call that reads one page of the memories right below one."""
    path = path_of(agent, "memories", memory_id, "children")
    return Call(method="GET", path=path, parameters={"user_id": user_id}, read=read_page)


def read_tree_of(agent: str, user_id: str, memory_id: str, *, options: TreeOptions) -> Call[Tree]:
    """Return the call that reads a memory with all that is below it."""
    path = path_of(agent, "memories", memory_id, "tree")
    return Call(method="GET", path=path, parameters={"user_id": user_id, **options}, read=read_tree)


def read_working(agent: str, user_id: str, session_id: str) -> Call[tuple[Memory, ...]]:
    """Return the call that reads a session's working memory."""
    path = path_of(agent, "sessions", session_id, "working")
    return Call(method="GET", path=path, parameters={"user_id": user_id}, read=_memories)


def keep_in_mind(agent: str, user_id: str, session_id: str, body: Mapping[str, Any]) -> Call[Kept]:
    """Return the call that keeps something in mind for a session."""
    path = path_of(agent, "sessions", session_id, "working")
    return Call(method="PUT", path=path, parameters={"user_id": user_id}, body=body, read=read_kept)


def end_session(agent: str, user_id: str, session_id: str) -> Call[dict[str, int]]:
    """Return the call that ends a session."""
    path = path_of(agent, "sessions", session_id, "end")
    return Call(method="POST", path=path, parameters={"user_id": user_id}, read=lambda answer: dict(answer["counts"]))


def delete_memory(agent: str, user_id: str, memory_id: str) -> Call[None]:
    """Return the call that deletes a memory; one that a lost attempt deleted is no error."""
    path = path_of(agent, "memories", memory_id)
    return Call(method="DELETE", path=path, parameters={"user_id": user_id}, read=_nothing, gone=lambda: None)


def path_of(agent: str, *parts: str) -> str:
    """Return the path of an agent or of what is below it."""
    return "/".join(("/v1/agents", *(quote(part, safe="") for part in (agent, *parts))))


def _new_key() -> str:
    return str(uuid.uuid4())


def json_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them: times as text."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def _memory(answer: Any) -> Memory:
    return read_value(Memory, answer)


def _memories(answer: Any) -> tuple[Memory, ...]:
    return tuple(map(_memory, answer["results"]))


def _stored(answer: Any) -> Stored:
    return read_value(Stored, answer)


def _outcome(answer: Any) -> Stored | ApiError:
    if "error" in answer:
        return ApiError(answer["error"]["status"], answer["error"])
    return _stored(answer)


def _summary(answer: Any) -> AgentSummary:
    return read_value(AgentSummary, answer)


def _nothing(answer: Any) -> None:
    return None
