"""A server's collections and the plans for them, as values; the golden plans in `tests/golden/plans`.

A case's `spec` and `observed.spec` override the smallest spec. `observed` is null, or contains the differences of the
collection from the one for `observed.spec`, in compact form.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, assert_never

from agentmemory_operator.collections.rules.changes import (
    WAKING,
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
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
    class_of,
)
from agentmemory_operator.collections.rules.collection import (
    Collection,
    Marker,
    Observation,
    effective_limits,
    marker_from_json,
    marker_to_json,
    settings_by_name,
)
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.controllers.rules.plan_text import describe_change
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    Preset,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)
from tests.support.spec.documents import memory_document
from tests.support.spec.golden import GOLDEN, read_table

ShapeT = TypeVar("ShapeT", Collection, Preset)

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
    "payloadOnDisk": "payload_on_disk",
    "shardNumber": "shard_number",
    "replicationFactor": "replication_factor",
    "hasKeyword": "has_keyword",
}


def marker_of(*, dimensions: int, provider: str = "none", model: str | None = None, **changes: Any) -> Marker:
    """Build the marker of an agent with vectors of a provider."""
    embedding = EmbeddingSource(provider=provider, model=model, dimensions=dimensions)
    marker = Marker(
        cluster_id="c",
        namespace="agents",
        name="probe",
        uid="uid-probe",
        generation=1,
        config_hash="h",
        preset_revision=1,
        embedding=embedding,
    )
    return replace(marker, **changes)


def observed_of(
    collection: Collection,
    *,
    physical: str = "agent_memory_probe__1",
    is_aliased: bool = True,
    points: int = 0,
    is_busy: bool = False,
    state: str | None = None,
    fault: str = "",
    record: RebuildRecord | None = None,
) -> Observation:
    """Build the observation of a collection on a server. Any state other than green is busy."""
    state = state or ("yellow" if is_busy else "green")
    return Observation(
        physical=physical,
        is_aliased=is_aliased,
        collection=collection,
        points=points,
        indexed=points,
        state=state,
        is_busy=state != "green",
        fault=fault,
        record=record,
    )


def with_changes(shape: ShapeT, **changes: Any) -> ShapeT:
    """Return a copy of a collection or a preset with changes.

    Fields of its graph and optimizers are given by their names.
    """
    for part in ("hnsw", "optimizers"):
        figures = getattr(shape, part)
        named = {figure.name: changes.pop(figure.name) for figure in fields(figures) if figure.name in changes}
        changes[part] = replace(figures, **named)
    return replace(shape, **changes)


def apply_change(live: Collection, change: Change) -> Collection:
    """Return the collection after a change, as the engine would apply it."""
    match change:
        case CreateCollection(_, collection):
            return collection
        case CreateIndexes(indexes):
            return replace(live, indexes=tuple(sorted((dict(live.indexes) | dict(indexes)).items())))
        case (
            UpdateHnsw()
            | UpdateVectors()
            | UpdatePayload()
            | UpdateKeyword()
            | UpdateOptimizers()
            | UpdateReplication()
        ):
            figures = {figure.name: getattr(change, figure.name) for figure in fields(change) if figure.compare}
            return with_changes(live, **{name: value for name, value in figures.items() if value is not None})
        case UpdateQuantization(quantization):
            return replace(live, quantization=quantization)
        case UpdateStrictMode(limits):
            return replace(live, strict_mode=tuple(sorted((dict(live.strict_mode or ()) | dict(limits)).items())))
        case WriteMarker(marker):
            return replace(live, marker=marker)
        case SetAlias() | WakeOptimizers() | Rebuild():
            return live
        case _:
            assert_never(change)


def apply_changes(observed: Observation | None, changes: Iterable[Change]) -> Observation | None:
    """Return the observation after the changes."""
    for change in changes:
        match change:
            case CreateCollection(physical, collection):
                observed = observed_of(collection, physical=physical, is_aliased=False)
            case SetAlias() if observed is not None:
                observed = replace(observed, is_aliased=True)
            case _ if observed is not None:
                state = "yellow" if observed.state == "grey" and isinstance(change, WAKING) else observed.state
                observed = replace(observed, collection=apply_change(observed.collection, change), state=state)
    return observed


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCase:
    """One golden case.

    Attributes:
        plan: Entries {class, change, with}; `with` is a part of the created collection, in compact form.
        held: Words that the refusal's message must contain; empty if nothing is refused.
        error: {reason, words} if the pass fails before a plan.
    """

    name: str
    desired: Collection
    observed: Observation | None
    last_points: int = 0
    last_physical: str | None = None
    drift_policy: str = "Correct"
    plan: tuple[Mapping[str, Any], ...] = ()
    held: tuple[str, ...] = ()
    error: Mapping[str, Any] = field(default_factory=dict)


def load_plan_cases() -> list[PlanCase]:
    """Return the cases of all files, in order."""
    entries = [entry for path in sorted((GOLDEN / "plans").iterdir()) for entry in read_table(f"plans/{path.name}")]
    return [_case(entry) for entry in entries]


def probe(spec: Mapping[str, Any] | None = None, *, generation: int = 1) -> AgentMemory:
    """Build the object agents/probe; `spec` overrides the smallest one."""
    return parse_agent_memory(memory_document("probe", metadata={"generation": generation}, **(spec or {})))


def desired_of(spec: Mapping[str, Any] | None = None, *, generation: int = 1) -> Collection:
    """Return the desired collection of agents/probe in cluster-1."""
    return desired_collection(probe(spec, generation=generation), cluster_id="cluster-1")


def small_form(collection: Collection) -> dict[str, Any]:
    """Return a collection in the compact form of cases."""
    found = settings_by_name(collection)
    form: dict[str, Any] = {name: found[attribute] for name, attribute in SMALL_FORM.items()}
    form["quantization"] = _quantization_form(collection.quantization)
    form["extraIndexes"] = dict(set(collection.indexes) - set(RETRIEVAL_INDEXES))
    form["strictMode"] = effective_limits(collection.strict_mode)
    form["marker"] = marker_to_json(collection.marker) if collection.marker else None
    return form


def plan_entries(plan: Plan, expected: tuple[Mapping[str, Any], ...]) -> list[dict[str, Any]]:
    """Return a plan in the form of cases. Of a created collection it contains the fields of the expected entry."""
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


def _observed(form: Mapping[str, Any]) -> Observation:
    made = desired_of(form.get("spec"))
    figures = {attribute: form[name] for name, attribute in SMALL_FORM.items() if name in form}
    indexes = {field: kind for field, kind in (dict(made.indexes) | form.get("indexes", {})).items() if kind}
    collection = with_changes(made, **figures, indexes=tuple(sorted(indexes.items())))
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
