"""Desired x observed -> plan: what to do to a collection, as values that can be shown, refused, applied and tested.

| difference | change | class | meaning |
|---|---|---|---|
| no collection | CreateCollection, CreateIndexes, SetAlias | InPlace | one body carries shape, marker and embedding |
| collection without its alias | SetAlias | InPlace | a creation that was interrupted |
| hnsw | UpdateHnsw | Reindex | background, serves meanwhile |
| quantization | UpdateQuantization | Reindex | the engine replaces it whole |
| memory tier of the vectors | UpdateVectors | Reindex | the segments are rewritten |
| replication factor | UpdateReplication | Reindex | of a cluster where shards are copied, one at a time; else InPlace |
| optimizers | UpdateOptimizers | InPlace | |
| strict mode | UpdateStrictMode | InPlace | a limit that nobody asks for any more is lifted |
| payload index missing or of another type | CreateIndexes | InPlace | |
| state grey, and no figure changes | WakeOptimizers | InPlace | after a restart the engine waits for an update |
| marker | WriteMarker | InPlace | none on an adopted collection that a Rebuild would replace |
| keyword vector missing | UpdateKeyword | Reindex | empty for memories that are there; the API makes theirs |
| keyword vector that nobody asks for any more | UpdateKeyword | InPlace | made of the contents, so nothing is lost |
| size, distance, datatype, shard number, embedding identity | Rebuild | Rebuild | needs a new collection; held |
| replicas, of a cluster that has no calls for them | Rebuild | Rebuild | as above |
| language, window or weighing of the keyword text | Rebuild | Rebuild | as above |
| a plain collection, where an alias is asked for | Rebuild | Rebuild | part of any other Rebuild of it |

What the desired value leaves None is not compared. Indexes that nobody asked for stay.
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
    Observed,
    figures_in,
    limits_to_set,
)
from agentmemory_operator.collections.rules.estimate import shard_bytes
from agentmemory_operator.collections.rules.replicas import moves_to
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Prefixes
from agentmemory_operator.spec.presets.table import figures_to_set


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered changes; `physical` is the collection they are for."""

    physical: str
    changes: tuple[Change, ...]

    @property
    def digest(self) -> str:
        """First 12 hex digits of a SHA-256 over the changes; the same plan has the same digest.

        A marker's generation does not count: it follows every edit, and an approval has to outlive one of the ranking.
        Neither does waking, which comes and goes with restarts of Qdrant.
        """
        asked = (change for change in self.changes if not isinstance(change, WakeOptimizers))
        content = [[type(change).__name__, _content_of(change)] for change in asked]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=asdict).encode()).hexdigest()[:12]


# No plan has a record: it is what comes of one. Which peers have replicas may change while an approval waits.
_OUTSIDE = frozenset({"record", "moves", "bytes_each"})


def _content_of(change: Change) -> dict[str, Any]:
    if isinstance(change, WriteMarker):
        change = replace(change, marker=replace(change.marker, generation=0))
    content = {name: value for name, value in asdict(change).items() if name not in _OUTSIDE}
    return content | {"collection": figures_in(change.collection)} if isinstance(change, CreateCollection) else content


def has_rebuild(plan: Plan) -> bool:
    """Whether something of a plan needs a new collection."""
    return any(isinstance(change, Rebuild) for change in plan.changes)


def rebuild_digest(plan: Plan) -> str:
    """The digest of what of a plan needs a new collection: what else changes meanwhile makes no other of it."""
    return Plan(plan.physical, tuple(change for change in plan.changes if isinstance(change, Rebuild))).digest


def without_wake(plan: Plan) -> Plan:
    """The plan without waking: a woken collection may be called grey for a moment more."""
    return replace(plan, changes=tuple(change for change in plan.changes if not isinstance(change, WakeOptimizers)))


def plan_changes(
    desired: Collection, observed: Observed | None, *, alias: str, physical: str, wants_alias: bool = False
) -> Plan:
    """The changes that bring the observed collection to the desired one; empty when it is there.

    Args:
        desired: canonical; its marker is the object's.
        observed: None when nothing is behind the alias.
        alias: the stable name.
        physical: the name a new collection gets.
        wants_alias: a collection that bears the alias's name itself is to be put behind it.
    """
    if observed is None:
        create = CreateCollection(physical, replace(desired, indexes=()))
        return Plan(physical, (create, CreateIndexes(desired.indexes), SetAlias(alias, physical)))
    changes = list(_differences(desired, observed))
    if not observed.is_aliased and observed.physical != alias:
        changes.append(SetAlias(alias, observed.physical))
    if wants_alias and observed.physical == alias and not any(isinstance(change, Rebuild) for change in changes):
        changes.insert(0, BEHIND_ALIAS)
    return with_wake(Plan(observed.physical, tuple(changes)), observed)


def with_wake(plan: Plan, observed: Observed) -> Plan:
    """The plan with what wakes a grey collection; a change of a figure wakes it by itself."""
    if observed.state != GREY or any(isinstance(change, WAKING) for change in plan.changes):
        return plan
    return replace(plan, changes=(*plan.changes, WakeOptimizers()))


def _differences(desired: Collection, observed: Observed) -> Iterator[Change]:
    live = observed.collection
    rebuilds = (*_rebuilds(desired, live), *_immovable(desired, observed))
    yield from rebuilds
    yield from _tuned(desired, live)
    yield from _replication(desired, observed)
    if missing := tuple(index for index in desired.indexes if index not in live.indexes):
        yield CreateIndexes(missing)
    if desired.has_keyword and not live.has_keyword:
        yield UpdateKeyword(has_keyword=True)
    marker = _marker_to_write(desired, live, is_held=bool(rebuilds))
    if marker != live.marker and marker is not None:
        yield WriteMarker(marker)
    if live.has_keyword and not desired.has_keyword and marker is not None:
        # After the marker: who reads it writes no more into the vector.
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
    if limits := limits_to_set(desired.strict_mode, live.strict_mode):
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
    """Yield what makes two vector spaces of the same size."""
    if desired.provider != live.provider:
        yield Rebuild("embedding.provider", live.provider, desired.provider)
    if desired.model != live.model:
        yield Rebuild("embedding.model", str(live.model), str(desired.model))
    if desired.prefixes != live.prefixes:
        yield Rebuild("embedding.prefixes", _words_of(live.prefixes), _words_of(desired.prefixes))


def _words_of(prefixes: Prefixes | None) -> str:
    return f"query {prefixes.query!r}, passage {prefixes.passage!r}" if prefixes else "none"


def _replication(desired: Collection, observed: Observed) -> Iterator[UpdateReplication]:
    factor, placement = desired.replication_factor, observed.placement
    if factor is None or factor == observed.collection.replication_factor:
        return
    moves = moves_to(placement, factor) if placement else ()
    if placement is None or placement.can_move or not moves:
        yield UpdateReplication(factor, moves, shard_bytes(observed.collection, observed.points) if placement else 0)


def _immovable(desired: Collection, observed: Observed) -> Iterator[Rebuild]:
    """Yield what only another collection brings about where the cluster has no calls for replicas."""
    factor, placement = desired.replication_factor, observed.placement
    if factor is None or placement is None or placement.can_move:
        return
    if moves_to(placement, factor):
        fewest = min(len(states) for states in placement.shards.values())
        yield Rebuild("index.sharding.replicationFactor", str(fewest), str(factor))


def _keyword_rebuilds(desired: KeywordSource | None, live: KeywordSource | None) -> Iterator[Rebuild]:
    if desired is None or live is None:
        return
    if desired.language != live.language:
        yield Rebuild("index.keyword.language", live.language, desired.language)
    if desired.window != live.window:
        yield Rebuild("the keyword window", str(live.window), str(desired.window))


def _marker_to_write(desired: Collection, live: Collection, *, is_held: bool) -> Marker | None:
    """The marker the collection should carry.

    The generation alone is no reason to write: most generations change only the ranking. While a Rebuild is held the
    collection keeps saying what its vectors are.
    """
    if desired.marker is None:
        return None
    if live.marker is None:
        # What the vectors of an adopted collection mean is known only where it is as the object asks.
        return None if is_held else desired.marker
    if is_held:
        embedding, config_hash = live.marker.embedding, live.marker.config_hash
        keyword = desired.marker.keyword and (live.marker.keyword or desired.marker.keyword)
        shown = replace(desired.marker, embedding=embedding, config_hash=config_hash, keyword=keyword)
        return replace(shown, generation=live.marker.generation)
    kept = replace(desired.marker, generation=live.marker.generation)
    return live.marker if kept == live.marker else desired.marker
