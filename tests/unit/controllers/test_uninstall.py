"""An uninstall over a cluster that is in any state, and may fail at any call."""

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

MADE = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "SnapshotTaken"}]}
HELD = {"AgentMemory": ["agentmemory.dev/collection"], "MemorySnapshot": ["agentmemory.dev/snapshot"]}


class Cluster:
    """An API server, whose objects with finalizers go when those do; with an operator those of ours do so at once."""

    def __init__(self, *, operator: bool = False, others: Sequence[str] = ()) -> None:
        self.operator, self.calls, self.killed_at, self.renewed = operator, 0, 0, 0
        self.definitions = set(DELETION_ORDER)
        self.objects = {
            (kind, "one"): {
                "apiVersion": "agentmemory.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": "one", "namespace": "a", "finalizers": [*HELD.get(kind, ()), *others]},
                "spec": {"deletionPolicy": "Delete"},
                "status": MADE,
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
        assert not [key for key in self.objects if key[0] == kind], "nothing is left to wait for"
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


def kinds(objects: Iterable[dict[str, Any]]) -> set[str]:
    return {one["kind"] for one in objects}


async def test_with_an_operator_it_waits_and_keeps_no_record_of_bytes_that_went() -> None:
    cluster, kept = Cluster(operator=True), list[Any]()

    await uninstall(cluster, lambda objects: kept.append(list(objects)), is_released=False)

    assert (cluster.objects, cluster.definitions) == ({}, set())
    assert kinds(kept[0]) == set(DELETION_ORDER)
    assert kinds(kept[-1]) == set(DELETION_ORDER) - {"MemorySnapshot"}


async def test_without_one_it_takes_our_finalizers_off_and_keeps_every_record() -> None:
    cluster, kept = Cluster(), list[Any]()

    await uninstall(cluster, lambda objects: kept.append(list(objects)), is_released=True)

    assert (cluster.objects, cluster.definitions) == ({}, set())
    assert kinds(kept[-1]) == set(DELETION_ORDER)


@pytest.mark.parametrize(
    ("operator", "is_released", "told"), [(True, True, "stop it first"), (False, False, "--release")]
)
async def test_the_wrong_way_is_refused_before_anything_is_deleted(
    operator: bool, is_released: bool, told: str
) -> None:
    cluster = Cluster(operator=operator)

    with pytest.raises(AgentMemoryError, match=told):
        await uninstall(cluster, lambda _: None, is_released=is_released)

    assert not [one for one in cluster.objects.values() if "deletionTimestamp" in one["metadata"]]


async def test_what_another_controller_holds_is_named_and_its_finalizer_stays() -> None:
    cluster = Cluster(others=["example.com/other"])

    with pytest.raises(AgentMemoryError, match=r"MemoryRestore a/one.*run the command again to continue"):
        await uninstall(cluster, lambda _: None, is_released=True)

    assert cluster.objects["MemoryRestore", "one"]["metadata"]["finalizers"] == ["example.com/other"]


async def test_of_an_object_that_both_hold_ours_alone_is_taken_off() -> None:
    cluster = Cluster(others=["example.com/other"])
    del cluster.objects["MemoryRestore", "one"]

    with pytest.raises(AgentMemoryError, match="AgentMemory a/one"):
        await uninstall(cluster, lambda _: None, is_released=True)

    assert cluster.objects["AgentMemory", "one"]["metadata"]["finalizers"] == ["example.com/other"]


@pytest.mark.parametrize("gone", [*([kind] for kind in DELETION_ORDER), list(DELETION_ORDER)], ids=str)
async def test_definitions_that_are_gone_are_a_step_already_done(gone: list[str]) -> None:
    cluster = Cluster()
    for kind in gone:
        cluster.definitions.discard(kind)
        del cluster.objects[kind, "one"]

    found = await uninstall(cluster, lambda _: None, is_released=True)

    assert (cluster.objects, cluster.definitions) == ({}, set())
    assert set(found.definitions) == set(DELETION_ORDER) - set(gone)


async def test_an_api_server_that_says_no_each_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()

    async def refuse(*_: Any) -> None:
        raise TransientError("403 forbidden")

    monkeypatch.setattr(cluster, "delete_object", refuse)

    with pytest.raises(TransientError, match="403"):
        await uninstall(cluster, lambda _: None, is_released=True)


async def test_killed_at_any_call_and_run_again_it_ends_and_keeps_what_there_was() -> None:
    whole = Cluster()
    await uninstall(whole, lambda _: None, is_released=True)
    assert whole.calls > len(DELETION_ORDER) * 4

    for at in range(1, whole.calls + 1):
        cluster, kept = Cluster(), dict[int, list[Any]]()
        cluster.killed_at = at
        with pytest.raises(ProcessKilled):
            await uninstall(cluster, lambda objects, kept=kept: kept.update({1: list(objects)}), is_released=True)
        await uninstall(cluster, lambda objects, kept=kept: kept.update({2: list(objects)}), is_released=True)

        assert (cluster.objects, cluster.definitions) == ({}, set()), at
        assert kinds([*kept.get(1, ()), *kept.get(2, ())]) == set(DELETION_ORDER), at
