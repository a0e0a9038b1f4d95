"""Plan the changes from an observed to a desired collection, as values that can be shown, refused, applied and tested.

| difference | change | class | meaning |
|---|---|---|---|
| no collection | CreateCollection, CreateIndexes, SetAlias | InPlace | one request for settings, marker and embedding |
| collection without its alias | SetAlias | InPlace | an interrupted creation |
| hnsw | UpdateHnsw | Reindex | in the background, while the collection serves |
| quantization | UpdateQuantization | Reindex | Qdrant replaces it as a whole |
| memory tier of the vectors | UpdateVectors | Reindex | the segments are rewritten |
| payload on disk or in RAM | UpdatePayload | Reindex | |
| replication factor | UpdateReplication | Reindex | if shards of a cluster are copied, one at a time; else InPlace |
| optimizers | UpdateOptimizers | InPlace | |
| strict mode | UpdateStrictMode | InPlace | a limit that is no longer configured is lifted |
| payload index missing or of another type | CreateIndexes | InPlace | |
| state grey, and no other change wakes the optimizers | WakeOptimizers | InPlace | grey: they wait after a restart |
| marker | WriteMarker | InPlace | not on an adopted collection that needs a Rebuild |
| keyword vector missing | UpdateKeyword | Reindex | empty for existing memories; the API fills it |
| keyword vector no longer configured | UpdateKeyword | InPlace | derived from the contents, so no data is lost |
| size, distance, datatype, shard number, embedding identity | Rebuild | Rebuild | needs a new collection |
| replicas, in a cluster without an API to move them | Rebuild | Rebuild | as above |
| language or window of the keyword text | Rebuild | Rebuild | as above |
| a plain collection, if an alias is required | Rebuild | Rebuild | only without another Rebuild, which includes it |

Fields that are None in the desired value are not compared, except quantization: None turns it off. Indexes that are not
configured stay.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentmemory_operator.collections.rules.changes import (
    BEHIND_ALIAS,
    WAKING,
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    Tuned,
    UpdateHnsw,
    UpdateKeyword,
    UpdateOptimizers,
    UpdatePayload,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    UpdateVectors,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import (
    GREY,
    Collection,
    KeywordSource,
    Marker,
    Observation,
    diff_limits,
    settings_by_name,
)
from agentmemory_operator.collections.rules.estimate import shard_bytes
from agentmemory_operator.collections.rules.replicas import plan_moves
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Prefixes
from agentmemory_operator.spec.presets.table import figures_to_set


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes of the collection `physical`, in the order in which a pass applies them."""

    physical: str
    changes: tuple[Change, ...]

    @property
    def digest(self) -> str:
        """First 12 hex digits of a SHA-256 over the changes. Equal plans have equal digests.

        The marker's generation is left out: it changes with every edit, and an approval must survive an edit of the
        ranking. WakeOptimizers is left out too, because it depends on restarts of Qdrant.
        """
        relevant = (change for change in self.changes if not isinstance(change, WakeOptimizers))
        content = [[type(change).__name__, _content_of(change)] for change in relevant]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=asdict).encode()).hexdigest()[:12]


# Fields that the digest leaves out. A rebuild adds its record later, and replicas may move while a plan waits.
_OUTSIDE = frozenset({"record", "moves", "bytes_each"})


def _content_of(change: Change) -> dict[str, Any]:
    if isinstance(change, WriteMarker):
        change = replace(change, marker=replace(change.marker, generation=0))
    content = {name: value for name, value in asdict(change).items() if name not in _OUTSIDE}
    return (
        content | {"collection": settings_by_name(change.collection)}
        if isinstance(change, CreateCollection)
        else content
    )


def has_rebuild(plan: Plan) -> bool:
    """Return whether a plan has a change that needs a new collection."""
    return any(isinstance(change, Rebuild) for change in plan.changes)


def rebuild_digest(plan: Plan) -> str:
    """Return the digest of a plan's Rebuild only, which does not depend on the plan's other changes."""
    return Plan(plan.physical, tuple(change for change in plan.changes if isinstance(change, Rebuild))).digest


def drop_wake(plan: Plan) -> Plan:
    """Return the plan without WakeOptimizers: Qdrant may report grey for a moment after this change is applied."""
    return replace(plan, changes=tuple(change for change in plan.changes if not isinstance(change, WakeOptimizers)))


def plan_changes(
    desired: Collection, observed: Observation | None, *, alias: str, physical: str, needs_alias: bool = False
) -> Plan:
    """Plan the changes from the observed to the desired collection; empty if there are no differences.

    Args:
        desired: Canonical desired collection, with the object's marker.
        observed: None if there is no collection behind the alias.
        alias: Name by which clients address the collection.
        physical: Name for a new collection. Unused if one is observed.
        needs_alias: True if a collection with the alias's own name must be replaced by one behind the alias.
    """
    if observed is None:
        create = CreateCollection(physical, replace(desired, indexes=()))
        return Plan(physical, (create, CreateIndexes(desired.indexes), SetAlias(alias, physical)))
    changes = list(_differences(desired, observed))
    if not observed.is_aliased and observed.physical != alias:
        changes.append(SetAlias(alias, observed.physical))
    if needs_alias and observed.physical == alias and not any(isinstance(change, Rebuild) for change in changes):
        changes.insert(0, BEHIND_ALIAS)
    return add_wake(Plan(observed.physical, tuple(changes)), observed)


def add_wake(plan: Plan, observed: Observation) -> Plan:
    """Add WakeOptimizers for a grey collection, unless another change wakes the optimizers anyway."""
    if observed.state != GREY or any(isinstance(change, WAKING) for change in plan.changes):
        return plan
    return replace(plan, changes=(*plan.changes, WakeOptimizers()))


def _differences(desired: Collection, observed: Observation) -> Iterator[Change]:
    live = observed.collection
    rebuilds = (*_rebuilds(desired, live), *_immovable(desired, observed))
    yield from rebuilds
    yield from _tuned(desired, live)
    yield from _replication(desired, observed)
    if missing := tuple(index for index in desired.indexes if index not in live.indexes):
        yield CreateIndexes(missing)
    if desired.has_keyword and not live.has_keyword:
        yield UpdateKeyword(has_keyword=True)
    marker = _marker_to_write(desired, live, is_withheld=bool(rebuilds))
    if marker != live.marker and marker is not None:
        yield WriteMarker(marker)
    if live.has_keyword and not desired.has_keyword and marker is not None:
        # Drop the vector after the marker was changed: processes that have read the marker no longer write the vector.
        yield UpdateKeyword(has_keyword=False)


def _tuned(desired: Collection, live: Collection) -> Iterator[Tuned]:
    if hnsw := figures_to_set(desired.hnsw, live.hnsw):
        yield UpdateHnsw(**hnsw)
    if desired.quantization != live.quantization:
        yield UpdateQuantization(desired.quantization)
    if desired.memory is not None and desired.memory != live.memory:
        yield UpdateVectors(desired.memory)
    if desired.payload_on_disk is not None and desired.payload_on_disk != live.payload_on_disk:
        yield UpdatePayload(desired.payload_on_disk)
    if optimizers := figures_to_set(desired.optimizers, live.optimizers):
        yield UpdateOptimizers(**optimizers)
    if limits := diff_limits(desired.strict_mode, live.strict_mode):
        yield UpdateStrictMode(limits)


def _rebuilds(desired: Collection, live: Collection) -> Iterator[Rebuild]:
    if desired.size != live.size:
        yield Rebuild("embedding.dimensions", str(live.size), str(desired.size))
    if desired.distance != live.distance:
        yield Rebuild("index.distance", live.distance, desired.distance)
    if desired.datatype is not None and desired.datatype != live.datatype:
        yield Rebuild("index.vectors.datatype", str(live.datatype), desired.datatype)
    if desired.shard_number is not None and desired.shard_number != live.shard_number:
        yield Rebuild("index.sharding.shardNumber", str(live.shard_number), str(desired.shard_number))
    if desired.marker and live.marker:
        yield from _embedding_rebuilds(desired.marker.embedding, live.marker.embedding)
        yield from _keyword_rebuilds(desired.marker.keyword, live.marker.keyword)


def _embedding_rebuilds(desired: EmbeddingSource, live: EmbeddingSource) -> Iterator[Rebuild]:
    """Yield differences that change the vector space without changing the size."""
    if desired.provider != live.provider:
        yield Rebuild("embedding.provider", live.provider, desired.provider)
    if desired.model != live.model:
        yield Rebuild("embedding.model", str(live.model), str(desired.model))
    if desired.prefixes != live.prefixes:
        yield Rebuild("embedding.prefixes", _words_of(live.prefixes), _words_of(desired.prefixes))


def _words_of(prefixes: Prefixes | None) -> str:
    return f"query {prefixes.query!r}, passage {prefixes.passage!r}" if prefixes else "none"


def _replication(desired: Collection, observed: Observation) -> Iterator[UpdateReplication]:
    factor, placement = desired.replication_factor, observed.placement
    if factor is None or factor == observed.collection.replication_factor:
        return
    moves = plan_moves(placement, factor) if placement else ()
    if placement is None or placement.can_move or not moves:
        yield UpdateReplication(factor, moves, shard_bytes(observed.collection, observed.points) if placement else 0)


def _immovable(desired: Collection, observed: Observation) -> Iterator[Rebuild]:
    """Yield a difference in replicas that needs a new collection, because the cluster has no API to move them."""
    factor, placement = desired.replication_factor, observed.placement
    if factor is None or placement is None or placement.can_move:
        return
    if plan_moves(placement, factor):
        min_replicas = min(len(states) for states in placement.shards.values())
        yield Rebuild("index.sharding.replicationFactor", str(min_replicas), str(factor))


def _keyword_rebuilds(desired: KeywordSource | None, live: KeywordSource | None) -> Iterator[Rebuild]:
    if desired is None or live is None:
        return
    if desired.language != live.language:
        yield Rebuild("index.keyword.language", live.language, desired.language)
    if desired.window != live.window:
        yield Rebuild("the keyword window", str(live.window), str(desired.window))


def _marker_to_write(desired: Collection, live: Collection, *, is_withheld: bool) -> Marker | None:
    """Return the marker that the collection should have, or None for no marker.

    A new generation is not written without another change: most generations change only the ranking. While a Rebuild is
    withheld, the marker keeps the embedding of the existing vectors.
    """
    if desired.marker is None:
        return None
    if live.marker is None:
        # Mark an adopted collection only if it needs no Rebuild: otherwise its embedding is unknown.
        return None if is_withheld else desired.marker
    if is_withheld:
        embedding, config_hash = live.marker.embedding, live.marker.config_hash
        keyword = desired.marker.keyword and (live.marker.keyword or desired.marker.keyword)
        written = replace(desired.marker, embedding=embedding, config_hash=config_hash, keyword=keyword)
        return replace(written, generation=live.marker.generation)
    candidate = replace(desired.marker, generation=live.marker.generation)
    return live.marker if candidate == live.marker else desired.marker
