"""Collections and aliases of a Qdrant server, through the routes of the official client."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, assert_never
from urllib.parse import quote

from qdrant_client import models

from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks, do_nothing, raise_unexpected_state
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
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
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
    Observation,
    Tenant,
    is_placeholder,
    read_tenant,
)
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import Move, Placement
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.controllers.rules.orphans import CollectionSummary
from agentmemory_operator.errors import NotFound, ResponseTimeout, StoreRejected, StoreUnavailable
from agentmemory_operator.memories.rules.filters import STORED_FILTER
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from agentmemory_operator.spec.zones import KEY_CREATED_KEY

# Timeout for creating indexes. On Qdrant 1.18.3, 11 indexes took 0.4 s with 2 segments, and most of a minute with 256.
MAX_INDEX_WAIT_S = 120.0
# Maximum number of types that `count_unlisted` reports.
MAX_LISTED_TYPES = 8
_LIVES = {"is_empty": {"key": TOMBSTONE_KEY}}
_ALIVE = {"must": [_LIVES]}


class QdrantCollections:
    """Implements ports.CollectionStore. Connections and errors are those of `QdrantControl`."""

    def __init__(self, url: str, **options: Unpack[ControlOptions]) -> None:
        self._qdrant = QdrantControl(url, **options)
        self._replicas = QdrantReplicas(self._qdrant)
        self._server = QdrantServer(self._qdrant, self._replicas)

    def watch_calls(self, watch: CallHooks) -> None:
        """Run each later call inside the hooks of `watch`, which replace earlier ones."""
        self._qdrant.watch = watch

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._qdrant.close()

    async def server(self) -> ServerCapabilities:
        """Check the API key by a call, then return version, cluster size and resources of the server."""
        return await self._server.capabilities()

    async def process(self) -> Process:
        """Return the process metrics of the server.

        A field is None if its metric is missing; all are None if the key may not read metrics, or there are none.
        """
        return await self._server.process()

    async def read_owner(self, physical: str) -> Tenant | None:
        """Return the owner in the metadata of a collection or placeholder. None if it is deleted or names no owner."""
        metadata = await self._qdrant.metadata(physical)
        return None if metadata is None else read_tenant(metadata)

    async def peers(self) -> int:
        """Return the number of servers in the cluster; 1 for a single server, or if it is not reported."""
        return len(await self._replicas.peers() or ()) or 1

    async def placement(self, physical: str) -> Placement | None:
        """Return the replicas of a collection. None if the server is no cluster, or does not report them."""
        return await self._replicas.placement(physical)

    async def move_replica(self, physical: str, move: Move) -> bool:
        """Start to copy a replica, or drop one. Return False if the server lacks the API calls."""
        return await self._replicas.move(physical, move)

    async def observe(self, alias: str, likely_physical: str, *, is_linked: bool = False) -> Observation | None:
        """Observe the collection behind an alias, or else the collection `likely_physical`. None if neither exists.

        Args:
            alias: Alias of the agent. A plain collection of that name is observed too.
            likely_physical: Name of the collection that the alias should point to.
            is_linked: True if the caller has just pointed the alias to `likely_physical`: its target is not read.
        """
        if (info := await self._qdrant.describe(alias)) and not _is_placeholder(info):
            physical = likely_physical if is_linked else await self._behind(alias, likely_physical)
            # A name without an alias is a plain collection, unless the alias was deleted between the two calls: then
            # the name no longer exists.
            if physical != alias or is_linked or await self._qdrant.describe(alias):
                return await self._placed(_observed(info, physical=physical, is_aliased=physical != alias))
        info = await self._qdrant.describe(likely_physical) if likely_physical != alias else None
        if info is None or _is_placeholder(info):
            return None
        return await self._placed(_observed(info, physical=likely_physical, is_aliased=False))

    async def target(self, name: str) -> str:
        """Return the collection that an alias points to. Any other name is returned unchanged."""
        return await self._behind(name, name)

    async def _placed(self, observed: Observation) -> Observation | None:
        try:
            placement = await self._replicas.placement(observed.physical)
        except NotFound:
            return None
        is_copying = placement is not None and bool(placement.copying)
        return replace(observed, placement=placement, is_busy=observed.is_busy or is_copying)

    async def names(self) -> list[str]:
        """Return the names of all collections, placeholders included, sorted."""
        return await self._qdrant.names()

    async def _behind(self, alias: str, candidate: str) -> str:
        """Return the target of an alias, or the name itself if it is no alias.

        The aliases of `candidate` are read first, because the list of all aliases grows with the installation.
        """
        try:
            aliases = await self._aliases(candidate)
        except NotFound:
            aliases = {}
        return aliases.get(alias) or (await self._aliases()).get(alias, alias)

    async def _aliases(self, physical: str | None = None) -> dict[str, str]:
        """Return collection by alias, for one collection or for all."""
        routes = self._qdrant.aliases
        result = await result_of(
            routes.get_collection_aliases(physical) if physical else routes.get_collections_aliases()
        )
        with map_parse_errors():
            return {entry["alias_name"]: entry["collection_name"] for entry in result["aliases"]}

    async def apply(self, physical: str, change: Change) -> None:
        """Apply one change to a physical collection.

        Raises:
            StoreUnavailable: If the collection does not exist.
            StoreRejected: If the change needs a rebuild, or the server rejects it.
            AgentMemoryError: For a move of an alias, also errors of `after_move` and `report_unexpected_state`.
        """
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
        """Point an alias to a collection, then check that this process still leads and that the alias points there.

        The server accepts alias moves in any order, so a delayed call or another operator's call is not rejected. Only
        the current leader may act on the result.
        """
        action = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=physical, alias_name=alias)
        )
        watch = self._qdrant.watch
        after_move = watch.after_move if watch else do_nothing
        try:
            await self._qdrant.aliases.update_aliases(
                change_aliases_operation=models.ChangeAliasesOperation(actions=[action])
            )
        except StoreUnavailable:
            # Call the hook too, because the alias may have been moved although the call failed.
            await after_move()
            raise
        await after_move()
        target = (await self._aliases(physical)).get(alias)
        if target != physical:
            text = f"{alias} was switched to {physical} but points elsewhere: another operator or person moves it too"
            (watch.report_unexpected_state if watch else raise_unexpected_state)(text)

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
        # Choose the field by the collection: `on_disk` is ignored if `memory` is set, which servers before 1.19 lack.
        info = await result_of(self._qdrant.collections.get_collection(physical))
        with map_parse_errors():
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
            # On 409, an earlier attempt whose response was lost has created the collection, or another object owns it.
            if exc.status != 409 or not await self._is_owned(physical, collection.marker):
                raise

    async def _is_owned(self, physical: str, marker: Marker | None) -> bool:
        info = await self._qdrant.describe(physical)
        live_marker = _observed(info, physical=physical, is_aliased=False).collection.marker if info else None
        return live_marker is not None and marker is not None and live_marker.is_same_object(marker)

    async def _create_indexes(self, physical: str, indexes: tuple[tuple[str, str], ...]) -> None:
        # Wait only for the last index, because the server applies operations on a collection in order.
        create = self._qdrant.indexes.create_field_index
        for number, (field, schema) in enumerate(indexes, 1):
            index = models.CreateFieldIndex(field_name=field, field_schema=models.PayloadSchemaType(schema))
            is_last = number == len(indexes)
            await self._until_answered(partial(create, physical, wait=is_last, create_field_index=index))

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Repeat an idempotent call after each response timeout.

        The server continues a call that timed out. The repeated call waits behind it, and finds its result.

        Raises:
            ResponseTimeout: If there was no response within `MAX_INDEX_WAIT_S`. A later pass observes the result.
        """
        deadline_s = time.monotonic() + MAX_INDEX_WAIT_S
        while True:
            try:
                await call()
                return
            except ResponseTimeout:
                if time.monotonic() >= deadline_s:
                    raise

    async def drop_index(self, physical: str, field: str) -> None:
        """Drop the payload index of a field; the server responds 200 if there is none.

        Raises:
            StoreUnavailable: If the collection does not exist.
        """
        try:
            await self._qdrant.indexes.delete_field_index(physical, field, wait=True)
        except NotFound as exc:
            raise StoreUnavailable(f"{physical} disappeared during the call: {exc}") from exc

    async def count(self, physical: str) -> int:
        """Return the exact number of points that are not tombstones; 0 if the collection is deleted."""
        try:
            return await count_exactly(self._qdrant.read, _path(physical), _ALIVE)
        except NotFound:
            return 0

    async def count_memories(self, physical: str, *, exact: bool = True) -> int:
        """Return the number of memories as the API counts them, or an estimate if `exact` is False."""
        count = count_exactly if exact else estimate_count
        return await count(self._qdrant.read, _path(physical), STORED_FILTER)

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        """Return exact counts by type, pending writes included, for the 8 most frequent types not in `types`."""
        filter_ = _ALIVE | {"must_not": [{"key": "type", "match": {"any": list(types)}}]}
        return await facet_exactly(self._qdrant.read, _path(physical), "type", filter_, limit=MAX_LISTED_TYPES)

    async def count_sealed_before(self, physical: str, created_ms: int) -> int:
        """Return the exact count of memories, also pending ones, with a data key from before `created_ms` (Unix ms)."""
        filter_ = _ALIVE | {"must": [_LIVES, {"key": KEY_CREATED_KEY, "range": {"lt": created_ms}}]}
        return await count_exactly(self._qdrant.read, _path(physical), filter_)

    async def content_lengths(self, physical: str, limit: int) -> Sequence[int]:
        """Return the content length in characters of the first `limit` memories by point id.

        The length is 0 if the content is missing or encrypted.
        """
        body = {"filter": _ALIVE, "limit": limit, "with_payload": ["content"], "with_vector": False}
        result = await self._qdrant.read("POST", f"{_path(physical)}/points/scroll", body)
        with map_parse_errors():
            contents = [(point.get("payload") or {}).get("content") for point in result["points"]]
        return [len(content) if isinstance(content, str) else 0 for content in contents]

    async def list_agent_collections(self) -> list[CollectionSummary]:
        """Return the collections whose name or alias starts with the prefix of agent collections, sorted by name."""
        aliases: dict[str, list[str]] = {name: [] for name in await self.names()}
        aliased = await self._aliases()
        for alias, name in aliased.items():
            aliases.setdefault(name, []).append(alias)
        summaries = [await self._holding(name, tuple(sorted(aliases[name]))) for name in sorted(aliases)]
        return [summary for summary in summaries if summary is not None]

    async def _holding(self, name: str, aliases: tuple[str, ...]) -> CollectionSummary | None:
        """Describe one collection.

        None if neither its name nor an alias has the agents' prefix, it is a placeholder, or it was deleted since.
        """
        if not any(candidate.startswith(ALIAS_PREFIX) for candidate in (name, *aliases)):
            return None
        info = await self._qdrant.describe(name)
        if info is None or _is_placeholder(info):
            return None
        observed = _observed(info, physical=name, is_aliased=bool(aliases))
        return CollectionSummary(
            physical=name,
            aliases=aliases,
            points=observed.points,
            size=observed.collection.size,
            distance=observed.collection.distance,
            marker=observed.collection.marker,
            is_kept=PREVIOUS_KEY in (info["config"].get("metadata") or {}),
        )

    async def delete(self, physical: str) -> None:
        """Delete the collection and its aliases; the server responds 200 if it does not exist."""
        await self._qdrant.collections.delete_collection(physical)


def _path(name: str) -> str:
    return f"/collections/{quote(name, safe='')}"


def _is_placeholder(info: Mapping[str, Any]) -> bool:
    with map_parse_errors():
        return is_placeholder(info["config"].get("metadata"))


def _observed(info: Mapping[str, Any], *, physical: str, is_aliased: bool) -> Observation:
    with map_parse_errors():
        return observed_from(info, physical=physical, is_aliased=is_aliased)
