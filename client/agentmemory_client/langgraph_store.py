"""LangGraph store that keeps its items in an agent's memory. It needs the extra `langgraph`.

The item's metadata contains the value unchanged; only its text is embedded. The store reads items only, no other
memories.

A namespace `("memories", X, ...)` belongs to user X. Any other belongs to the store's own user, and is stored below the
prefix `langgraph`, which LangGraph reserves.
"""

import asyncio
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

import agentmemory_client.item_calls as item_calls
import agentmemory_client.memory_calls as memory_calls
from agentmemory_client.clients import AsyncClient, Client
from agentmemory_client.exchange import DEFAULT_URL, RETRIED_STATUSES, Call, Token
from agentmemory_client.item_calls import NewItem
from agentmemory_client.langgraph_batches import (
    BATCH_REJECTED,
    BatchMerger,
    Outcome,
    plan_batch,
    results_or_raise,
    split_puts,
)
from agentmemory_client.langgraph_filters import matches, prefilter
from agentmemory_client.langgraph_values import (
    METADATA,
    OWN_ROOT,
    USER_ROOT,
    Namespace,
    expiry_of,
    has_user,
    item_fields,
    literal_prefix,
    matches_condition,
    remove_own_root,
    search_item,
    text_to_embed,
    to_paths,
)
from agentmemory_client.problems import ApiError, ApiUnreachable
from agentmemory_client.texts import is_visible

T = TypeVar("T")
Steps: TypeAlias = Generator[Call[Any], Any, T]
"""Generator that yields calls and receives their results.

The same code then serves the blocking and the async store.
"""

MAX_CONTENT_CHARS = 8192
"""Maximum characters of an item's content: 2,048 tokens of 4 characters each.

A longer value is stored completely, but only its beginning is embedded.
"""

MAX_TOP_K, PAGE = 10_000, 1_000
MAX_QUERY_CHARS = 65_536
"""Maximum characters of a query. A longer one is truncated."""


class _Tree(NamedTuple):
    """The namespaces below a prefix, and the user that they belong to."""

    prefix: Namespace
    user_id: str


class AgentMemoryStore(BaseStore):
    """Items of one agent as a LangGraph store; a context manager, blocking and async.

    `ttl` counts from the put, by this process's clock. Reading an item does not extend it, even with `refresh_ttl`.
    `index=False` excludes an item from searches with a query.

    Every call may raise ApiError or ApiUnreachable, and InvalidNamespaceError if the API refuses a label. If an
    operation of a batch fails, the rest is still carried out, and then the first error is raised. A blocking batch
    stops at ApiUnreachable.

    Concurrent async calls are merged into one batch, as in LangGraph's own stores: of several writes of a key only the
    last is done, and reads come first.

    Args:
        agent: Slug of the agent.
        user_id: Owner of the namespaces that do not begin with `memories` and a user.
        url, token: As for `Client`.
        fields: Paths of the value's texts to embed, unless `put` gives others; `$` is the whole value as JSON. An item
            has one vector, of its texts together.
        threshold, min_similarity: Minimum score and similarity of search results; None for the agent's settings.

    Raises:
        ValueError: If `url` or `token` is invalid.
    """

    supports_ttl = True

    def __init__(  # noqa: PLR0913 # each is an option
        self,
        agent: str,
        *,
        user_id: str,
        url: str = DEFAULT_URL,
        token: Token = None,
        fields: Sequence[str] = ("$",),
        threshold: float | None = None,
        min_similarity: float | None = None,
    ) -> None:
        self.ttl_config = TTLConfig(refresh_on_read=False)
        self._agent = agent
        self._user_id = user_id
        self._fields = to_paths(fields)
        self._threshold = threshold
        self._min_similarity = min_similarity
        self._client = Client(url, token=token)
        self._async_client = AsyncClient(url, token=token)
        self._together = BatchMerger(self._perform)

    def __enter__(self) -> "AgentMemoryStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "AgentMemoryStore":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connections of the blocking calls."""
        self._client.close()

    async def aclose(self) -> None:
        """Close the connections of all calls."""
        self._client.close()
        await self._async_client.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations and return their results, in order. Reads do not see the writes of the same batch."""
        plan, outcomes = plan_batch(list(ops)), dict[int, Outcome]()
        reads = (_catch_errors_at(place, self._steps(op)) for place, op in plan.reads.items())
        for steps in chain(reads, self._writes(plan.writes)):
            outcomes |= (done := self._run(steps))
            if unreachable := [outcome for outcome in done.values() if isinstance(outcome, ApiUnreachable)]:
                # Fail now: each remaining operation would wait for as long.
                raise unreachable[0]
        return results_or_raise(plan.outcomes(outcomes))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations and return their results, in order. Reads do not see the writes of the same batch."""
        return results_or_raise(await self._together.outcomes(list(ops)))

    async def _perform(self, ops: Sequence[Op]) -> list[Outcome]:
        plan = plan_batch(ops)
        outcomes: dict[int, Outcome] = {}
        reads = [_catch_errors_at(place, self._steps(op)) for place, op in plan.reads.items()]
        for steps in (reads, self._writes(plan.writes)):
            for done in await asyncio.gather(*map(self._arun, steps)):
                outcomes |= done
        return plan.outcomes(outcomes)

    def _run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while isinstance(step := _advance(steps, outcome), Call):
            try:
                outcome = self._client.run(step)
            except (ApiError, ApiUnreachable) as error:
                outcome = error
        return step.value

    async def _arun(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while isinstance(step := _advance(steps, outcome), Call):
            try:
                outcome = await self._async_client.run(step)
            except (ApiError, ApiUnreachable) as error:
                outcome = error
        return step.value

    def _steps(self, op: Op) -> Steps[Result]:
        try:
            result = yield from self._steps_of(op)
        except ApiError as error:
            raise _as_langgraph(error, _namespace_of(op)) from error
        return result

    def _steps_of(self, op: Op) -> Steps[Result]:
        match op:
            case GetOp():
                return self._get(op)
            case SearchOp():
                return self._search(op)
            case ListNamespacesOp():
                return self._list_namespaces(op)
            case PutOp():
                return self._delete(op)

    def _writes(self, ops: Mapping[int, PutOp]) -> list[Steps[dict[int, Outcome]]]:
        """Build the steps of writes to distinct keys: puts in batch requests, deletions one at a time."""
        items: dict[int, NewItem | Exception] = {
            place: self._item_or_error(op) for place, op in ops.items() if op.value is not None
        }
        refused: dict[int, Outcome] = {place: item for place, item in items.items() if isinstance(item, Exception)}
        puts = {place: item for place, item in items.items() if not isinstance(item, Exception)}
        deletions = {place: self._steps(op) for place, op in ops.items() if op.value is None}
        return [
            _return_outcomes(refused),
            *(self._put_all(part) for part in split_puts(puts)),
            *(_catch_errors_at(place, steps) for place, steps in deletions.items()),
        ]

    def _put_all(self, items: Mapping[int, NewItem]) -> Steps[dict[int, Outcome]]:
        """Put items in one request. Repeat it once if an item has a transient error."""
        if len(items) == 1:
            [(place, item)] = items.items()
            return (yield from _catch_errors_at(place, self._put(item)))
        outcomes: dict[int, Outcome] = {}
        call = item_calls.put_items(self._agent, list(items.values()))
        try:
            results = yield call
        except ApiError as error:
            if error.status not in BATCH_REJECTED:
                return dict.fromkeys(items, error)
            for place, item in items.items():
                outcomes |= yield from _catch_errors_at(place, self._put(item))
            return outcomes
        if any(map(_is_transient, results)):
            # Repeat the whole request, because its idempotency key covers the positions of the items. Under another
            # key, an item that was stored in spite of its 504 would replace what others have put since.
            with suppress(ApiError):
                repeated = yield call
                results = [new if _is_transient(old) else old for old, new in zip(results, repeated, strict=True)]
        for (place, item), result in zip(items.items(), results, strict=True):
            outcomes[place] = _as_langgraph(result, item["namespace"]) if isinstance(result, ApiError) else None
        return outcomes

    def _item_or_error(self, op: PutOp) -> NewItem | Exception:
        try:
            return self._item(op)
        except (ValueError, TypeError) as error:
            return error

    def _get(self, op: GetOp) -> Steps[Item | None]:
        place = self._place(op.namespace)
        try:
            memory = yield item_calls.get_item(self._agent, place.prefix, op.key, user_id=place.user_id)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return Item(**item_fields(memory))

    def _item(self, op: PutOp) -> NewItem:
        place, value = self._place(op.namespace), dict(op.value or {})
        paths = self._fields if op.index is None else to_paths(op.index or ())
        text = text_to_embed(value, paths)
        content = (text or json.dumps(value, ensure_ascii=False))[:MAX_CONTENT_CHARS]
        item: NewItem = {
            "namespace": place.prefix,
            "user_id": place.user_id,
            "key": op.key,
            "content": content,
            "metadata": {METADATA: {"value": value, "index": text is not None}},
        }
        if op.ttl is not None:
            item["expires_at"] = expiry_of(op.ttl)
        return item

    def _put(self, item: NewItem) -> Steps[None]:
        options: dict[str, Any] = {**item}
        namespace, content = options.pop("namespace"), options.pop("content")
        try:
            yield item_calls.put_item(self._agent, namespace, content, **options)
        except ApiError as error:
            raise _as_langgraph(error, namespace) from error

    def _delete(self, op: PutOp) -> Steps[None]:
        place = self._place(op.namespace)
        try:
            yield item_calls.delete_item(self._agent, place.prefix, op.key, user_id=place.user_id)
        except ApiError as error:
            if error.status != 404:
                raise

    def _search(self, op: SearchOp) -> Steps[list[SearchItem]]:
        wanted, found = op.offset + op.limit, list[SearchItem]()
        has_query = is_visible(op.query or "")
        for tree in self._trees(op.namespace_prefix):
            found += yield from (
                self._search_by_query(op, tree, wanted) if has_query else self._list_newest(op, tree, wanted)
            )
        if has_query:
            found.sort(key=lambda item: -(item.score or 0.0))
        return found[op.offset : wanted]

    def _search_by_query(self, op: SearchOp, tree: _Tree, wanted: int) -> Steps[list[SearchItem]]:
        """Return the best `wanted` items.

        Fetch more while too few match the part of the filter that the API cannot evaluate.
        """
        conditions = prefilter(op.filter or {}, f"metadata.{METADATA}.value")
        filters: dict[str, Any] = {"key": {"ne": None}, f"metadata.{METADATA}.index": {"ne": False}}
        filters |= {"AND": conditions} if conditions else {}
        options: memory_calls.SearchOptions = {"namespace": tree.prefix, "filters": filters, "include_scopes": []}
        if self._threshold is not None:
            options["threshold"] = self._threshold
        if self._min_similarity is not None:
            options["min_similarity"] = self._min_similarity
        top_k = max(wanted, 1)
        while True:
            options["top_k"] = min(top_k, MAX_TOP_K)
            answer = yield memory_calls.search(self._agent, tree.user_id, (op.query or "")[:MAX_QUERY_CHARS], **options)
            found = [item for item in map(search_item, answer.results) if matches(item.value, op.filter)]
            if len(found) >= wanted or len(answer.results) < top_k or top_k >= MAX_TOP_K:
                return found[:wanted]
            top_k *= 4

    def _list_newest(self, op: SearchOp, tree: _Tree, wanted: int) -> Steps[list[SearchItem]]:
        """Return items without a score, newest first."""
        limit = PAGE if op.filter else min(wanted + 1, PAGE)
        call = memory_calls.page(self._agent, tree.user_id, namespace=tree.prefix, limit=limit)
        found = list[SearchItem]()
        while True:
            page = yield call
            items = [search_item(memory) for memory in page.results if memory.key is not None]
            found += [item for item in items if matches(item.value, op.filter)]
            if len(found) >= wanted or page.next_cursor is None:
                return found[:wanted]
            call = call.next_page(cursor=page.next_cursor)

    def _list_namespaces(self, op: ListNamespacesOp) -> Steps[list[Namespace]]:
        conditions = op.match_conditions or ()
        prefixes = [condition.path for condition in conditions if condition.match_type == "prefix"]
        found: set[Namespace] = set()
        for tree in self._trees(literal_prefix(prefixes[0]) if prefixes else ()):
            sizes = yield item_calls.namespaces(self._agent, tree.prefix, user_id=tree.user_id)
            found |= {remove_own_root(size.namespace) for size in sizes}
        matching = {
            namespace for namespace in found if all(matches_condition(condition, namespace) for condition in conditions)
        }
        cut = sorted({namespace[: op.max_depth] for namespace in matching})
        return cut[op.offset : op.offset + op.limit]

    def _place(self, namespace: Namespace) -> _Tree:
        if wrong := [label for label in namespace if not isinstance(label, str)]:
            raise InvalidNamespaceError(f"namespace: {wrong[0]!r} in {namespace} is no text")
        if has_user(namespace):
            return _Tree(namespace, namespace[1])
        return _Tree((OWN_ROOT, *namespace), self._user_id)

    def _trees(self, prefix: Namespace) -> list[_Tree]:
        """Return the trees that a prefix covers. A prefix without a user covers the store's own user only."""
        if prefix in ((), (USER_ROOT,)):
            return [self._place(prefix), _Tree((USER_ROOT, self._user_id), self._user_id)]
        return [self._place(prefix)]


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T


def _advance(steps: Steps[T], outcome: Any) -> Call[Any] | _Done[T]:
    """Send the last outcome into the steps and return the next call, or `_Done` at their end.

    The outcome is None before the first call; an error is raised inside the steps.
    """
    try:
        return steps.throw(outcome) if isinstance(outcome, ApiError | ApiUnreachable) else steps.send(outcome)
    except StopIteration as done:
        return _Done(done.value)


def _return_outcomes(outcomes: dict[int, Outcome]) -> Steps[dict[int, Outcome]]:
    return outcomes
    yield


def _is_transient(outcome: Outcome) -> bool:
    return isinstance(outcome, ApiError) and outcome.status in RETRIED_STATUSES


def _catch_errors(steps: Steps[T]) -> Steps[T | Exception]:
    """Return an error of the steps as their result."""
    try:
        result = yield from steps
    except (ApiError, ApiUnreachable, ValueError, TypeError) as error:
        return error
    return result


def _catch_errors_at(place: int, steps: Steps[Any]) -> Steps[dict[int, Outcome]]:
    return {place: (yield from _catch_errors(steps))}


def _namespace_of(op: Op) -> Sequence[str]:
    if isinstance(op, GetOp | PutOp):
        return op.namespace
    return op.namespace_prefix if isinstance(op, SearchOp) else ()


def _as_langgraph(error: ApiError, namespace: Sequence[str]) -> ApiError | InvalidNamespaceError:
    """Convert the API's rejection of a namespace to LangGraph's error; return any other error unchanged."""
    fields = {field.field.partition("[")[0]: field.message for field in error.errors}
    message = fields.get("namespace") or (fields.get("user_id") if has_user(tuple(namespace)) else None)
    if error.status != 422 or message is None:
        return error
    return InvalidNamespaceError(f"namespace: {tuple(namespace)!r} has a label that the API refuses: {message}")
