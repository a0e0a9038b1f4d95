"""What ends with an installation, and what a catalogue keeps of it."""

from typing import Any

import pytest

from agentmemory_operator.controllers.rules.uninstall_catalogue import (
    LAST_APPLIED,
    catalogue_entry,
    deletes_files,
    describe_deletion,
)

MADE = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "SnapshotTaken"}]}


def document(kind: str, *, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "one", "namespace": "agents", "uid": "u", "resourceVersion": "7"}
    made = {"apiVersion": "agentmemory.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    return made | ({"status": status} if status else {})


def test_a_catalogue_keeps_what_another_object_may_have_and_the_status() -> None:
    found = document("MemorySnapshot", status=MADE)
    notes = {"agentmemory.dev/pin": "yes", "note": "\x7f\u2028", LAST_APPLIED: "{}"}
    found["metadata"] |= {
        "annotations": notes,
        "labels": {"agentmemory.dev/retention": "Scheduled"},
        "finalizers": ["agentmemory.dev/snapshot"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        # In another cluster there is no such owner: the object would be collected at once.
        "ownerReferences": [{"kind": "ConfigMap", "name": "x", "uid": "gone", "apiVersion": "v1"}],
    }

    kept = catalogue_entry(found)

    assert kept["metadata"] == {
        "name": "one",
        "namespace": "agents",
        "labels": {"agentmemory.dev/retention": "Scheduled"},
        "annotations": {"agentmemory.dev/pin": "yes", "note": "\x7f\u2028"},
    }
    assert (kept["spec"], kept["status"]) == ({}, MADE)


@pytest.mark.parametrize(
    ("found", "is_released", "told"),
    [
        (document("AgentMemory"), False, "its collection stays"),
        (document("AgentMemory", deletionPolicy="Retain"), False, "its collection stays"),
        (document("AgentMemory", deletionPolicy="Delete"), False, "is deleted too if it is empty or confirmed"),
        (document("AgentMemory", deletionPolicy="Delete"), True, "its collection stays"),
        (document("AgentMemory", deletionPolicy="Snapshot"), False, "a final snapshot is taken"),
        (document("MemorySnapshot", status=MADE), False, "its bytes stay"),
        (document("MemorySnapshot", status=MADE, deletionPolicy="Delete"), False, "its bytes are deleted too"),
        (document("MemorySnapshot", status=MADE, deletionPolicy="Delete"), True, "its bytes stay"),
        (document("MemorySnapshot"), False, "it is cancelled"),
        (document("MemorySnapshot"), True, "its partial result stays"),
        (document("MemoryRestore"), False, "rollback is no longer possible"),
        (document("QdrantConnection"), False, "the server is not changed"),
    ],
)
def test_people_are_told_what_becomes_of_what_an_object_stands_for(
    found: dict[str, Any], is_released: bool, told: str
) -> None:
    assert told in describe_deletion(found, is_released=is_released)


@pytest.mark.parametrize(("name", "goes"), [("one", True), ("another", False)])
def test_bytes_go_where_somebody_confirmed_it_of_this_object(name: str, goes: bool) -> None:
    found = document("MemorySnapshot", status=MADE)
    found["metadata"]["annotations"] = {"agentmemory.dev/confirm-delete": name}

    assert deletes_files(found) is goes
