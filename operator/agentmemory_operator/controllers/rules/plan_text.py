"""Render a plan for users: each change as text, with its class and cost."""

import math
from dataclasses import asdict
from typing import assert_never

from agentmemory_operator.collections.rules.changes import (
    Change,
    ChangeClass,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    Tuned,
    UpdateKeyword,
    UpdatePayload,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    UpdateVectors,
    WakeOptimizers,
    WriteMarker,
    class_of,
)
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.estimate import MIB, Layout, estimate, quantized_in_ram
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.collections.rules.rebuild_costs import Costs
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.collections.rules.replicas import DropReplica, join_limited
from agentmemory_operator.spec.kinds.model_base import manifest_name
from agentmemory_operator.spec.kinds.status_plan import CostsStatus, PlannedChange, PlanStatus
from agentmemory_operator.spec.presets.table import Quantization

COSTS = {
    ChangeClass.IN_PLACE: "at once",
    ChangeClass.REINDEX: "in the background, while serving",
    ChangeClass.REBUILD: "a new collection; every memory is embedded or copied again",
}
REBUILD_COSTS = {
    True: "a new collection; every memory is embedded again",
    False: "a new collection; every memory is copied",
}


ADD_KEYWORD = "add the keyword vector; the API adds it to existing memories in the background"
FIXED_TEXTS = {WakeOptimizers: "wake the optimizers", WriteMarker: "write the ownership marker"}


def describe_change(change: Change) -> str:
    """Describe a change for users in one line, for example `index type, userId`."""
    if isinstance(change, Tuned):
        return _describe_tuning(change)
    match change:
        case CreateCollection(physical, collection, _):
            return f"create collection {physical} ({collection.size} dimensions, {collection.distance})"
        case SetAlias(alias, physical):
            return f"point alias {alias} at {physical}"
        case CreateIndexes(indexes):
            return "index " + ", ".join(field for field, _ in indexes)
        case WakeOptimizers() | WriteMarker():
            return FIXED_TEXTS[type(change)]
        case Rebuild(field, observed, desired):
            return f"rebuild for {field} {observed} -> {desired}"
        case _:
            assert_never(change)


def _describe_tuning(change: Tuned) -> str:
    match change:
        case UpdateQuantization(quantization):
            return f"set quantization {_quantization_text(quantization)}"
        case UpdateStrictMode(limits):
            return "limit " + ", ".join(f"{name} {value}" for name, value in limits)
        case UpdatePayload(is_on_disk):
            return "keep contents on disk" if is_on_disk else "keep contents in RAM too"
        case UpdateVectors(memory):
            return f"keep the vectors {memory}"
        case UpdateReplication():
            return _describe_replication(change)
        case UpdateKeyword(has_keyword):
            return ADD_KEYWORD if has_keyword else "drop the keyword vectors"
        case _:
            return "set " + ", ".join(f"{name} {value}" for name, value in asdict(change).items() if value is not None)


def _describe_replication(change: UpdateReplication) -> str:
    parts = [f"set replication_factor {change.replication_factor}"]
    if change.copies:
        parts.append(f"copy {join_limited([str(move) for move in change.copies])}")
    if drops := [str(move) for move in change.moves if isinstance(move, DropReplica)]:
        parts.append(f"drop {join_limited(drops)}")
    return "; ".join(parts)


def describe_compression(layout: Layout, memories: int) -> str | None:
    """Return a text about the RAM that a layout's compressed vectors use and save for a number of memories.

    None if the layout keeps no compressed vectors in RAM.
    """
    found = quantized_in_ram(layout, memories)
    if found is None or layout.quantization is None:
        return None
    kind, copies = quantization_type(layout.quantization), math.ceil(found.copies / MIB)
    text = f"index.quantization: {kind} copies take {copies:,} MiB of RAM for {memories:,} memories"
    if found.vectors_on_disk:
        return f"{text}, in place of {math.ceil(found.vectors_on_disk / MIB):,} MiB of vectors, which are on disk"
    return (
        f"{text}, in addition to {math.ceil(found.vectors / MIB):,} MiB of vectors, which also stay in RAM "
        f"(index.vectors.memory is Cached): searches get faster, and RAM is not saved"
    )


def describe_layout(collection: Collection) -> str:
    """Return the configuration of a new collection and its payload indexes as one line; unset figures are left out."""
    figures = {
        "dimensions": collection.size,
        "distance": collection.distance,
        "datatype": collection.datatype,
        **{manifest_name(name): value for name, value in asdict(collection.hnsw).items()},
        "quantization": _quantization_text(collection.quantization),
        "segments": collection.optimizers.default_segment_number or "one per CPU",
        "indexingThresholdKB": collection.optimizers.indexing_threshold_kb,
        "memory": collection.memory,
        "keywords": "on" if collection.has_keyword else "off",
    }
    text = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
    return f"index: {text}; indexes: {', '.join(f'{field} {type_}' for field, type_ in collection.indexes)}"


def describe_payload_memory(layout: Layout) -> str | None:
    """Return a text about the RAM that payloads use in an empty collection. None if payloads are on disk."""
    if not layout.has_payload_in_ram:
        return None
    empty = math.ceil(estimate(layout, 0).ram / MIB)
    return f"index.payload.onDisk: false uses {empty:,} MiB of RAM even when empty; true uses none"


def quantization_type(quantization: Quantization) -> str:
    """Return the value of `index.quantization.type` for a quantization."""
    return type(quantization).__name__.removesuffix("Quantization")


def _quantization_text(quantization: Quantization | None) -> str:
    if quantization is None:
        return "None"
    details = {name: value for name, value in asdict(quantization).items() if name != "always_ram"}
    text = ", ".join(f"{name} {value}" for name, value in details.items())
    return f"{quantization_type(quantization)} ({text})"


def plan_status(plan: Plan, refusal: Refusal | None) -> PlanStatus | None:
    """Build `status.plan`; None without changes."""
    if not plan.changes:
        return None
    withheld = refusal.withheld if refusal and not refusal.is_running else ()
    costs = refusal.costs if refusal else None
    return PlanStatus(
        digest=(refusal and refusal.digest) or plan.digest,
        changes=tuple(_planned(change, is_withheld=change in withheld, costs=costs) for change in plan.changes),
        costs=costs_status(costs) if costs else None,
        preset_revision=refusal.revision if refusal else None,
        refusal=refusal.message if refusal else None,
    )


def costs_status(costs: Costs) -> CostsStatus:
    """Build the status of costs. Minutes and MiB are rounded up, the price is rounded to 2 decimals."""
    return CostsStatus(
        points=costs.points,
        embedding_calls=costs.calls,
        tokens=costs.tokens,
        price=None if costs.price is None else round(costs.price, 2),
        minutes=math.ceil(costs.seconds / 60),
        disk_mib=math.ceil(costs.disk_bytes / MIB),
        ram_mib=math.ceil(costs.ram_bytes / MIB),
        nodes=costs.nodes,
        disk_per_node_mib=math.ceil(costs.disk_per_node / MIB),
        ram_per_node_mib=math.ceil(costs.ram_per_node / MIB),
    )


def _cost_of(change: Change, costs: Costs | None) -> str:
    class_ = class_of(change)
    if costs and class_ is ChangeClass.REBUILD:
        return REBUILD_COSTS[bool(costs.calls)]
    if not isinstance(change, UpdateReplication) or not change.copies:
        return COSTS[class_]
    mib = max(1, round(change.bytes_each / MIB))
    return f"{COSTS[class_]}; about {mib} MiB to copy for each of {len(change.copies)} replicas, one after another"


def _planned(change: Change, *, is_withheld: bool, costs: Costs | None) -> PlannedChange:
    class_, cost = class_of(change), _cost_of(change, costs)
    rebuild_fields = (
        {"field": change.field, "from": change.observed, "to": change.desired} if isinstance(change, Rebuild) else {}
    )
    content = {"change": describe_change(change), "class": class_, "cost": cost, "held": is_withheld}
    return PlannedChange.model_validate(content | rebuild_fields)
