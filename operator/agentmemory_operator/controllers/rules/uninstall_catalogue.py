"""Predict the effect of an uninstall on each object, and build the catalogue entry that is saved for it.

Deleting the definitions deletes all objects. Unless a policy deletes them, the files of snapshots stay in Qdrant and
S3, but only the MemorySnapshot objects record where. Therefore the catalogue keeps the objects with their statuses.
"""

from typing import Any

from agentmemory_operator.controllers.rules.applied_annotations import LAST_APPLIED
from agentmemory_operator.snapshots.rules.steps import has_succeeded, is_ended
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, GROUP

Json = dict[str, Any]

DELETION_ORDER = ("MemoryRestore", "AgentMemory", "MemorySnapshot", "QdrantConnection")
"""Kinds in order of deletion: each kind precedes those that it depends on."""

KEPT_METADATA = ("name", "namespace", "labels", "annotations")
"""Metadata that a recreated object may have.

Owner references are left out: with the uid of a deleted owner, Kubernetes would delete the object.
"""

_OF_AGENTS = {
    "Delete": "deletionPolicy Delete: the collection is deleted too if it is empty or confirmed",
    "Snapshot": "deletionPolicy Snapshot: a final snapshot is taken, then the collection is deleted",
}
_KEPT_BYTES = "its bytes stay in Qdrant or S3; only the catalogue records where"


def catalogue_entry(document: Json) -> Json:
    """Return the document of an object for the catalogue, with its status. The document can be applied again."""
    metadata = {key: value for key, value in document["metadata"].items() if key in KEPT_METADATA}
    if notes := metadata.get("annotations"):
        metadata["annotations"] = {name: value for name, value in notes.items() if name != LAST_APPLIED}
    entry: Json = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
    return entry | {part: document[part] for part in ("spec", "status") if part in document}


def describe_deletion(document: Json, *, is_released: bool) -> str:
    """Return a text about the effect of deleting an object.

    Args:
        is_released: True if no operator carries out the object's policy.
    """
    match document["kind"]:
        case "AgentMemory":
            policy = "" if is_released else (document.get("spec") or {}).get("deletionPolicy")
            return _OF_AGENTS.get(policy or "", "its collection stays in Qdrant")
        case "MemorySnapshot":
            return _fate_of_snapshot(document, is_released=is_released)
        case "MemoryRestore":
            return "the restored collection stays; rollback is no longer possible"
        case _:
            return "the server is not changed"


def _fate_of_snapshot(document: Json, *, is_released: bool) -> str:
    if not is_ended(document.get("status") or {}):
        return "in progress: it is cancelled" + ("; its partial result stays" if is_released else "")
    return (
        "deletionPolicy Delete: its bytes are deleted too"
        if deletes_files(document) and not is_released
        else _KEPT_BYTES
    )


def deletes_files(document: Json) -> bool:
    """Return whether the operator deletes files when this object is deleted: those of a successful MemorySnapshot only.

    Its `deletionPolicy` must be Delete, or an annotation must confirm the deletion.
    """
    spec, notes = document.get("spec") or {}, document["metadata"].get("annotations") or {}
    is_confirmed = spec.get("deletionPolicy") == "Delete" or notes.get(CONFIRM_DELETE) == document["metadata"]["name"]
    return document["kind"] == "MemorySnapshot" and is_confirmed and has_succeeded(document.get("status") or {})


def operator_finalizers(document: Json) -> list[str]:
    """Return those finalizers of an object that start with the operator's API group."""
    return [name for name in document["metadata"].get("finalizers") or () if name.startswith(f"{GROUP}/")]


def object_key(document: Json) -> tuple[str, str, str]:
    """Return kind, namespace and name of an object."""
    return document["kind"], document["metadata"]["namespace"], document["metadata"]["name"]
