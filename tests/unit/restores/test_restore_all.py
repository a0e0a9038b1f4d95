"""RestoreAll: every lost agent of a server from its latest verified snapshot, repeatable."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.connections.rules.host_lists import AnnotatedSecret
from agentmemory_operator.errors import NamespaceTerminating, NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.restores.restore_all import RestoreAll, RestoredAgent
from agentmemory_operator.runtime import tasks
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.spec.documents import connection_document, memory_document

LOST = {"type": "Ready", "status": "False", "reason": "CollectionLost", "lastTransitionTime": "2026-11-22T08:00:00Z"}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-11-22T08:00:00Z"}


@dataclass(slots=True)
class Objects:
    """Implements ports.jobs.JobObjects with an operator that completes each restore at once.

    Attributes:
        refused: Names of snapshots that cannot be recovered.
        failing_reads: Number of reads of restores that fail before the next ones succeed.
    """

    documents: dict[tuple[str, str, str], Json] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    failing_reads: int = 0
    made: list[str] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    def put(self, document: Json) -> None:
        metadata = document["metadata"]
        self.documents[document["kind"], metadata["namespace"], metadata["name"]] = document

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        raise NotFound(name)

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        if (kind, namespace, name) not in self.documents:
            raise NotFound(f"there is no {kind} {namespace}/{name}")
        document = self.documents[kind, namespace, name]
        if kind == "MemoryRestore" and self.failing_reads:
            self.failing_reads -= 1
            raise TransientError("the API server is away")
        if kind == "MemoryRestore" and "status" not in document:
            self.open -= 1
            is_bad = document["spec"]["source"]["snapshotRef"]["name"] in self.refused
            succeeded = {"type": "Succeeded", "status": "False" if is_bad else "True", "message": "said"}
            document = document | {"status": {"conditions": [succeeded]}}
            self.documents[kind, namespace, name] = document
            return {}
        return document

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        return [found for name, found in self.documents.items() if name[0] == kind and namespace in ("", name[1])]

    async def create_object(self, document: Json) -> bool:
        metadata = document["metadata"]
        if document["spec"]["source"]["snapshotRef"]["name"] == "too-late":
            raise NamespaceTerminating("the namespace is being deleted")
        if (document["kind"], metadata["namespace"], metadata["name"]) in self.documents:
            return False
        self.put(document)
        self.made.append(document["spec"]["source"]["snapshotRef"]["name"])
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        return True

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        raise NotImplementedError

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        raise NotImplementedError

    def agent(self, name: str, condition: Json = LOST, *, namespace: str = "agents", **spec: Any) -> None:
        document = memory_document(name, metadata={"namespace": namespace}, **spec)
        self.put(document | {"status": {"conditions": [condition]}})

    def snapshot(self, name: str, of: str, begun: str, *, verified: str = "True", version: str = "1.18.3") -> None:
        conditions = [{"type": "Succeeded", "status": "True"}, {"type": "Verified", "status": verified}]
        status = {"conditions": conditions, "startTime": begun, "qdrantVersion": version}
        metadata = {"name": name, "namespace": "agents"}
        spec = {"agentMemoryRef": {"name": of}}
        self.put({"kind": "MemorySnapshot", "metadata": metadata, "spec": spec, "status": status})


@pytest.fixture
def objects() -> Objects:
    made = Objects()
    made.put(connection_document() | {"status": {"version": "1.18.4"}})
    return made


async def restore_all(objects: Objects, *, at_once: int = 4) -> list[RestoredAgent]:
    connection = Key(QDRANT_CONNECTION, "agents", "main")
    results: list[RestoredAgent] = []
    everything = RestoreAll(
        objects=objects, connection=connection, report=results.append, concurrency=at_once, poll_s=0
    )
    assert sorted(result.agent for result in await everything.run(await everything.find())) == sorted(
        result.agent for result in results
    )
    return results


async def test_latest_verified_snapshot_is_restored(objects: Objects) -> None:
    objects.agent("bot")
    objects.snapshot("old", "bot", "2026-11-20T00:00:00Z")
    objects.snapshot("new", "bot", "2026-11-21T00:00:00Z")
    objects.snapshot("unproven", "bot", "2026-11-22T00:00:00Z", verified="False")
    objects.snapshot("of-another-minor", "bot", "2026-11-22T00:00:00Z", version="1.17.9")
    objects.snapshot("another-s", "other", "2026-11-22T00:00:00Z")

    (result,) = await restore_all(objects)

    assert (result.agent, result.is_restored, objects.made) == ("agents/bot", True, ["new"])


async def test_rejected_restore_stops_no_other(objects: Objects) -> None:
    for agent, snapshot in (("bot", "too-late"), ("other", "new")):
        objects.agent(agent)
        objects.snapshot(snapshot, agent, "2026-11-20T00:00:00Z")

    results = await restore_all(objects, at_once=1)

    assert {result.agent: result.is_restored for result in results} == {"agents/bot": False, "agents/other": True}
    assert "is being deleted" in results[0].message


async def test_unaffected_agents_are_skipped(objects: Objects) -> None:
    objects.agent("serving", READY)
    objects.agent("elsewhere", connectionRef={"name": "other"})
    objects.agent("of-another-namespace", namespace="others")
    for name in ("serving", "elsewhere"):
        objects.snapshot(f"of-{name}", name, "2026-11-20T00:00:00Z")

    assert await restore_all(objects) == []
    assert objects.made == []


async def test_agents_of_sharing_namespaces_are_included(objects: Objects) -> None:
    objects.agent("bot", namespace="others", connectionRef={"name": "main", "namespace": "agents"})

    (result,) = await restore_all(objects)

    assert (result.agent, result.is_restored) == ("others/bot", False)
    assert "verified snapshots" in result.message


async def test_failed_snapshot_falls_back_to_older(objects: Objects) -> None:
    objects.agent("bot")
    objects.snapshot("old", "bot", "2026-11-20T00:00:00Z")
    objects.snapshot("new", "bot", "2026-11-21T00:00:00Z")
    objects.refused.add("new")

    (result,) = await restore_all(objects)

    assert (result.is_restored, objects.made) == (True, ["new", "old"])


async def test_rerun_creates_no_second_restore(objects: Objects) -> None:
    objects.agent("bot")
    objects.snapshot("new", "bot", "2026-11-21T00:00:00Z")
    await restore_all(objects)

    (result,) = await restore_all(objects)

    assert (result.is_restored, objects.made) == (True, ["new"])


async def test_later_loss_is_restored_again(objects: Objects) -> None:
    objects.agent("bot")
    objects.snapshot("new", "bot", "2026-11-21T00:00:00Z")
    await restore_all(objects)
    objects.agent("bot", LOST | {"lastTransitionTime": "2026-11-23T08:00:00Z"})

    await restore_all(objects)

    assert objects.made == ["new", "new"]


async def test_concurrency_is_limited(objects: Objects) -> None:
    for number in range(20):
        objects.agent(f"bot-{number}")
        objects.snapshot(f"s-{number}", f"bot-{number}", "2026-11-21T00:00:00Z")

    results = await restore_all(objects, at_once=3)

    assert len(results) == 20
    assert objects.most_open == 3


@pytest.mark.parametrize(("failing_reads", "is_restored"), [(3, True), (10_000, False)])
async def test_wait_ends_with_a_long_outage(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, failing_reads: int, is_restored: bool
) -> None:
    """An older snapshot is not restored meanwhile: the restore continues."""
    monkeypatch.setattr(tasks, "MAX_OUTAGE_S", 600.0 if is_restored else 0.0)
    objects.agent("bot")
    objects.snapshot("old", "bot", "2026-11-20T00:00:00Z")
    objects.snapshot("new", "bot", "2026-11-21T00:00:00Z")
    objects.failing_reads = failing_reads

    (result,) = await restore_all(objects)

    assert (result.is_restored, objects.made) == (is_restored, ["new"])
    assert ("run the command again" in result.message) is not is_restored


async def test_missing_connection_is_named(objects: Objects) -> None:
    objects.documents.clear()

    with pytest.raises(NotFound, match="QdrantConnection agents/main"):
        await restore_all(objects)
