"""The golden plans under `tests/golden/plans`: spec and observed collection in, plan out.

A case's `spec` and `observed.spec` are put over the smallest spec. `observed` is null, or says in small form how the
collection differs from the one that was made for `observed.spec`.
"""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from agentmemory_operator.domain.changes import CreateCollection, class_of
from agentmemory_operator.domain.collection import (
    BinaryQuantization,
    Collection,
    Observed,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
    marker_from_json,
    marker_to_json,
)
from agentmemory_operator.domain.desired import desired_collection
from agentmemory_operator.domain.limits import limits_in_force
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.plan_reporting import describe_change
from agentmemory_operator.domain.planning import Plan
from agentmemory_operator.domain.presets import RETRIEVAL_INDEXES
from agentmemory_operator.domain.resources import AgentMemory
from tests.support.fakes import memory_document, observed_of

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden" / "plans"
ALIAS = "agent_memory_probe"
SMALL_FORM = {
    "size": "size",
    "distance": "distance",
    "m": "m",
    "efConstruct": "ef_construct",
    "fullScanThresholdKB": "full_scan_threshold_kb",
    "defaultSegmentNumber": "default_segment_number",
    "indexingThresholdKB": "indexing_threshold_kb",
    "datatype": "datatype",
    "memory": "memory",
    "shardNumber": "shard_number",
    "replicationFactor": "replication_factor",
    "hasKeyword": "has_keyword",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCase:
    """One golden case.

    Attributes:
        plan: entries {class, change, with}; `with` is part of the collection that is created, in small form.
        held: what the refusal's message must contain; empty when nothing is refused.
        error: {reason, words} when the pass stops before a plan.
    """

    name: str
    desired: Collection
    observed: Observed | None
    last_points: int = 0
    last_physical: str | None = None
    drift_policy: str = "Correct"
    plan: tuple[Mapping[str, Any], ...] = ()
    held: tuple[str, ...] = ()
    error: Mapping[str, Any] = field(default_factory=dict)


def load_plan_cases() -> list[PlanCase]:
    """Return the cases of every file, in order."""
    entries = [entry for path in sorted(FOLDER.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]
    return [_case(entry) for entry in entries]


def probe(spec: Mapping[str, Any] | None = None, *, generation: int = 1) -> AgentMemory:
    """Return the object agents/probe with this spec over the smallest one."""
    return parse_agent_memory(memory_document("probe", metadata={"generation": generation}, **(spec or {})))


def desired_of(spec: Mapping[str, Any] | None = None, *, generation: int = 1) -> Collection:
    """Return the collection that agents/probe of cluster-1 asks for."""
    return desired_collection(probe(spec, generation=generation), cluster_id="cluster-1")


def small_form(collection: Collection) -> dict[str, Any]:
    """Return the collection as cases write it."""
    form: dict[str, Any] = {name: getattr(collection, attribute) for name, attribute in SMALL_FORM.items()}
    form["quantization"] = _quantization_form(collection.quantization)
    form["extraIndexes"] = dict(set(collection.indexes) - set(RETRIEVAL_INDEXES))
    form["strictMode"] = limits_in_force(collection.strict_mode)
    form["marker"] = marker_to_json(collection.marker) if collection.marker else None
    return form


def plan_entries(plan: Plan, expected: tuple[Mapping[str, Any], ...]) -> list[dict[str, Any]]:
    """Return the plan as cases write it; of a created collection what the expected entry names."""
    entries = []
    for number, change in enumerate(plan.changes):
        entry: dict[str, Any] = {"class": str(class_of(change)), "change": describe_change(change)}
        named = expected[number].get("with") if number < len(expected) else None
        if named is not None and isinstance(change, CreateCollection):
            form = small_form(change.collection)
            entry["with"] = {name: form[name] for name in named}
        entries.append(entry)
    return entries


def _quantization_form(quantization: Quantization | None) -> dict[str, Any] | None:
    match quantization:
        case None:
            return None
        case ScalarQuantization(quantile, ram):
            return {"quantile": quantile, "alwaysRam": ram}
        case ProductQuantization(compression, ram):
            return {"compression": compression, "alwaysRam": ram}
        case BinaryQuantization(encoding, query_encoding, ram):
            return {"encoding": encoding, "queryEncoding": query_encoding, "alwaysRam": ram}
        case TurboQuantization(bits, ram):
            return {"bits": bits, "alwaysRam": ram}


def _quantization_of(form: Mapping[str, Any] | None) -> Quantization | None:
    match form:
        case None:
            return None
        case {"quantile": quantile, "alwaysRam": ram}:
            return ScalarQuantization(quantile, ram)
        case {"compression": compression, "alwaysRam": ram}:
            return ProductQuantization(compression, ram)
        case {"encoding": encoding, "queryEncoding": query_encoding, "alwaysRam": ram}:
            return BinaryQuantization(encoding, query_encoding, ram)
        case {"bits": bits, "alwaysRam": ram}:
            return TurboQuantization(bits, ram)
    raise AssertionError(f"no quantization: {form}")


def _case(entry: Mapping[str, Any]) -> PlanCase:
    return PlanCase(
        name=entry["name"],
        desired=desired_of(entry.get("spec"), generation=2),
        observed=None if entry["observed"] is None else _observed(entry["observed"]),
        last_points=entry.get("lastPoints", 0),
        last_physical=entry.get("lastPhysical", f"{ALIAS}__1" if entry.get("lastPoints") else None),
        drift_policy=entry.get("driftPolicy", "Correct"),
        plan=tuple(entry.get("plan", ())),
        held=tuple(entry.get("held", ())),
        error=entry.get("error", {}),
    )


def _observed(form: Mapping[str, Any]) -> Observed:
    made = desired_of(form.get("spec"))
    figures = {attribute: form[name] for name, attribute in SMALL_FORM.items() if name in form}
    indexes = {field: kind for field, kind in (dict(made.indexes) | form.get("indexes", {})).items() if kind}
    collection = replace(made, **figures, indexes=tuple(sorted(indexes.items())))
    if "quantization" in form:
        collection = replace(collection, quantization=_quantization_of(form["quantization"]))
    if "marker" in form:
        base = marker_to_json(made.marker) if made.marker else {}
        marker = form["marker"]
        collection = replace(collection, marker=marker_from_json(base | marker) if marker else None)
    return observed_of(
        collection,
        physical=form.get("physical", f"{ALIAS}__1"),
        is_aliased=form.get("aliased", True),
        points=form.get("points", 0),
        state=form.get("state"),
    )
