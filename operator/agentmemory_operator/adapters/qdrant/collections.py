"""Collections and aliases, by the calls of Qdrant's own client."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, assert_never
from urllib.parse import quote

from qdrant_client import models

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.calls import CallWatch, doubted, nothing
from agentmemory_operator.adapters.qdrant.configuration import (
    KEYWORD_PARAMS,
    Patched,
    creation_of,
    observed_from,
    placement_of,
    update_of,
)
from agentmemory_operator.adapters.qdrant.control import ControlOptions, QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.counts import count_exactly, estimate_count, facet_exactly
from agentmemory_operator.adapters.qdrant.replicas import QdrantReplicas
from agentmemory_operator.adapters.qdrant.server import QdrantServer
from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.collections.rules.changes import (
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateKeyword,
    UpdateVectors,
)
from agentmemory_operator.collections.rules.collection import (
    KEYWORD_VECTOR,
    PREVIOUS_KEY,
    Collection,
    Marker,
    Observed,
    Tenant,
    is_placeholder,
    tenant_in,
)
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import Move, Placement
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.controllers.rules.orphans import Holding
from agentmemory_operator.errors import NoAnswer, NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.memories.rules.filters import STORED
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from agentmemory_operator.spec.zones import KEY_MADE_KEY

# 11 indexes on 2 segments took 0.4 s on Qdrant 1.18.3; on 256, the most that there may be, that is most of a minute.
SLOW_S = 120.0
# Types beyond the most frequent of those that no object lists are not told.
TOLD_TYPES = 8
_LIVES = {"is_empty": {"key": TOMBSTONE_KEY}}
_ALIVE = {"must": [_LIVES]}


class QdrantCollections:
    """Implements ports.CollectionStore; reaches the server as `QdrantControl`, and raises as that."""

    def __init__(self, url: str, **options: Unpack[ControlOptions]) -> None:
        self._qdrant = QdrantControl(url, **options)
        self._replicas = QdrantReplicas(self._qdrant)
        self._server = QdrantServer(self._qdrant, self._replicas)

    def watch_calls(self, watch: CallWatch) -> None:
        """Do around each call what the watch says."""
        self._qdrant.watch = watch

    async def close(self) -> None:
        """Close the connections."""
        await self._qdrant.close()

    async def server(self) -> ServerCapabilities:
        """What the server says of itself, having shown it the key."""
        return await self._server.capabilities()

    async def process(self) -> Process:
        """What the server says of its process; nothing where its key may not ask, or it has no metrics."""
        return await self._server.process()

    async def tenant_of(self, physical: str) -> Tenant | None:
        """Whose a collection or a placeholder says that it is; None where it is gone, or does not say so."""
        metadata = await self._qdrant.metadata(physical)
        return None if metadata is None else tenant_in(metadata)

    async def peers(self) -> int:
        """How many servers there are; 1 of one that is alone or does not tell."""
        return len(await self._replicas.peers() or ()) or 1

    async def placement(self, physical: str) -> Placement | None:
        """Where a collection's replicas are; None of a server that is alone or does not tell."""
        return await self._replicas.placement(physical)

    async def move_replica(self, physical: str, move: Move) -> bool:
        """Begin to copy a replica, or drop one; return False where the server has no calls for that."""
        return await self._replicas.move(physical, move)

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observed | None:
        """What lies behind the alias, else the collection `likely` without alias, else None.

        Args:
            is_linked: the alias was pointed at `likely` a moment ago: where it leads is not asked.
        """
        if (info := await self._qdrant.describe(alias)) and not _is_placeholder(info):
            physical = likely if is_linked else await self._behind(alias, likely)
            # Without an alias it is a plain collection, unless it was deleted between the two calls.
            if physical != alias or is_linked or await self._qdrant.describe(alias):
                return await self._placed(_observed(info, physical=physical, is_aliased=physical != alias))
        info = await self._qdrant.describe(likely) if likely != alias else None
        if info is None or _is_placeholder(info):
            return None
        return await self._placed(_observed(info, physical=likely, is_aliased=False))

    async def target(self, name: str) -> str:
        """The collection that an alias points to; any other name is its own."""
        return await self._behind(name, name)

    async def _placed(self, observed: Observed) -> Observed | None:
        try:
            placement = await self._replicas.placement(observed.physical)
        except NotFound:
            return None
        is_copying = placement is not None and bool(placement.copying)
        return replace(observed, placement=placement, is_busy=observed.is_busy or is_copying)

    async def names(self) -> list[str]:
        """The names of all collections, placeholders included, sorted."""
        return await self._qdrant.names()

    async def _behind(self, alias: str, likely: str) -> str:
        """The physical name behind an alias; the alias itself for a plain collection of that name.

        `likely` is asked first, because the list of all aliases grows with the installation.
        """
        try:
            near = await self._aliases(likely)
        except NotFound:
            near = {}
        return near.get(alias) or (await self._aliases()).get(alias, alias)

    async def _aliases(self, physical: str | None = None) -> dict[str, str]:
        """The collections by their aliases, of one or of all."""
        routes = self._qdrant.aliases
        told = await result_of(
            routes.get_collection_aliases(physical) if physical else routes.get_collections_aliases()
        )
        with understood():
            return {entry["alias_name"]: entry["collection_name"] for entry in told["aliases"]}

    async def apply(self, physical: str, change: Change) -> None:
        """Carry out one change on the physical collection."""
        try:
            await self._apply(physical, change)
        except NotFound as exc:
            raise StoreUnavailable(f"{physical} disappeared during the call: {exc}") from exc

    async def _apply(self, physical: str, change: Change) -> None:
        if isinstance(change, Patched):
            await self._update(physical, update_of(change))
            return
        match change:
            case CreateCollection(_, collection, record):
                await self._create(physical, collection, record)
            case CreateIndexes(indexes):
                await self._create_indexes(physical, indexes)
            case SetAlias(alias, _):
                await self._set_alias(alias, physical)
            case UpdateVectors() | UpdateKeyword():
                await self._update_vectors(physical, change)
            case Rebuild():
                raise StoreRejected(400, f"{change.field} cannot change in place")
            case _:
                assert_never(change)

    async def _set_alias(self, alias: str, physical: str) -> None:
        """Point an alias at a collection, and see that it leads there and that this process may still say so.

        The server moves an alias for whoever asks: a call that comes late, or from another operator, is not refused.
        What became of it only whoever leads now may judge.
        """
        action = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=physical, alias_name=alias)
        )
        watch = self._qdrant.watch
        after_move = watch.after_move if watch else nothing
        try:
            await self._qdrant.aliases.update_aliases(
                change_aliases_operation=models.ChangeAliasesOperation(actions=[action])
            )
        except StoreUnavailable:
            # It may have been moved all the same.
            await after_move()
            raise
        await after_move()
        found = (await self._aliases(physical)).get(alias)
        if found != physical:
            doubt = f"{alias} was switched to {physical} but points elsewhere: another operator or person moves it too"
            (watch.doubt if watch else doubted)(doubt)

    async def _update_vectors(self, physical: str, change: UpdateVectors | UpdateKeyword) -> None:
        routes = self._qdrant.collections
        match change:
            case UpdateVectors(memory):
                await self._move_vectors(physical, memory)
            case UpdateKeyword(has_keyword=True):
                config = models.SparseVectorNameConfig(sparse=models.SparseVectorConfig(**KEYWORD_PARAMS))
                await routes.create_vector_name(physical, KEYWORD_VECTOR, wait=True, vector_name_config=config)
            case UpdateKeyword():
                await routes.delete_vector_name(physical, KEYWORD_VECTOR, wait=True)

    async def _move_vectors(self, physical: str, memory: str) -> None:
        # Told a tier by its new name, a server heeds the old one no more; one before 1.19 knows the old one alone.
        info = await result_of(self._qdrant.collections.get_collection(physical))
        with understood():
            is_tiered = info["config"]["params"]["vectors"].get("memory") is not None
        await self._update(physical, {"vectors": {"": placement_of(memory, is_tiered=is_tiered)}})

    async def _update(self, physical: str, body: Mapping[str, Any]) -> None:
        await self._qdrant.collections.update_collection(physical, update_collection=models.UpdateCollection(**body))

    async def _create(self, physical: str, collection: Collection, record: RebuildRecord | None) -> None:
        try:
            await self._qdrant.collections.create_collection(
                physical, create_collection=models.CreateCollection(**creation_of(collection, record))
            )
        except StoreRejected as exc:
            # 409: created by an attempt whose answer was lost, unless it is somebody else's.
            if exc.status != 409 or not await self._is_owned(physical, collection.marker):
                raise

    async def _is_owned(self, physical: str, marker: Marker | None) -> bool:
        info = await self._qdrant.describe(physical)
        live = _observed(info, physical=physical, is_aliased=False).collection.marker if info else None
        return live is not None and marker is not None and live.is_same_object(marker)

    async def _create_indexes(self, physical: str, indexes: tuple[tuple[str, str], ...]) -> None:
        # Operations of a collection are applied in order, so waiting for the last waits for all.
        create = self._qdrant.indexes.create_field_index
        for number, (field, schema) in enumerate(indexes, 1):
            index = models.CreateFieldIndex(field_name=field, field_schema=models.PayloadSchemaType(schema))
            is_last = number == len(indexes)
            await self._until_answered(partial(create, physical, wait=is_last, create_field_index=index))

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Make a call that may be made twice, and again as long as no answer comes in time.

        The server goes on with what it was asked; the same again waits behind it, and finds it done.

        Raises:
            NoAnswer: `SLOW_S` were not enough; what is under way then, a later pass finds.
        """
        until_s = time.monotonic() + SLOW_S
        while True:
            try:
                await call()
                return
            except NoAnswer:
                if time.monotonic() >= until_s:
                    raise

    async def drop_index(self, physical: str, field: str) -> None:
        """Drop the payload index of a field; the server answers 200 where there is none."""
        try:
            await self._qdrant.indexes.delete_field_index(physical, field, wait=True)
        except NotFound as exc:
            raise StoreUnavailable(f"{physical} disappeared during the call: {exc}") from exc

    async def count(self, physical: str) -> int:
        """The exact number of points that are not tombstones; 0 when the collection is gone."""
        try:
            return await count_exactly(self._qdrant.read, _path(physical), _ALIVE)
        except NotFound:
            return 0

    async def count_memories(self, physical: str, *, exact: bool = True) -> int:
        """The number of memories, as the API counts them."""
        count = count_exactly if exact else estimate_count
        return await count(self._qdrant.read, _path(physical), STORED)

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        """The exact numbers of memories of each type that is none of `types`, of the most frequent of them."""
        others = _ALIVE | {"must_not": [{"key": "type", "match": {"any": list(types)}}]}
        return await facet_exactly(self._qdrant.read, _path(physical), "type", others, limit=TOLD_TYPES)

    async def count_sealed_before(self, physical: str, made_ms: int) -> int:
        """The exact number of memories that are sealed with a data key made before a time."""
        before = _ALIVE | {"must": [_LIVES, {"key": KEY_MADE_KEY, "range": {"lt": made_ms}}]}
        return await count_exactly(self._qdrant.read, _path(physical), before)

    async def content_lengths(self, physical: str, limit: int) -> Sequence[int]:
        """How many characters the contents of the first `limit` memories by id have, 0 of one without."""
        body = {"filter": _ALIVE, "limit": limit, "with_payload": ["content"], "with_vector": False}
        told = await self._qdrant.read("POST", f"{_path(physical)}/points/scroll", body)
        with understood():
            contents = [(point.get("payload") or {}).get("content") for point in told["points"]]
        return [len(content) if isinstance(content, str) else 0 for content in contents]

    async def holdings(self) -> list[Holding]:
        """The collections whose name or alias is one that agents' collections have, sorted by name."""
        aliases: dict[str, list[str]] = {name: [] for name in await self.names()}
        aliased = await self._aliases()
        for alias, name in aliased.items():
            aliases.setdefault(name, []).append(alias)
        found = [await self._holding(name, tuple(sorted(aliases[name]))) for name in sorted(aliases)]
        return [holding for holding in found if holding is not None]

    async def _holding(self, name: str, aliases: tuple[str, ...]) -> Holding | None:
        """One collection, None where it is none of an agent's or has gone meanwhile."""
        if not any(known.startswith(ALIAS_PREFIX) for known in (name, *aliases)):
            return None
        info = await self._qdrant.describe(name)
        if info is None or _is_placeholder(info):
            return None
        seen = _observed(info, physical=name, is_aliased=bool(aliases))
        return Holding(
            physical=name,
            aliases=aliases,
            points=seen.points,
            size=seen.collection.size,
            distance=seen.collection.distance,
            marker=seen.collection.marker,
            is_kept=PREVIOUS_KEY in (info["config"].get("metadata") or {}),
        )

    async def delete(self, physical: str) -> None:
        """Delete the collection and its aliases; the server answers 200 for one that is gone."""
        await self._qdrant.collections.delete_collection(physical)


def _path(name: str) -> str:
    return f"/collections/{quote(name, safe='')}"


def _is_placeholder(info: Mapping[str, Any]) -> bool:
    with understood():
        return is_placeholder(info["config"].get("metadata"))


def _observed(info: Mapping[str, Any], *, physical: str, is_aliased: bool) -> Observed:
    with understood():
        return observed_from(info, physical=physical, is_aliased=is_aliased)
