"""Render the snapshots of an agent for `agentmemory snapshot list`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.filesize import decimal

from agentmemory_operator.controllers.rules.status_words import describe_locations, describe_proof, start_time
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.tables import Section
from agentmemory_operator.ports.base import Json
from agentmemory_operator.snapshots.rules.retention import RetentionVerdict

COLUMNS = ("SNAPSHOT", "TIME", "POINTS", "SIZE", "VERIFIED", "WHERE", "QDRANT", "KEPT")
NO_RULES = "no rules"


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """The snapshots of an agent.

    Attributes:
        documents: MemorySnapshots of the agent, in any order.
        verdicts: Retention verdict by snapshot name; empty if the agent is deleted or has no valid rules.
    """

    documents: Sequence[Json]
    verdicts: Mapping[str, RetentionVerdict]

    def explain_verdict(self, document: Json) -> str:
        """Return the reason why a snapshot is kept or will be removed, or `NO_RULES` if it has no verdict."""
        verdict = self.verdicts.get(document["metadata"]["name"])
        if verdict is None:
            return NO_RULES
        return verdict.text if verdict.is_kept else f"goes: {verdict.text}"


def snapshots_document(listed: SnapshotList) -> dict[str, Any]:
    """Render the snapshots as JSON, newest first."""
    return {"snapshots": [_entry(document, listed) for document in _newest_first(listed.documents)]}


def snapshot_sections(listed: SnapshotList) -> list[Section]:
    """Render the snapshots as a table, newest first."""
    rows = tuple((*_row(document), listed.explain_verdict(document)) for document in _newest_first(listed.documents))
    if not rows:
        return [Section(f"No snapshots found. `{called_as()} snapshot create NAME` takes one.")]
    return [Section("", columns=COLUMNS, rows=rows)]


def _newest_first(documents: Sequence[Json]) -> list[Json]:
    return sorted(documents, key=lambda found: (start_time(found), found["metadata"]["name"]), reverse=True)


def _entry(document: Json, listed: SnapshotList) -> dict[str, Any]:
    status, metadata = document.get("status") or {}, document["metadata"]
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or []}
    verdict = listed.verdicts.get(metadata["name"])
    entry = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "time": start_time(document),
        "points": (status.get("points") or {}).get("after"),
        "sizeBytes": status.get("sizeBytes"),
        "sha256": status.get("sha256"),
        "succeeded": conditions.get("Succeeded", "Unknown"),
        "verified": conditions.get("Verified", "Unknown"),
        "locations": status.get("locations") or [],
        "qdrantVersion": status.get("qdrantVersion"),
        "kept": verdict.is_kept if verdict else True,
        "reasons": [str(reason) for reason in verdict.reasons] if verdict else [],
    }
    return {name: value for name, value in entry.items() if value is not None}


def _row(document: Json) -> tuple[str, ...]:
    status = document.get("status") or {}
    points, size = (status.get("points") or {}).get("after"), status.get("sizeBytes")
    return (
        document["metadata"]["name"],
        start_time(document),
        "-" if points is None else str(points),
        "-" if size is None else decimal(size),
        describe_proof(document),
        describe_locations(status),
        status.get("qdrantVersion") or "-",
    )
