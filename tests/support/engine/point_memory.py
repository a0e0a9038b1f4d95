"""Points in memory, behind the product's port. Calls have the same results as in the engine (tests/golden/points.yaml).

A call for one point is atomic, a call for several is not. A process that steps call by call sets `BETWEEN`, so that
other processes can run between two points of its call.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.ports.base import Json

BETWEEN: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("BETWEEN", default=None)
"""Called between two points of one call; None for no pause."""

COMPARED = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}


def matches(
    condition: Mapping[str, Any], point_id: str, payload: Mapping[str, Any], vectors: Collection[str] = ()
) -> bool:
    """Return whether a point matches a condition or a filter. An unknown condition fails an assertion.

    Args:
        vectors: Names of the point's vectors.
    """
    match condition:
        case {"has_vector": name}:
            return name in vectors
        case {"has_id": ids}:
            return point_id in ids
        case {"is_empty": {"key": key}}:
            return not values_at(payload, key)
        case {"key": key, "match": {"value": wanted}}:
            return any(type(value) is type(wanted) and value == wanted for value in values_at(payload, key))
        case {"key": key, "match": {"any": wanted}}:
            return any(value in wanted for value in values_at(payload, key))
        case {"key": key, "range": bounds}:
            values = [value for value in values_at(payload, key) if type(value) in (int, float)]
            return any(all(COMPARED[name](value, bound) for name, bound in bounds.items()) for value in values)
    assert set(condition) <= {"must", "should", "must_not"}, condition
    should = condition.get("should")
    return (
        all(matches(part, point_id, payload, vectors) for part in condition.get("must", ()))
        and not any(matches(part, point_id, payload, vectors) for part in condition.get("must_not", ()))
        and (not should or any(matches(part, point_id, payload, vectors) for part in should))
    )


def values_at(payload: Mapping[str, Any], key: str) -> list[Any]:
    first, _, rest = key.partition(".")
    value = payload.get(first)
    if rest:
        return values_at(value, rest) if isinstance(value, Mapping) else []
    return list(value) if isinstance(value, list) else [] if value is None else [value]


class _Pauses:
    """Pauses of one call. If the process is killed in a pause, the call still completes, as in a real server.

    Args:
        is_begun: True to pause before the first point too.
    """

    def __init__(self, *, is_begun: bool = False) -> None:
        self._between = BETWEEN.get()
        self._gone: asyncio.CancelledError | None = None
        self._is_begun = is_begun

    async def before_each(self, ids: Iterable[str]) -> AsyncIterator[str]:
        """Yield ids, with a pause before each."""
        for id_ in ids:
            await self.wait()
            yield id_

    async def wait(self) -> None:
        if not self._is_begun:
            self._is_begun = True
        elif self._between is not None and self._gone is None:
            try:
                await self._between()
            except asyncio.CancelledError as error:
                self._gone = error

    def end(self) -> None:
        if self._gone is not None:
            raise self._gone


@dataclass(slots=True)
class PointMemory:
    """Implements the methods of ports.PointStore that writers use, for one collection.

    Attributes:
        payloads: Payloads by id.
        lists_by_id: True to list by id like the engine; False to list by arrival. Ids are random, and a model must not
            depend on them.
        reads_backwards: True to read the points of one `retrieve` in reverse order.
        vectors: Vectors by id and name; the name is '' for the unnamed one.
        keeps_vectors: True if an upsert keeps the old vectors that the new point lacks.
        pending_vector_deletions: Filters of calls in progress that will delete vectors.
    """

    payloads: dict[str, Json] = field(default_factory=dict)
    lists_by_id: bool = True
    reads_backwards: bool = False
    vectors: dict[str, Json] = field(default_factory=dict)
    keeps_vectors: bool = False
    pending_vector_deletions: list[Json] = field(default_factory=list)
    _came: dict[str, int] = field(default_factory=dict)

    async def retrieve(
        self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None, vectors: bool = False
    ) -> list[Json]:
        wanted = list(dict.fromkeys(ids))
        found = await self._told(reversed(wanted) if self.reads_backwards else wanted, keys, _Pauses())
        return [point | {"vector": dict(self._vectors(point["id"]))} for point in found] if vectors else found

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        found = sorted(self._matching(body.get("filter") or {}), key=self._place)
        values: dict[str, int] = {}
        if order := body.get("order_by"):
            values = {id_: self.payloads[id_][order["key"]] for id_ in found}
            # The engine does not order points of equal values by id.
            found.reverse()
            found.sort(key=values.__getitem__)
        if (offset := body.get("offset")) is not None:
            found = [id_ for id_ in found if self._place(id_) >= self._place(offset)]
        limit = body.get("limit", 10)
        keys = body.get("with_payload", True)
        # Payloads are read after the search for points. A point may be deleted or changed in between.
        pauses = _Pauses(is_begun=True)
        excluded = set(keys["exclude"]) if isinstance(keys, dict) else set()
        page = await self._told(found[:limit], None if keys is True or excluded else keys or (), pauses)
        for point in page if values else ():
            point["order_value"] = values[point["id"]]
        for point in page if excluded else ():
            point["payload"] = {key: value for key, value in point["payload"].items() if key not in excluded}
        if keys is False:
            page = [point | {"payload": None} for point in page]
        return page, found[limit] if len(found) > limit else None

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        """Run queries that have only a filter."""
        assert not any("query" in body or "prefetch" in body for body in bodies)
        return [(await self.scroll(collection, body))[0] for body in bodies]

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        inserts: bool = False,
        strong: bool = False,
    ) -> None:
        mode = "insert_only" if insert_only else "upsert" if update_filter is None or inserts else "update_only"
        upsert = {"points": points, "update_filter": update_filter, "update_mode": mode}
        await self.batch(collection, [{"upsert": upsert}])

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        await self.batch(collection, [{"set_payload": {"payload": payload, "filter": filter_}}])

    async def delete(self, collection: str, filter_: Json) -> None:
        await self.batch(collection, [{"delete": {"filter": filter_}}])

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        pauses = _Pauses()
        filters = [operation["delete_vectors"]["filter"] for operation in operations if "delete_vectors" in operation]
        self.pending_vector_deletions += filters
        for operation in operations:
            ((name, how),) = operation.items()
            await _OPERATIONS[name](self, how, pauses)
        for filter_ in filters:
            self.pending_vector_deletions.remove(filter_)
        pauses.end()

    async def _upsert(self, how: Json, pauses: _Pauses) -> None:
        mode, filter_ = how.get("update_mode", "upsert"), how.get("update_filter")
        for point in how["points"]:
            await pauses.wait()
            id_ = point["id"]
            if id_ not in self.payloads:
                is_written = mode != "update_only"
            else:
                is_written = mode != "insert_only" and (filter_ is None or self._meets(filter_, id_))
            if is_written:
                self._put(point)

    async def _set_payload(self, how: Json, pauses: _Pauses) -> None:
        removed = [key for key, value in how["payload"].items() if value is None]
        async for id_ in pauses.before_each(self._matching(how["filter"])):
            if id_ in self.payloads and self._meets(how["filter"], id_):
                self.payloads[id_].update(deepcopy(how["payload"]))
                for key in removed:
                    del self.payloads[id_][key]

    async def _delete(self, how: Json, pauses: _Pauses) -> None:
        async for id_ in pauses.before_each(self._matching(how["filter"])):
            if id_ in self.payloads and self._meets(how["filter"], id_):
                del self.payloads[id_]
                self.vectors.pop(id_, None)

    async def _delete_vectors(self, how: Json, pauses: _Pauses) -> None:
        async for id_ in pauses.before_each(self._matching(how["filter"])):
            if id_ in self.payloads and self._meets(how["filter"], id_):
                self.vectors[id_] = {
                    name: kept for name, kept in self._vectors(id_).items() if name not in how["vector"]
                }

    async def _told(self, ids: Iterable[str], keys: Sequence[str] | None, pauses: _Pauses) -> list[Json]:
        there = [id_ for id_ in ids if id_ in self.payloads]
        found = [
            {"id": id_, "payload": deepcopy(_kept(self.payloads[id_], keys))}
            async for id_ in pauses.before_each(there)
            if id_ in self.payloads
        ]
        pauses.end()
        return found

    def _matching(self, filter_: Json) -> list[str]:
        return [id_ for id_ in self.payloads if self._meets(filter_, id_)]

    def _meets(self, filter_: Json, id_: str) -> bool:
        return matches(filter_, id_, self.payloads[id_], self._vectors(id_))

    def _vectors(self, id_: str) -> Json:
        return self.vectors.get(id_, {})

    def _put(self, point: Json) -> None:
        id_, vector = point["id"], point["vector"]
        before = self._vectors(id_) if self.keeps_vectors else {}
        self.payloads[id_] = deepcopy(point["payload"])
        self.vectors[id_] = before | (vector if isinstance(vector, dict) else {"": vector})

    def _place(self, id_: str) -> tuple[int, str]:
        """Return the sort key of a point; a deleted point keeps its place."""
        for known in self.payloads:
            self._came.setdefault(known, len(self._came))
        return (0, id_) if self.lists_by_id else (self._came.get(id_, 0), "")

    def tombstones_with_vectors(self) -> set[str]:
        """Return the tombstones that have vectors which no call in progress deletes."""
        found = {id_ for id_, row in self.payloads.items() if "deletedAt" in row and self._vectors(id_)}
        return {id_ for id_ in found if not any(self._meets(filter_, id_) for filter_ in self.pending_vector_deletions)}


_OPERATIONS: dict[str, Callable[[PointMemory, Json, _Pauses], Awaitable[None]]] = {
    "upsert": PointMemory._upsert,
    "set_payload": PointMemory._set_payload,
    "delete": PointMemory._delete,
    "delete_vectors": PointMemory._delete_vectors,
}


def _kept(payload: Json, keys: Sequence[str] | None) -> Json:
    """Return the requested keys of a payload; a key may be a path."""
    if keys is None:
        return payload
    kept: Json = {}
    for key in keys:
        first, _, rest = key.partition(".")
        if first not in payload:
            continue
        value = payload[first]
        if not rest:
            kept[first] = value
        elif isinstance(value, Mapping):
            kept[first] = kept.get(first, {}) | _kept(dict(value), [rest])
    return kept
