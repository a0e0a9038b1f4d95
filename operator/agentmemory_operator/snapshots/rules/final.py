"""The final snapshot of an agent that is deleted with `deletionPolicy: Snapshot`."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.errors import DeletionPending
from agentmemory_operator.snapshots.rules.facts import AGENT_MEMORY_LABEL
from agentmemory_operator.snapshots.rules.steps import is_ended, is_verified
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory, Metadata
from agentmemory_operator.spec.naming import MAX_OBJECT_NAME_CHARS, label_of

Json = dict[str, Any]

UID_DIGITS = 8


def final_name(metadata: Metadata) -> str:
    """Return the name of an AgentMemory's final snapshot.

    The name contains the start of the object's UID, so a recreated object gets another name.
    """
    suffix = f"-final-{metadata.uid[:UID_DIGITS].lower().strip('-')}"
    return metadata.name[: MAX_OBJECT_NAME_CHARS - len(suffix)].rstrip("-.") + suffix


def build_final_manifest(memory: AgentMemory) -> Json:
    """Build the manifest of the final MemorySnapshot.

    It is always verified: by checksum if the agent's `verify` is Checksum, else by a restore.
    """
    metadata, verify = memory.metadata, memory.spec.snapshots.verify if memory.spec.snapshots else None
    return {
        "apiVersion": API_VERSION,
        "kind": "MemorySnapshot",
        "metadata": {
            "name": final_name(metadata),
            "namespace": metadata.namespace,
            "labels": {AGENT_MEMORY_LABEL: label_of(metadata.name)},
        },
        "spec": {
            "agentMemoryRef": {"name": metadata.name},
            "verify": "Checksum" if verify == "Checksum" else "Full",
            "deletionPolicy": "Retain",
        },
    }


def find_fault(document: Mapping[str, Any] | None, name: str) -> str | None:
    """Return the reason why a final snapshot is not usable, or None if it is verified.

    Args:
        document: The MemorySnapshot, or None if the watch has not delivered it yet, which counts as not ended.
        name: Name of the MemorySnapshot, for messages.

    Raises:
        DeletionPending: If the snapshot has not ended.
    """
    status = (document or {}).get("status") or {}
    if not is_ended(status):
        raise DeletionPending(f"the deletion waits for the final MemorySnapshot {name}: {status.get('progress', '')}")
    if is_verified(status):
        return None
    faults = [item for item in status["conditions"] if item["status"] != "True"]
    fault = "; ".join(f"{item['reason']}: {item['message']}" for item in faults[:1])
    return f"the final MemorySnapshot {name} is not verified ({fault}): collection kept"
