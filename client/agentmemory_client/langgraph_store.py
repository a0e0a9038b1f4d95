"""A LangGraph store that keeps its items in an agent's memory; needs the extra `langgraph`.

A value is kept as it is in the item's metadata; what is embedded is its text. A namespace `("memories", X, ...)` is
user X's, any other is the user's whom the store was made for and lies below a first part of its own, which LangGraph
does not let anybody use. The store sees items alone, no other memories.
"""

import asyncio
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
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
from agentmemory_client.exchange import DEFAULT_URL, RETRIED, Call, Token
from agentmemory_client.item_calls import NewItem
from agentmemory_client.langgraph_batches import (
    ABOUT_THE_CALL,
    Outcome,
    Together,
    parts_of,
    plan_of,
    results_of,
)
from agentmemory_client.langgraph_filters import matches, prefilter
from agentmemory_client.langgraph_values import (
    METADATA,
    OWN_ROOT,
    USER_ROOT,
    Namespace,
    end_of,
    fields_of,
    is_met,
    is_visible,
    literal,
    names_user,
    of_one_text,
    outside,
    search_item,
    text_of,
)
from agentmemory_client.problems import ApiError, ApiUnreachable

T = TypeVar("T")
Steps: TypeAlias = Generator[Call[Any], Any, T]
"""Yields calls and gets their results, so that waiting for them is left to whoever runs it."""

CONTENT_MAX = 8192
"""Characters of an item's content: 2,048 tokens of 4. A longer value is kept whole, and embedded by its beginning."""

TOP_K_MAX, PAGE = 10_000, 1_000
QUERY_MAX = 65_536
"""Characters of a query; of a longer one the beginning is asked for."""


class _Tree(NamedTuple):
    """The namespaces below a prefix that are one user's."""

    prefix: Namespace
    user_id: str


class AgentMemoryStore(BaseStore):
    """Items of one agent as a LangGraph store; a context manager, sync and async.

    `ttl` counts from the put, by this process's clock; reading an item does not make it last longer, whatever
    `refresh_ttl` says. `index=False` keeps an item out of searches with a query. Every call raises ApiError or
    ApiUnreachable, and InvalidNamespaceError where the API refuses a label. An operation that fails keeps none of the
    others of its batch from being carried out; the first error is raised.

    Asynchronous calls that are begun together are one batch, as those of LangGraph's stores are: of several writes of
    one key the last counts, and reads come first.

    Args:
        agent: slug of the agent.
        user_id: whose the namespaces are that do not begin with `memories` and a user.
        url, token: of the API, as of Client.
        fields: the path of the value whose text is embedded, unless `put` names another; `$` is the whole value as
            JSON. An item has one vector, so there is one path, of one text.
        threshold, min_similarity: least score and least similarity of a search; None is the object's.

    Raises:
        ValueError: there are several paths, or one of several texts.
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
        self._fields = of_one_text(fields, "fields")
        self._threshold = threshold
        self._min_similarity = min_similarity
        self._client = Client(url, token=token)
        self._async_client = AsyncClient(url, token=token)
        self._together = Together(self._perform)

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
        plan, outcomes = plan_of(list(ops)), dict[int, Outcome]()
        reads = (_settled_at(place, self._steps(op)) for place, op in plan.reads.items())
        for steps in chain(reads, self._writes(plan.writes)):
            outcomes |= (done := self._run(steps))
            if unreachable := [one for one in done.values() if isinstance(one, ApiUnreachable)]:
                # Each of the others would wait as long.
                raise unreachable[0]
        return results_of(plan.outcomes(outcomes))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The result of each operation: reads see what was there before the writes of the batch."""
        return results_of(await self._together.outcomes(list(ops)))

    async def _perform(self, ops: Sequence[Op]) -> list[Outcome]:
        plan = plan_of(ops)
        outcomes: dict[int, Outcome] = {}
        reads = [_settled_at(place, self._steps(op)) for place, op in plan.reads.items()]
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
        """What carries out writes, each of another key: so many puts to a call, and deletions one by one."""
        items: dict[int, NewItem | Exception] = {
            place: self._item_or_error(op) for place, op in ops.items() if op.value is not None
        }
        refused: dict[int, Outcome] = {place: item for place, item in items.items() if isinstance(item, Exception)}
        puts = {place: item for place, item in items.items() if not isinstance(item, Exception)}
        deletions = {place: self._steps(op) for place, op in ops.items() if op.value is None}
        return [
            _given(refused),
            *(self._put_all(part) for part in parts_of(puts)),
            *(_settled_at(place, steps) for place, steps in deletions.items()),
        ]

    def _put_all(self, items: Mapping[int, NewItem], *, is_again: bool = False) -> Steps[dict[int, Outcome]]:
        """Put items in one call; those that were not written though they may be are put once more."""
        if len(items) == 1:
            [(place, item)] = items.items()
            return (yield from _settled_at(place, self._put(item)))
        outcomes: dict[int, Outcome] = {}
        try:
            results = yield item_calls.put_items(self._agent, list(items.values()))
        except ApiError as error:
            if error.status not in ABOUT_THE_CALL:
                return dict.fromkeys(items, error)
            for place, item in items.items():
                outcomes |= yield from _settled_at(place, self._put(item))
            return outcomes
        for (place, item), result in zip(items.items(), results, strict=True):
            outcomes[place] = _as_langgraph(result, item["namespace"]) if isinstance(result, ApiError) else None
        left = {place: item for place, item in items.items() if is_again is False and _is_passing(outcomes[place])}
        return outcomes | ((yield from self._put_all(left, is_again=True)) if left else {})

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
        return Item(**fields_of(memory))

    def _item(self, op: PutOp) -> NewItem:
        place, value = self._place(op.namespace), dict(op.value or {})
        paths = self._fields if op.index is None else of_one_text(op.index or (), "index")
        text = text_of(value, paths)
        content = (text or json.dumps(value, ensure_ascii=False))[:CONTENT_MAX]
        item: NewItem = {
            "namespace": place.prefix,
            "user_id": place.user_id,
            "key": op.key,
            "content": content,
            "metadata": {METADATA: {"value": value, "index": text is not None}},
        }
        if op.ttl is not None:
            item["expires_at"] = end_of(op.ttl)
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
        is_asked = is_visible(op.query or "")
        for tree in self._trees(op.namespace_prefix):
            found += yield from (self._ranked(op, tree, wanted) if is_asked else self._listed(op, tree, wanted))
        if is_asked:
            found.sort(key=lambda item: -(item.score or 0.0))
        return found[op.offset : wanted]

    def _ranked(self, op: SearchOp, tree: _Tree, wanted: int) -> Steps[list[SearchItem]]:
        """The best items; more are asked for until enough of them meet what the API cannot compare."""
        asked = prefilter(op.filter or {}, f"metadata.{METADATA}.value")
        filters: dict[str, Any] = {"key": {"ne": None}, f"metadata.{METADATA}.index": {"ne": False}}
        filters |= {"AND": asked} if asked else {}
        options: memory_calls.SearchOptions = {"namespace": tree.prefix, "filters": filters, "include_scopes": []}
        if self._threshold is not None:
            options["threshold"] = self._threshold
        if self._min_similarity is not None:
            options["min_similarity"] = self._min_similarity
        top_k = max(wanted, 1)
        while True:
            options["top_k"] = min(top_k, TOP_K_MAX)
            answer = yield memory_calls.search(self._agent, tree.user_id, (op.query or "")[:QUERY_MAX], **options)
            found = [item for item in map(search_item, answer.results) if matches(item.value, op.filter)]
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
            items = [search_item(memory) for memory in page.results if memory.key is not None]
            found += [item for item in items if matches(item.value, op.filter)]
            if len(found) >= wanted or page.next_cursor is None:
                return found[:wanted]
            call = call.after(cursor=page.next_cursor)

    def _list_namespaces(self, op: ListNamespacesOp) -> Steps[list[Namespace]]:
        conditions = op.match_conditions or ()
        prefixes = [condition.path for condition in conditions if condition.match_type == "prefix"]
        found: set[Namespace] = set()
        for tree in self._trees(literal(prefixes[0]) if prefixes else ()):
            sizes = yield item_calls.namespaces(self._agent, tree.prefix, user_id=tree.user_id)
            found |= {outside(size.namespace) for size in sizes}
        matching = {namespace for namespace in found if all(is_met(condition, namespace) for condition in conditions)}
        cut = sorted({namespace[: op.max_depth] for namespace in matching})
        return cut[op.offset : op.offset + op.limit]

    def _place(self, namespace: Namespace) -> _Tree:
        if wrong := [label for label in namespace if not isinstance(label, str)]:
            raise InvalidNamespaceError(f"namespace: {wrong[0]!r} in {namespace} is no text")
        if names_user(namespace):
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
        return steps.throw(outcome) if isinstance(outcome, ApiError | ApiUnreachable) else steps.send(outcome)
    except StopIteration as done:
        return _Done(done.value)


def _given(outcomes: dict[int, Outcome]) -> Steps[dict[int, Outcome]]:
    return outcomes
    yield


def _is_passing(outcome: Outcome) -> bool:
    return isinstance(outcome, ApiError) and outcome.status in RETRIED


def _settled(steps: Steps[T]) -> Steps[T | Exception]:
    """The same steps; what they raise is their result."""
    try:
        result = yield from steps
    except (ApiError, ApiUnreachable, ValueError, TypeError) as error:
        return error
    return result


def _settled_at(place: int, steps: Steps[Any]) -> Steps[dict[int, Outcome]]:
    return {place: (yield from _settled(steps))}


def _namespace_of(op: Op) -> Sequence[str]:
    if isinstance(op, GetOp | PutOp):
        return op.namespace
    return op.namespace_prefix if isinstance(op, SearchOp) else ()


def _as_langgraph(error: ApiError, namespace: Sequence[str]) -> ApiError | InvalidNamespaceError:
    """The error that LangGraph has for what the API refuses."""
    fields = {field.field.partition("[")[0]: field.message for field in error.errors}
    message = fields.get("namespace") or (fields.get("user_id") if names_user(tuple(namespace)) else None)
    if error.status != 422 or message is None:
        return error
    return InvalidNamespaceError(f"namespace: {tuple(namespace)!r} has a label that the API refuses: {message}")
