"""Points in memory, behind our own port: conditions mean what the engine's do, each call is atomic."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.ports import Json

COMPARED = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}


def matches(condition: Mapping[str, Any], point_id: str, payload: Mapping[str, Any]) -> bool:
    """Tell whether a point meets a condition or a filter; one that is not known here is an error."""
    match condition:
        case {"has_id": ids}:
            return point_id in ids
        case {"is_empty": {"key": key}}:
            return not values_at(payload, key)
        case {"key": key, "match": {"value": wanted}}:
            return any(type(value) is type(wanted) and value == wanted for value in values_at(payload, key))
        case {"key": key, "match": {"any": wanted}}:
            return any(value in wanted for value in values_at(payload, key))
        case {"key": key, "range": bounds}:
            values = values_at(payload, key)
            return any(all(COMPARED[name](value, bound) for name, bound in bounds.items()) for value in values)
    assert set(condition) <= {"must", "should", "must_not"}, condition
    should = condition.get("should")
    return (
        all(matches(part, point_id, payload) for part in condition.get("must", ()))
        and not any(matches(part, point_id, payload) for part in condition.get("must_not", ()))
        and (should is None or any(matches(part, point_id, payload) for part in should))
    )


def values_at(payload: Mapping[str, Any], key: str) -> list[Any]:
    first, _, rest = key.partition(".")
    value = payload.get(first)
    if rest:
        return values_at(value, rest) if isinstance(value, Mapping) else []
    return list(value) if isinstance(value, list) else [] if value is None else [value]


@dataclass(slots=True)
class PointMemory:
    """Implements of ports.PointStore what writers use, for one collection.

    Attributes:
        payloads: by id.
    """

    payloads: dict[str, Json] = field(default_factory=dict)

    async def retrieve(self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> list[Json]:
        return [_point(id_, self.payloads[id_], keys) for id_ in ids if id_ in self.payloads]

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        # In the order of insertion: ids are random, and what a model does must not depend on them.
        found = [id_ for id_, payload in self.payloads.items() if matches(body.get("filter") or {}, id_, payload)]
        found = found[found.index(body["offset"]) :] if body.get("offset") in found else found
        limit = body.get("limit", 10)
        keys = body.get("with_payload", True)
        page = [_point(id_, self.payloads[id_], None if keys is True else keys or ()) for id_ in found[:limit]]
        return page, found[limit] if len(found) > limit else None

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
        for point in points:
            before = self.payloads.get(point["id"])
            if update_filter is not None and not _is_replaced(point["id"], before, update_filter, inserts=inserts):
                continue
            if not (insert_only and before is not None):
                self.payloads[point["id"]] = deepcopy(point["payload"])

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        for id_, before in self.payloads.items():
            if matches(filter_, id_, before):
                before.update(deepcopy(payload))

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        for operation in operations:
            if change := operation.get("set_payload"):
                await self.set_payload(collection, change["payload"], change["filter"], strong=strong)
                continue
            upsert = operation["upsert"]
            await self.upsert(collection, upsert["points"], update_filter=upsert["update_filter"], strong=strong)

    async def delete(self, collection: str, filter_: Json) -> None:
        self.payloads = {id_: row for id_, row in self.payloads.items() if not matches(filter_, id_, row)}


def _is_replaced(point_id: str, before: Json | None, update_filter: Json, *, inserts: bool) -> bool:
    return inserts if before is None else matches(update_filter, point_id, before)


def _point(id_: str, payload: Json, keys: Sequence[str] | None) -> Json:
    kept = payload if keys is None else {key: payload[key] for key in keys if key in payload}
    return {"id": id_, "payload": deepcopy(kept)}
