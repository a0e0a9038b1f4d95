"""Uninstallation: catalogue entries, and the fate of each object's data."""

from typing import Any

import pytest

from agentmemory_operator.controllers.rules.uninstall_catalogue import (
    LAST_APPLIED,
    catalogue_entry,
    deletes_files,
    describe_deletion,
)

SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "SnapshotTaken"}]}


def document(kind: str, *, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "one", "namespace": "agents", "uid": "u", "resourceVersion": "7"}
    content = {"apiVersion": "agentmemory.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    return content | ({"status": status} if status else {})


def test_entry_keeps_portable_metadata_and_status() -> None:
    found = document("MemorySnapshot", status=SUCCEEDED)
    notes = {"agentmemory.dev/pin": "yes", "note": "\x7f\u2028", LAST_APPLIED: "{}"}
    found["metadata"] |= {
        "annotations": notes,
        "labels": {"agentmemory.dev/retention": "Scheduled"},
        "finalizers": ["agentmemory.dev/snapshot"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        # Another cluster lacks this owner and would garbage-collect the object at once.
        "ownerReferences": [{"kind": "ConfigMap", "name": "x", "uid": "gone", "apiVersion": "v1"}],
    }

    kept = catalogue_entry(found)

    assert kept["metadata"] == {
        "name": "one",
        "namespace": "agents",
        "labels": {"agentmemory.dev/retention": "Scheduled"},
        "annotations": {"agentmemory.dev/pin": "yes", "note": "\x7f\u2028"},
    }
    assert (kept["spec"], kept["status"]) == ({}, SUCCEEDED)


@pytest.mark.parametrize(
    ("found", "is_released", "text"),
    [
        (document("AgentMemory"), False, "its collection stays"),
        (document("AgentMemory", deletionPolicy="Retain"), False, "its collection stays"),
        (document("AgentMemory", deletionPolicy="Delete"), False, "is deleted too if it is empty or confirmed"),
        (document("AgentMemory", deletionPolicy="Delete"), True, "its collection stays"),
        (document("AgentMemory", deletionPolicy="Snapshot"), False, "a final snapshot is taken"),
        (document("MemorySnapshot", status=SUCCEEDED), False, "its bytes stay"),
        (document("MemorySnapshot", status=SUCCEEDED, deletionPolicy="Delete"), False, "its bytes are deleted too"),
        (document("MemorySnapshot", status=SUCCEEDED, deletionPolicy="Delete"), True, "its bytes stay"),
        (document("MemorySnapshot"), False, "it is cancelled"),
        (document("MemorySnapshot"), True, "its partial result stays"),
        (document("MemoryRestore"), False, "rollback is no longer possible"),
        (document("QdrantConnection"), False, "the server is not changed"),
    ],
)
def test_description_states_fate_of_data(found: dict[str, Any], is_released: bool, text: str) -> None:
    assert text in describe_deletion(found, is_released=is_released)


@pytest.mark.parametrize(("name", "is_deleted"), [("one", True), ("another", False)])
def test_files_are_deleted_if_confirmed_by_name(name: str, is_deleted: bool) -> None:
    found = document("MemorySnapshot", status=SUCCEEDED)
    found["metadata"]["annotations"] = {"agentmemory.dev/confirm-delete": name}

    assert deletes_files(found) is is_deleted
