"""Drift: differences from the desired collection that no change of the spec explains.

The config hash in a collection's marker identifies the configuration that was applied last. If it equals the desired
hash, the operator has caused none of the differences. A missing alias, an outdated marker and paused optimizers are not
drift, because the operator repairs these under every policy.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic.alias_generators import to_camel

from agentmemory_operator.collections.rules.changes import (
    BEHIND_ALIAS,
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateStrictMode,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import Collection, Observation, settings_by_name
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.spec.kinds.model_base import manifest_name
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers


class DriftPolicy(StrEnum):
    """Handling of drift: correct it, only report it in the status, or ignore it. See docs/drift.md."""

    CORRECT = "Correct"
    REPORT = "Report"
    IGNORE = "Ignore"


OWN_CHANGES = (CreateCollection, SetAlias, WakeOptimizers, WriteMarker)

SPEC_PATHS = {
    **{figure.name: f"index.hnsw.{manifest_name(figure.name)}" for figure in fields(Hnsw)},
    **{figure.name: f"index.optimizers.{manifest_name(figure.name)}" for figure in fields(Optimizers)},
    "quantization": "index.quantization",
    "memory": "index.vectors.memory",
    "payload_on_disk": "index.payload.onDisk",
    "has_keyword": "index.keyword.enabled",
    "replication_factor": "index.sharding.replicationFactor",
}
NO_INDEX = "None"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, as text.

    Attributes:
        path: Path of the field below `spec`, for example `index.hnsw.m`.
        desired, observed: Values as text. "None" if a value or index is missing.
    """

    path: str
    desired: str
    observed: str

    def __str__(self) -> str:
        return f"{self.path} is {self.observed}, expected {self.desired}"


def is_drift(desired: Collection, observed: Observation | None, *, last_physical: str | None) -> bool:
    """Return whether differences between a collection and `desired` are drift: its marker has the desired config hash.

    False for an interrupted creation, which has no alias: the alias is set last.
    """
    live, marker = observed.collection.marker if observed else None, desired.marker
    if observed is None or live is None or marker is None:
        return False
    is_finished = observed.is_aliased or observed.physical == last_physical
    return is_finished and live.config_hash == marker.config_hash


def without_drift(plan: Plan) -> Plan:
    """Return the plan without corrections of drift."""
    return replace(plan, changes=tuple(change for change in plan.changes if _is_own(change)))


def differences(desired: Collection, live: Collection, changes: Iterable[Change]) -> tuple[Difference, ...]:
    """Return the drift that the changes would correct, field by field."""
    drift = (change for change in changes if not _is_own(change))
    return tuple(found for change in drift for found in _differences(desired, live, change))


def _is_own(change: Change) -> bool:
    return isinstance(change, OWN_CHANGES) or change == BEHIND_ALIAS


def _differences(desired: Collection, live: Collection, change: Change) -> Iterator[Difference]:
    match change:
        case Rebuild(field, observed, expected):
            yield Difference(field, expected, observed)
        case UpdateStrictMode(limits):
            existing = dict(live.strict_mode or ())
            for name, value in limits:
                yield Difference(f"index.strictMode.{to_camel(name)}", str(value), str(existing.get(name)))
        case CreateIndexes(indexes):
            indexed = dict(live.indexes)
            for field, kind in indexes:
                yield Difference(f"index.payloadIndexes[{field}]", kind, indexed.get(field, NO_INDEX))
        case _:
            desired_values, live_values = settings_by_name(desired), settings_by_name(live)
            for name in (figure.name for figure in fields(change) if figure.compare):
                expected, found = desired_values[name], live_values[name]
                if expected != found and (expected is not None or name == "quantization"):
                    yield Difference(SPEC_PATHS.get(name, f"index.{name}"), _shown(expected), _shown(found))


def _shown(value: Any) -> str:
    """Render a setting. A quantization looks like `Scalar (quantile 0.99, always_ram True)`."""
    if value is None or not is_dataclass(value) or isinstance(value, type):
        return str(value)
    figures = ", ".join(f"{name} {figure}" for name, figure in asdict(value).items())
    return f"{type(value).__name__.removesuffix('Quantization')} ({figures})"
