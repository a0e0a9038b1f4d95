"""Collections and aliases through the official Qdrant client: control calls, where its cost does not matter."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from agentmemory_operator.adapters.qdrant_calls import CallWatch, watch_calls
from agentmemory_operator.adapters.qdrant_configuration import (
    KEYWORD_CONFIG,
    hnsw_of,
    observed_from,
    optimizers_of,
    placement_of,
    quantization_of,
    sparse_vectors_of,
    update_of,
    vector_of,
)
from agentmemory_operator.adapters.qdrant_sdk import (
    ApiException,
    AsyncQdrantClient,
    QdrantException,
    ResourceExhaustedResponse,
    ResponseHandlingException,
    UnexpectedResponse,
    models,
    without,
)
from agentmemory_operator.adapters.qdrant_transport import QdrantTransport
from agentmemory_operator.adapters.tls import trust_of, untrusted
from agentmemory_operator.domain.capabilities import Server
from agentmemory_operator.domain.collection import (
    KEYWORD_VECTOR,
    METADATA_KEY,
    Collection,
    Marker,
    Observed,
    marker_to_json,
)
from agentmemory_operator.domain.naming import ALIAS_PREFIX
from agentmemory_operator.domain.orphans import Holding
from agentmemory_operator.domain.planning import (
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateHnsw,
    UpdateKeyword,
    UpdateOptimizers,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    UpdateVectors,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.domain.records import TOMBSTONE_KEY
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected, StoreUnavailable

# What a server, or a proxy before it, answers where a later attempt may succeed.
FOR_NOW = (408, 429)
ANY_NAME = "agentmemory"


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn the client's exceptions into ours."""
    try:
        yield
    except UnexpectedResponse as exc:
        status = exc.status_code or 500
        message = f"Qdrant answered {status}: {exc.content.decode(errors='replace')[:300]}"
        if status == 404:
            raise NotFound(message) from exc
        if status < 500 and status not in FOR_NOW:
            raise StoreRejected(status, message) from exc
        raise StoreUnavailable(message) from exc
    except ResponseHandlingException as exc:
        told = "no answer in time" if isinstance(exc.source, TimeoutError) else exc.source
        raise untrusted(exc.source) or StoreUnavailable(f"Qdrant cannot be reached: {told}") from exc
    except ResourceExhaustedResponse as exc:
        raise StoreUnavailable(f"Qdrant answered 429: {exc}", retry_after_s=exc.retry_after_s) from exc
    except (ApiException, QdrantException) as exc:
        # Also a 429 whose Retry-After is a date.
        raise StoreUnavailable(f"Qdrant: {exc}") from exc
    except ValueError as exc:
        # A proxy's page in the place of an answer, or half of one.
        raise StoreUnavailable("what answers is not Qdrant: no JSON came back") from exc


class QdrantCollections:
    """Implements ports.CollectionStore.

    Args:
        url: http(s) address of the server.
        api_key: a key that may manage collections, or None.
        timeout_s: of each call.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: int = 10, ca_pem: str | None = None) -> None:
        self._has_jwt_rbac: dict[str, bool | None] = {}
        # The default Accept-Encoding makes the server compress, which costs 40 ms a call (docs/adr/0004).
        with warnings.catch_warnings(), without("fastembed"):
            # Whether a key may go over plain http is for the connection's author to say; a cluster's network often may.
            warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
            self._client = AsyncQdrantClient(
                url=url,
                port=None,
                api_key=api_key,
                timeout=timeout_s,
                check_compatibility=False,
                headers={"Accept-Encoding": "identity"},
                trust_env=False,
            )
        self._transport = QdrantTransport(trust=trust_of(url, ca_pem), timeout_s=timeout_s)
        self._transport.carry(self._client)

    def watch_calls(self, watch: CallWatch) -> None:
        """Do around each call what the watch says."""
        watch_calls(self._client, watch)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._transport.close()

    async def server(self) -> Server:
        """Return what the server says of itself, having shown it the key."""
        # One that was away in between may have been started with other settings.
        known, self._has_jwt_rbac = self._has_jwt_rbac, {}
        with mapped_errors():
            # The server tells anybody its version; whether it takes our key, only a call that needs one finds out.
            await self._client.collection_exists(ANY_NAME)
            version = str((await self._client.info()).version)
        has_jwt_rbac = known.get(version)
        if has_jwt_rbac is None:
            has_jwt_rbac = await self._jwt_rbac()
        # Others may ask at the same time: what they keep is theirs.
        self._has_jwt_rbac = {version: has_jwt_rbac}
        return Server(version, await self._peers(), has_jwt_rbac)

    async def _peers(self) -> int | None:
        try:
            with mapped_errors():
                status = await self._client.cluster_status()
        except (NotFound, StoreRejected):
            # A key for the collections alone may not ask.
            return None
        return len(status.peers) if isinstance(status, models.ClusterStatusOneOf1) else 1

    async def _jwt_rbac(self) -> bool | None:
        try:
            with mapped_errors():
                told = await self._client.http.service_api.telemetry(details_level=0)
        except AgentMemoryError:
            # Nothing depends on it; a server that is away is found by the other calls.
            return None
        return bool(told.result and told.result.app and told.result.app.jwt_rbac)

    async def observe(self, alias: str, likely: str) -> Observed | None:
        """Return what lies behind the alias, else the collection `likely` without alias, else None."""
        if info := await self._get(alias):
            physical = await self._behind(alias, likely)
            return observed_from(info, physical=physical, is_aliased=physical != alias)
        if info := await self._get(likely):
            return observed_from(info, physical=likely, is_aliased=False)
        return None

    async def _get(self, name: str) -> models.CollectionInfo | None:
        try:
            with mapped_errors():
                return await self._client.get_collection(name)
        except NotFound:
            return None

    async def _behind(self, alias: str, likely: str) -> str:
        """Return the physical name behind an alias; the alias itself for a plain collection of that name.

        `likely` is asked first, because the list of all aliases grows with the installation.
        """
        try:
            with mapped_errors():
                near = await self._client.get_collection_aliases(likely)
        except NotFound:
            near = models.CollectionsAliasesResponse(aliases=[])
        if any(item.alias_name == alias for item in near.aliases):
            return likely
        with mapped_errors():
            every = await self._client.get_aliases()
        return next((item.collection_name for item in every.aliases if item.alias_name == alias), alias)

    async def apply(self, physical: str, change: Change) -> None:
        """Carry out one change on the physical collection."""
        try:
            with mapped_errors():
                await self._apply(physical, change)
        except NotFound as exc:
            raise StoreUnavailable(f"{physical} went away meanwhile: {exc}") from exc

    async def _apply(self, physical: str, change: Change) -> None:
        match change:
            case CreateCollection(_, collection):
                await self._create(physical, collection)
            case CreateIndexes(indexes):
                await self._create_indexes(physical, indexes)
            case SetAlias(alias, _):
                action = models.CreateAlias(collection_name=physical, alias_name=alias)
                await self._client.update_collection_aliases([models.CreateAliasOperation(create_alias=action)])
            case (
                UpdateHnsw()
                | UpdateQuantization()
                | UpdateOptimizers()
                | WakeOptimizers()
                | UpdateReplication()
                | UpdateStrictMode()
                | WriteMarker()
            ):
                await self._client.update_collection(physical, **update_of(change))
            case UpdateVectors() | UpdateKeyword():
                await self._update_vectors(physical, change)
            case Rebuild():
                raise StoreRejected(400, f"{change.field} cannot change in place")
            case _:
                assert_never(change)

    async def _update_vectors(self, physical: str, change: UpdateVectors | UpdateKeyword) -> None:
        match change:
            case UpdateVectors(memory):
                await self._move_vectors(physical, memory)
            case UpdateKeyword(has_keyword=True):
                await self._client.create_vector_name(physical, KEYWORD_VECTOR, KEYWORD_CONFIG)
            case UpdateKeyword():
                await self._client.delete_vector_name(physical, KEYWORD_VECTOR)

    async def _move_vectors(self, physical: str, memory: str) -> None:
        # Told a tier by its new name, a server heeds the old one no more; one before 1.19 knows the old one alone.
        params = (await self._client.get_collection(physical)).config.params.vectors
        is_tiered = isinstance(params, models.VectorParams) and params.memory is not None
        await self._client.update_collection(physical, vectors_config={"": placement_of(memory, is_tiered=is_tiered)})

    async def _create(self, physical: str, collection: Collection) -> None:
        try:
            await self._client.create_collection(
                physical,
                vectors_config=vector_of(collection),
                sparse_vectors_config=sparse_vectors_of(collection),
                shard_number=collection.shard_number,
                replication_factor=collection.replication_factor,
                strict_mode_config=models.StrictModeConfig.model_validate(dict(collection.strict_mode))
                if collection.strict_mode
                else None,
                hnsw_config=hnsw_of(collection),
                optimizers_config=optimizers_of(collection),
                quantization_config=quantization_of(collection.quantization),
                metadata={METADATA_KEY: marker_to_json(collection.marker)} if collection.marker else None,
            )
        except UnexpectedResponse as exc:
            # 409: created by an attempt whose answer was lost, unless it is somebody else's.
            if exc.status_code != 409 or not await self._is_owned(physical, collection.marker):
                raise

    async def _is_owned(self, physical: str, marker: Marker | None) -> bool:
        info = await self._get(physical)
        live = observed_from(info, physical=physical, is_aliased=False).collection.marker if info else None
        return live is not None and marker is not None and live.is_same_object(marker)

    async def _create_indexes(self, physical: str, indexes: tuple[tuple[str, str], ...]) -> None:
        # Operations of a collection are applied in order, so waiting for the last waits for all.
        for number, (field, schema) in enumerate(indexes, 1):
            kind = models.PayloadSchemaType(schema)
            await self._client.create_payload_index(physical, field, kind, wait=number == len(indexes))

    async def count(self, physical: str) -> int:
        """Return the exact number of points that are not tombstones; 0 when the collection is gone."""
        alive = models.Filter(must=[models.IsEmptyCondition(is_empty=models.PayloadField(key=TOMBSTONE_KEY))])
        try:
            with mapped_errors():
                return (await self._client.count(physical, count_filter=alive, exact=True)).count
        except NotFound:
            return 0

    async def holdings(self) -> list[Holding]:
        """Return the collections whose name or alias is one that agents' collections have, sorted by name."""
        with mapped_errors():
            listed = await self._client.get_collections()
            aliased = await self._client.get_aliases()
        aliases: dict[str, list[str]] = {item.name: [] for item in listed.collections}
        for item in aliased.aliases:
            aliases.setdefault(item.collection_name, []).append(item.alias_name)
        found = [await self._holding(name, tuple(sorted(aliases[name]))) for name in sorted(aliases)]
        return [holding for holding in found if holding is not None]

    async def _holding(self, name: str, aliases: tuple[str, ...]) -> Holding | None:
        """Return one collection, None where it is none of an agent's or has gone meanwhile."""
        if not any(known.startswith(ALIAS_PREFIX) for known in (name, *aliases)):
            return None
        info = await self._get(name)
        if info is None:
            return None
        seen = observed_from(info, physical=name, is_aliased=bool(aliases))
        return Holding(
            physical=name,
            aliases=aliases,
            points=seen.points,
            size=seen.collection.size,
            distance=seen.collection.distance,
            marker=seen.collection.marker,
        )

    async def delete(self, physical: str) -> None:
        """Delete the collection and its aliases; the server answers 200 for one that is gone."""
        with mapped_errors():
            await self._client.delete_collection(physical)
