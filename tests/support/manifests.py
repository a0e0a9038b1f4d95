"""The tables of good and bad manifests under `tests/golden/manifests`."""

import pathlib
from dataclasses import dataclass
from typing import Any

import yaml

from agentmemory_operator.domain.resources import API_VERSION

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden" / "manifests"
SMALLEST_SPECS: dict[str, dict[str, Any]] = {
    "AgentMemory": {"connectionRef": {"name": "main"}},
    "QdrantConnection": {"url": "http://qdrant:6333"},
}


@dataclass(frozen=True, slots=True)
class ManifestCase:
    """A whole object, and the words that its refusal must contain."""

    name: str
    document: dict[str, Any]
    words: tuple[str, ...]

    @property
    def plural(self) -> str:
        return {"AgentMemory": "agentmemories", "QdrantConnection": "qdrantconnections"}[self.document["kind"]]


def manifest(kind: str = "AgentMemory", name: str = "probe", **spec: Any) -> dict[str, Any]:
    """Return a whole object; what `spec` leaves out is as in the smallest good one."""
    whole = SMALLEST_SPECS[kind] | spec
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": whole}


def load_cases(file: str) -> list[ManifestCase]:
    """Return the cases of `good.yaml` or `bad.yaml`, in order."""
    return [_case(entry) for entry in yaml.safe_load((FOLDER / file).read_text())]


def _case(entry: dict[str, Any]) -> ManifestCase:
    document = manifest(entry.get("kind", "AgentMemory"), **entry.get("spec", {})) | entry.get("document", {})
    return ManifestCase(entry["name"], document, tuple(entry.get("words", ())))
