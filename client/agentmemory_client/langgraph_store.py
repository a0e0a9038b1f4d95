"""A LangGraph store that keeps its items in an agent's memory; needs the extra `langgraph`.

A value is kept as it is in the item's metadata; what is embedded is its text. A namespace `("memories", X, ...)` is
user X's, any other is the user's whom the store was made for and lies below a first part of its own, which LangGraph
does not let anybody use. The store sees items alone, no other memories.
"""

import asyncio
import json
import operator
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
)

import agentmemory_client.item_calls as item_calls
import agentmemory_client.memory_calls as memory_calls
from agentmemory_client.clients import AsyncClient, Client
from agentmemory_client.exchange import DEFAULT_URL, Call, Token
from agentmemory_client.problems import ApiError
from agentmemory_client.values import Found, Memory

T = TypeVar("T")
Namespace: TypeAlias = tuple[str, ...]
Steps: TypeAlias = Generator[Call[Any], Any, T]
"""Yields calls and gets their results, so that waiting for them is left to whoever runs it."""

USER_ROOT, OWN_ROOT = "memories", "langgraph"
CONTENT_MAX = 8192
"""Characters of an item's content: 2,048 tokens of 4. A longer value is kept whole, and embedded by its beginning."""

TOP_K_MAX, PAGE = 10_000, 1_000
TTL_MAX_MINUTES = 100 * 366 * 24 * 60
_METADATA = "langgraph"
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_BOUNDS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


class _Tree(NamedTuple):
    """The namespaces below a prefix that are one user's."""

    prefix: Namespace
    user_id: str


class AgentMemoryStore(BaseStore):
    """Items of one agent as a LangGraph store; a context manager, sync and async.

    `ttl` counts from the put, by this process's clock; reading an item does not make it last longer, whatever
    `refresh_ttl` says. `index=False` keeps an item out of searches with a query. Every call raises ApiError or
    ApiUnreachable.

    Args:
        agent: slug of the agent.
        user_id: whose the namespaces are that do not begin with `memories` and a user.
        url, token: of the API, as of Client.
        fields: paths of the value whose text is embedded, unless `put` names others; `$` is the whole value as JSON.
        threshold, min_similarity: least score and least similarity of a search; None is the object's.
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
        self._fields = tuple(fields)
        self._threshold = threshold
        self._min_similarity = min_similarity
        self._client = Client(url, token=token)
        self._async_client = AsyncClient(url, token=token)

    def __enter__(self) -> "AgentMemoryStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "AgentMemoryStore":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connections of the sync calls."""
        self._client.close()

    async def aclose(self) -> None:
        """Close the connections of all calls."""
        self._client.close()
        await self._async_client.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The result of each operation: reads see what was there before the writes of the batch."""
        listed, results = list(ops), dict[int, Result]()
        for part in _in_order(listed):
            results |= {place: self._run(self._steps(op)) for place, op in part.items()}
        return [results.get(place) for place in range(len(listed))]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The result of each operation: reads see what was there before the writes of the batch."""
        listed, results = list(ops), dict[int, Result]()
        for part in _in_order(listed):
            done = await asyncio.gather(*(self._arun(self._steps(op)) for op in part.values()))
            results |= dict(zip(part, done, strict=True))
        return [results.get(place) for place in range(len(listed))]

    def _run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while isinstance(step := _advance(steps, outcome), Call):
            try:
                outcome = self._client.run(step)
            except ApiError as error:
                outcome = error
        return step.value

    async def _arun(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while isinstance(step := _advance(steps, outcome), Call):
            try:
                outcome = await self._async_client.run(step)
            except ApiError as error:
                outcome = error
        return step.value

    def _steps(self, op: Op) -> Steps[Result]:
        match op:
            case GetOp():
                return self._get(op)
            case SearchOp():
                return self._search(op)
            case ListNamespacesOp():
                return self._list_namespaces(op)
            case PutOp(value=None):
                return self._delete(op)
            case PutOp():
                return self._put(op)

    def _get(self, op: GetOp) -> Steps[Item | None]:
        place = self._place(op.namespace)
        try:
            memory = yield item_calls.get_item(self._agent, place.prefix, op.key, user_id=place.user_id)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return Item(**_fields_of(memory))

    def _put(self, op: PutOp) -> Steps[None]:
        place, value = self._place(op.namespace), dict(op.value or {})
        text = _text_of(value, self._fields if op.index is None else op.index)
        content = (text or json.dumps(value, ensure_ascii=False))[:CONTENT_MAX]
        metadata = {_METADATA: {"value": value, "index": text is not None}}
        options: item_calls.ItemOptions = {"key": op.key, "user_id": place.user_id, "metadata": metadata}
        if op.ttl is not None:
            options["expires_at"] = _end_of(op.ttl)
        yield item_calls.put_item(self._agent, place.prefix, content, **options)

    def _delete(self, op: PutOp) -> Steps[None]:
        place = self._place(op.namespace)
        try:
            yield item_calls.delete_item(self._agent, place.prefix, op.key, user_id=place.user_id)
        except ApiError as error:
            if error.status != 404:
                raise

    def _search(self, op: SearchOp) -> Steps[list[SearchItem]]:
        wanted, found = op.offset + op.limit, list[SearchItem]()
        for tree in self._trees(op.namespace_prefix):
            found += yield from (self._ranked(op, tree, wanted) if op.query else self._listed(op, tree, wanted))
        if op.query:
            found.sort(key=lambda item: -(item.score or 0.0))
        return found[op.offset : wanted]

    def _ranked(self, op: SearchOp, tree: _Tree, wanted: int) -> Steps[list[SearchItem]]:
        """The best items; more are asked for until enough of them meet what the API cannot compare."""
        known = {"key": {"ne": None}, f"metadata.{_METADATA}.index": {"ne": False}}
        filters = known | _filters_of(op.filter or {})
        options: memory_calls.SearchOptions = {"namespace": tree.prefix, "filters": filters, "include_scopes": []}
        if self._threshold is not None:
            options["threshold"] = self._threshold
        if self._min_similarity is not None:
            options["min_similarity"] = self._min_similarity
        top_k = max(wanted, 1)
        while True:
            options["top_k"] = min(top_k, TOP_K_MAX)
            answer = yield memory_calls.search(self._agent, tree.user_id, op.query, **options)
            found = [item for item in map(_search_item, answer.results) if _matches(item.value, op.filter)]
            if len(found) >= wanted or len(answer.results) < top_k or top_k >= TOP_K_MAX:
                return found[:wanted]
            top_k *= 4

    def _listed(self, op: SearchOp, tree: _Tree, wanted: int) -> Steps[list[SearchItem]]:
        """Items, newest first, without a score."""
        limit = PAGE if op.filter else min(wanted + 1, PAGE)
        call = memory_calls.page(self._agent, tree.user_id, namespace=tree.prefix, limit=limit)
        found = list[SearchItem]()
        while True:
            page = yield call
            items = [_search_item(memory) for memory in page.results if memory.key is not None]
            found += [item for item in items if _matches(item.value, op.filter)]
            if len(found) >= wanted or page.next_cursor is None:
                return found[:wanted]
            call = call.after(cursor=page.next_cursor)

    def _list_namespaces(self, op: ListNamespacesOp) -> Steps[list[Namespace]]:
        conditions = op.match_conditions or ()
        prefixes = [condition.path for condition in conditions if condition.match_type == "prefix"]
        found: set[Namespace] = set()
        for tree in self._trees(_literal(prefixes[0]) if prefixes else ()):
            sizes = yield item_calls.namespaces(self._agent, tree.prefix, user_id=tree.user_id)
            found |= {_outside(size.namespace) for size in sizes}
        matching = {namespace for namespace in found if all(_is_met(condition, namespace) for condition in conditions)}
        cut = sorted({namespace[: op.max_depth] for namespace in matching})
        return cut[op.offset : op.offset + op.limit]

    def _place(self, namespace: Namespace) -> _Tree:
        if _names_user(namespace):
            return _Tree(namespace, namespace[1])
        return _Tree((OWN_ROOT, *namespace), self._user_id)

    def _trees(self, prefix: Namespace) -> list[_Tree]:
        """What a prefix covers: one user's, where it is too short to name one the store's own user's."""
        if prefix in ((), (USER_ROOT,)):
            return [self._place(prefix), _Tree((USER_ROOT, self._user_id), self._user_id)]
        return [self._place(prefix)]


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T


def _advance(steps: Steps[T], outcome: Any) -> Call[Any] | _Done[T]:
    """The next call, given what the last one came to: None before the first, an ApiError is raised in place."""
    try:
        return steps.throw(outcome) if isinstance(outcome, ApiError) else steps.send(outcome)
    except StopIteration as done:
        return _Done(done.value)


def _in_order(ops: Sequence[Op]) -> list[dict[int, Op]]:
    """The reads, then the writes, each with its place; of several writes to one key only the last."""
    last = {(op.namespace, op.key): place for place, op in enumerate(ops) if isinstance(op, PutOp)}
    writes = {place: ops[place] for place in last.values()}
    reads: dict[int, Op] = {place: op for place, op in enumerate(ops) if not isinstance(op, PutOp)}
    return [reads, writes]


def _names_user(namespace: Namespace) -> bool:
    return len(namespace) > 1 and namespace[0] == USER_ROOT


def _outside(namespace: Namespace) -> Namespace:
    """A namespace as LangGraph knows it."""
    return namespace[1:] if namespace[:1] == (OWN_ROOT,) else namespace


def _literal(path: Sequence[str]) -> Namespace:
    """The parts before the first wildcard."""
    parts = tuple(path)
    return parts[: parts.index("*")] if "*" in parts else parts


def _is_met(condition: MatchCondition, namespace: Namespace) -> bool:
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    near = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", part) for wanted, part in zip(path, near, strict=True))


def _text_of(value: Mapping[str, Any], index: Sequence[str] | bool) -> str | None:
    """What is embedded of a value; None where nothing is to be."""
    if index is False:
        return None
    paths = ("$",) if index is True else index
    text = "\n".join(text for path in paths for text in get_text_at_path(dict(value), path))
    return text if text.strip() else None


def _end_of(ttl_minutes: float) -> datetime:
    if not 0 < ttl_minutes <= TTL_MAX_MINUTES:
        raise ValueError(f"ttl: {ttl_minutes} minutes: more than 0, and at most {TTL_MAX_MINUTES} (a hundred years)")
    return datetime.now(UTC) + timedelta(minutes=ttl_minutes)


def _value_of(memory: Memory) -> dict[str, Any]:
    """The value of an item; of one that came another way its content and metadata."""
    ours = memory.metadata.get(_METADATA)
    if isinstance(ours, dict) and isinstance(ours.get("value"), dict):
        return dict(ours["value"])
    return {"content": memory.content, "metadata": memory.metadata}


def _fields_of(memory: Memory) -> dict[str, Any]:
    return {
        "namespace": _outside(memory.namespace),
        "key": memory.key,
        "value": _value_of(memory),
        "created_at": memory.created_at,
        "updated_at": memory.updated_at or memory.valid_from or memory.created_at,
    }


def _search_item(memory: Memory) -> SearchItem:
    return SearchItem(**_fields_of(memory), score=memory.score if isinstance(memory, Found) else None)


def _filters_of(filter_: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions that the API can look at; every one is looked at again here."""
    conditions = {name: _condition_of(condition) for name, condition in filter_.items() if _NAME.fullmatch(name)}
    return {
        f"metadata.{_METADATA}.value.{name}": condition for name, condition in conditions.items() if condition != {}
    }


def _condition_of(condition: Any) -> Any:
    """A condition in the API's words, {} for what it has none for."""
    if not isinstance(condition, dict):
        return condition if condition is None or _is_plain(condition) else {}
    names = {"$eq": "eq", "$ne": "ne"} | {name: name[1:] for name in _BOUNDS}
    return {
        names[name]: bound
        for name, bound in condition.items()
        if name in names and (_is_number(bound) if name in _BOUNDS else _is_plain(bound))
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool) or _is_number(value) or (isinstance(value, str) and 1 <= len(value) <= 1024)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _matches(value: Mapping[str, Any], filter_: Mapping[str, Any] | None) -> bool:
    return all(_compare(value.get(name), condition) for name, condition in (filter_ or {}).items())


def _compare(value: Any, condition: Any) -> bool:
    """Whether a value is what a condition says: operators, an object's fields, a list's entries, or itself."""
    if isinstance(condition, dict):
        if any(name.startswith("$") for name in condition):
            return all(_holds(value, name, bound) for name, bound in condition.items())
        return isinstance(value, dict) and all(_compare(value.get(name), part) for name, part in condition.items())
    if isinstance(condition, list | tuple):
        is_list = isinstance(value, list) and len(value) == len(condition)
        return is_list and all(map(_compare, value, condition))
    return bool(value == condition)


def _holds(value: Any, name: str, bound: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == bound) is (name == "$eq")
    compare: Callable[[float, float], bool] | None = _BOUNDS.get(name)
    if compare is None:
        raise ValueError(f"{name} is no operator: $eq, $ne, {', '.join(_BOUNDS)}")
    try:
        return compare(float(value), float(bound))
    except (TypeError, ValueError):
        return False
