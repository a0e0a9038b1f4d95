"""Tables in `tests/golden`: valid and invalid manifests, and the reconcile matrix (each parameter, set and unset)."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"
# The C loader is ten times as fast. Every test process reads all tables while it collects tests.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SMALLEST_SPECS: dict[str, dict[str, Any]] = {
    "AgentMemory": {"connectionRef": {"name": "main"}},
    "QdrantConnection": {"url": "http://qdrant:6333"},
}


def read_table(name: str) -> Any:
    """Parse a table of `tests/golden`."""
    return yaml.load((GOLDEN / name).read_text(), Loader=LOADER)


@dataclass(frozen=True, slots=True)
class ManifestCase:
    """A complete object, and words that its rejection must contain."""

    name: str
    document: dict[str, Any]
    words: tuple[str, ...]

    @property
    def plural(self) -> str:
        return {"AgentMemory": "agentmemories", "QdrantConnection": "qdrantconnections"}[self.document["kind"]]


def manifest(kind: str = "AgentMemory", name: str = "probe", **spec: Any) -> dict[str, Any]:
    """Build a complete object; `spec` overrides the smallest valid one."""
    whole = SMALLEST_SPECS[kind] | spec
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": whole}


def load_cases(file: str) -> list[ManifestCase]:
    """Return the cases of `good.yaml`, `bad.yaml` or `by_preset.yaml`, in order."""
    return [_case(entry) for entry in read_table(f"manifests/{file}")]


def _case(entry: dict[str, Any]) -> ManifestCase:
    document = manifest(entry.get("kind", "AgentMemory"), **entry.get("spec", {})) | entry.get("document", {})
    return ManifestCase(entry["name"], document, tuple(entry.get("words", ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One parameter of `matrix.yaml`, which explains the attributes."""

    parameter: str
    spec: Mapping[str, Any]
    create: Mapping[str, Any]
    change: Mapping[str, Any] | tuple[Mapping[str, Any], ...] | None
    unset: Mapping[str, Any] | tuple[Mapping[str, Any], ...] | None
    base: Mapping[str, Any] | None = None
    held: bool = False


def load_matrix() -> list[MatrixRow]:
    return [MatrixRow(**entry) for entry in read_table("matrix.yaml")]


def entries(planned: Any) -> list[dict[str, Any]]:
    """Return the planned changes of a cell as a list."""
    if planned is None:
        return []
    return [dict(change) for change in (planned if isinstance(planned, list) else [planned])]
