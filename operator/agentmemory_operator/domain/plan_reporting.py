"""A plan as people read it: each change in words, with its class and what it costs."""

from dataclasses import asdict
from typing import assert_never

from agentmemory_operator.domain.collection import Quantization
from agentmemory_operator.domain.plan_status import PlannedChange, PlanStatus
from agentmemory_operator.domain.planning import (
    Change,
    ChangeClass,
    CreateCollection,
    CreateIndexes,
    Plan,
    Rebuild,
    SetAlias,
    Tuned,
    UpdateHnsw,
    UpdateKeyword,
    UpdateOptimizers,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    UpdateVectors,
    WakeOptimizers,
    WriteMarker,
    class_of,
)
from agentmemory_operator.domain.safety import Refusal

COSTS = {
    ChangeClass.IN_PLACE: "at once",
    ChangeClass.REINDEX: "in the background, serving meanwhile",
    ChangeClass.REBUILD: "a new collection and every memory embedded or copied again",
}


ADD_KEYWORD = "add the keyword vector; memories that are there are found by words once the API has made theirs"
ALWAYS_THE_SAME = {WakeOptimizers: "wake the optimizers", WriteMarker: "write the ownership marker"}


def describe_change(change: Change) -> str:
    """Return one change in a person's words."""
    if isinstance(change, Tuned):
        return _describe_tuning(change)
    match change:
        case CreateCollection(physical, collection, _):
            return f"create collection {physical} ({collection.size} dimensions, {collection.distance})"
        case SetAlias(alias, physical):
            return f"point alias {alias} at {physical}"
        case (
            UpdateHnsw()
            | UpdateQuantization()
            | UpdateVectors()
            | UpdateOptimizers()
            | UpdateReplication()
            | UpdateStrictMode()
            | UpdateKeyword()
        ):
            return _describe_tuning(change)
        case CreateIndexes(indexes):
            return "index " + ", ".join(field for field, _ in indexes)
        case WakeOptimizers() | WriteMarker():
            return ALWAYS_THE_SAME[type(change)]
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
        case UpdateVectors(memory):
            return f"keep the vectors {memory}"
        case UpdateKeyword(has_keyword):
            return ADD_KEYWORD if has_keyword else "drop the keyword vectors"
        case _:
            return "set " + ", ".join(f"{name} {value}" for name, value in asdict(change).items() if value is not None)


def quantization_type(quantization: Quantization) -> str:
    """Return the name that a spec gives the kind of compressed copies."""
    return type(quantization).__name__.removesuffix("Quantization")


def _quantization_text(quantization: Quantization | None) -> str:
    if quantization is None:
        return "None"
    details = {name: value for name, value in asdict(quantization).items() if name != "always_ram"}
    named = ", ".join(f"{name} {value}" for name, value in details.items())
    return f"{quantization_type(quantization)} ({named})"


def plan_status(plan: Plan, refusal: Refusal | None) -> PlanStatus | None:
    """Return the plan as `status.plan` shows it, None where nothing is to do."""
    if not plan.changes:
        return None
    changes = tuple(_planned(change, is_held=refusal is not None and change in refusal.held) for change in plan.changes)
    return PlanStatus(digest=plan.digest, changes=changes, refusal=refusal.message if refusal else None)


def _planned(change: Change, *, is_held: bool) -> PlannedChange:
    class_ = class_of(change)
    named = (
        {"field": change.field, "from": change.observed, "to": change.desired} if isinstance(change, Rebuild) else {}
    )
    content = {"change": describe_change(change), "class": class_, "cost": COSTS[class_], "held": is_held}
    return PlannedChange.model_validate(content | named)
