"""Uninstallation of a cluster in any state, with a failure at any call."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from agentmemory_operator.controllers import uninstall as uninstalling
from agentmemory_operator.controllers.rules.uninstall_catalogue import DELETION_ORDER
from agentmemory_operator.controllers.uninstall import Installation, Uninstall, read_installation
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.engine.interleaved_store import ProcessKilled

SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "SnapshotTaken"}]}
FINALIZERS = {"AgentMemory": ["agentmemory.dev/collection"], "MemorySnapshot": ["agentmemory.dev/snapshot"]}


class Cluster:
    """API server that deletes an object with its last finalizer. With `operator`, it removes the product's at once."""

    def __init__(self, *, operator: bool = False, others: Sequence[str] = ()) -> None:
        self.operator, self.calls, self.killed_at, self.renewed = operator, 0, 0, 0
        self.definitions = set(DELETION_ORDER)
        self.objects = {
            (kind, "one"): {
                "apiVersion": "agentmemory.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": "one", "namespace": "a", "finalizers": [*FINALIZERS.get(kind, ()), *others]},
                "spec": {"deletionPolicy": "Delete"},
                "status": SUCCEEDED,
            }
            for kind in DELETION_ORDER
        }

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.killed_at:
            raise ProcessKilled

    def _settle(self) -> None:
        for key, found in list(self.objects.items()):
            metadata = found["metadata"]
            if "deletionTimestamp" in metadata and self.operator:
                metadata["finalizers"] = [name for name in metadata["finalizers"] if "agentmemory.dev" not in name]
            if "deletionTimestamp" in metadata and not metadata["finalizers"]:
                del self.objects[key]

    async def has_definition(self, kind: str) -> bool:
        self._count()
        return kind in self.definitions

    async def list_in(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        self._count()
        if kind not in self.definitions:
            raise TransientError(f"the kind {kind} is unknown")
        return copy.deepcopy([found for key, found in self.objects.items() if key[0] == kind])

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        self._count()
        if found := self.objects.get((kind, metadata.name)):
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._settle()

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        self._count()
        if found := self.objects.get((kind, metadata.name)):
            found["metadata"]["finalizers"] = list(finalizers)
        self._settle()

    async def delete_definition(self, kind: str) -> None:
        self._count()
        assert not [key for key in self.objects if key[0] == kind], "objects remain"
        self.definitions.discard(kind)

    async def read_lease_renewals(self) -> dict[str, str]:
        self.renewed += self.operator
        return {"home": str(self.renewed)}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninstalling, "POLL_S", 0.001)
    monkeypatch.setattr(uninstalling, "LEASE_CHECK_S", 0.01)
    monkeypatch.setattr(uninstalling, "PROGRESS_TIMEOUT_S", 0.2)
    monkeypatch.setattr(uninstalling, "ERROR_TIMEOUT_S", 0.1)


async def uninstall(cluster: Cluster, keep: Callable[[Sequence[Any]], None], *, is_released: bool) -> Installation:
    found = await read_installation(cluster)
    await Uninstall(cluster, is_released, keep, lambda _: None).run(found)
    return found


def kinds_of(objects: Iterable[dict[str, Any]]) -> set[str]:
    return {item["kind"] for item in objects}


async def test_running_operator_releases_objects() -> None:
    """The last catalogue omits the snapshots whose bytes were deleted."""
    cluster, kept = Cluster(operator=True), list[Any]()

    await uninstall(cluster, lambda objects: kept.append(list(objects)), is_released=False)

    assert (cluster.objects, cluster.definitions) == ({}, set())
    assert kinds_of(kept[0]) == set(DELETION_ORDER)
    assert kinds_of(kept[-1]) == set(DELETION_ORDER) - {"MemorySnapshot"}


async def test_release_removes_finalizers_and_keeps_records() -> None:
    cluster, kept = Cluster(), list[Any]()

    await uninstall(cluster, lambda objects: kept.append(list(objects)), is_released=True)

    assert (cluster.objects, cluster.definitions) == ({}, set())
    assert kinds_of(kept[-1]) == set(DELETION_ORDER)


@pytest.mark.parametrize(
    ("operator", "is_released", "message"), [(True, True, "stop it first"), (False, False, "--release")]
)
async def test_wrong_mode_is_refused_before_deletion(operator: bool, is_released: bool, message: str) -> None:
    cluster = Cluster(operator=operator)

    with pytest.raises(AgentMemoryError, match=message):
        await uninstall(cluster, lambda _: None, is_released=is_released)

    assert not [item for item in cluster.objects.values() if "deletionTimestamp" in item["metadata"]]


async def test_foreign_finalizer_is_named_and_kept() -> None:
    cluster = Cluster(others=["example.com/other"])

    with pytest.raises(AgentMemoryError, match=r"MemoryRestore a/one.*run the command again to continue"):
        await uninstall(cluster, lambda _: None, is_released=True)

    assert cluster.objects["MemoryRestore", "one"]["metadata"]["finalizers"] == ["example.com/other"]


async def test_only_own_finalizer_is_removed() -> None:
    cluster = Cluster(others=["example.com/other"])
    del cluster.objects["MemoryRestore", "one"]

    with pytest.raises(AgentMemoryError, match="AgentMemory a/one"):
        await uninstall(cluster, lambda _: None, is_released=True)

    assert cluster.objects["AgentMemory", "one"]["metadata"]["finalizers"] == ["example.com/other"]


@pytest.mark.parametrize("missing", [*([kind] for kind in DELETION_ORDER), list(DELETION_ORDER)], ids=str)
async def test_missing_definitions_are_skipped(missing: list[str]) -> None:
    cluster = Cluster()
    for kind in missing:
        cluster.definitions.discard(kind)
        del cluster.objects[kind, "one"]

    found = await uninstall(cluster, lambda _: None, is_released=True)

    assert (cluster.objects, cluster.definitions) == ({}, set())
    assert set(found.definitions) == set(DELETION_ORDER) - set(missing)


async def test_persistent_refusal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()

    async def refuse(*_: Any) -> None:
        raise TransientError("403 forbidden")

    monkeypatch.setattr(cluster, "delete_object", refuse)

    with pytest.raises(TransientError, match="403"):
        await uninstall(cluster, lambda _: None, is_released=True)


async def test_restart_after_any_call_completes() -> None:
    """Both runs together record every object."""
    complete = Cluster()
    await uninstall(complete, lambda _: None, is_released=True)
    assert complete.calls > len(DELETION_ORDER) * 4

    for call in range(1, complete.calls + 1):
        cluster, kept = Cluster(), dict[int, list[Any]]()
        cluster.killed_at = call
        with pytest.raises(ProcessKilled):
            await uninstall(cluster, lambda objects, kept=kept: kept.update({1: list(objects)}), is_released=True)
        await uninstall(cluster, lambda objects, kept=kept: kept.update({2: list(objects)}), is_released=True)

        assert (cluster.objects, cluster.definitions) == ({}, set()), call
        assert kinds_of([*kept.get(1, ()), *kept.get(2, ())]) == set(DELETION_ORDER), call
