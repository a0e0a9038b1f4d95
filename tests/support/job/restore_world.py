"""An agent, a snapshot of it, and the component that restores it, on a real engine. It may be killed at every call."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agentmemory_operator.adapters.http.https_files import HttpsFiles
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.announce import AliasLocks, MoveAnnouncer
from agentmemory_operator.collections.claim_registry import ClaimRegistry
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.lifecycle.erasure_mirror import ErasureMirror
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.lifecycle.erasure_restore import RestoredErasureReplay
from agentmemory_operator.ports.base import Json
from agentmemory_operator.restores.controller import RestorePasses
from agentmemory_operator.restores.in_place import InPlaceRestore
from agentmemory_operator.restores.previous_sweeper import PreviousSweeper
from agentmemory_operator.restores.sources import RestoreSources
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, Key
from agentmemory_operator.snapshots.copies import Copies
from tests.support.engine.fakes import FakeClaimStore
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.fault_injection import Plants
from tests.support.job.job_world import NAMESPACE, JobWorld
from tests.support.web.http_server import check_success

POINTS = 10
SNAPSHOT = {"snapshotRef": {"name": "before"}}
PLACEHOLDER: Json = {
    "vectors": {"size": 1, "distance": "Dot"},
    "metadata": {"agentmemory": {"placeholder": True}},
}
CHANGING = {
    *("apply", "delete", "recover", "upload", "write_metadata", "create_placeholder", "delete_file"),
    *("write_status", "write_finalizers", "post_event", "create_object", "save"),
}


class CrashPoints:
    """Forwards calls. Before and after a call that changes something, the operator may be killed."""

    def __init__(self, inner: object, world: "RestoreWorld") -> None:
        self._inner, self._world = inner, world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CHANGING:
            return found
        return self._world.with_crash_points(name, found)


class RestoreWorld(JobWorld):
    """The agent, a snapshot of it, and the component that restores it."""

    def __init__(self, url: str, *, nodes: Sequence[str] = ()) -> None:
        super().__init__(url, nodes=nodes)
        self.crash_at, self.calls = 0, 0
        self.fails, self.after = {}, {}
        self.announcing = MoveAnnouncer(announce_s=0, late_s=0)
        self.claim_store: Any = CrashPoints(FakeClaimStore(stored=self.table.claims), self)
        self.restores = self.passes()

    def with_crash_points(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Wrap a call with a possible kill before and after it."""

        async def carried_out(*args: Any, **more: Any) -> Any:
            self._moment()
            if failure := self._fails.take(name):
                raise failure
            answer = await call(*args, **more)
            if happens := self._after.take(name):
                happens()
            self._moment()
            return answer

        return carried_out

    @property
    def fails(self) -> dict[str, Exception]:
        """Exceptions that calls raise, by name of the call."""
        return self._fails

    @fails.setter
    def fails(self, planted: dict[str, Exception]) -> None:
        self._fails = Plants("fails", planted)

    @property
    def after(self) -> dict[str, Callable[[], None]]:
        """Actions after successful calls, by name of the call."""
        return self._after

    @after.setter
    def after(self, planted: dict[str, Callable[[], None]]) -> None:
        self._after = Plants("after", planted)

    def _moment(self) -> None:
        self.calls += 1
        if self.calls == self.crash_at:
            raise ProcessKilled

    def open_server(self, endpoint: Endpoint) -> Server:
        opened = super().open_server(endpoint)
        collections: Any = CrashPoints(opened.collections, self)
        snapshots: Any = CrashPoints(opened.snapshots, self)
        return replace(opened, collections=collections, snapshots=snapshots)

    def erasures(self, storages: Storages) -> RestoredErasureReplay:
        erasures = ErasureReplay(self.clock)
        parts = (self.table, self.servers, storages, erasures, self.clock)
        mirror = ErasureMirror(*parts, cluster_id=self.cluster.cluster_id)
        return RestoredErasureReplay(self.table, self.servers, erasures, mirror)

    def keep_claims(self) -> ClaimRegistry:
        """Build the claims component of a new operator."""
        connections: Any = None
        return ClaimRegistry(self.claim_store, self.table, connections, self.cluster.cluster_id, self.requested.append)

    def sweeper(self) -> PreviousSweeper:
        """Build the component that cleans up replaced collections."""
        return PreviousSweeper(self.table, self.servers, self.clock, self.cluster.cluster_id, ErasureReplay(self.clock))

    def passes(self) -> RestorePasses:
        """Build the restore component of a new operator."""
        storages = Storages(self.secrets, S3Objects)
        restored = self.erasures(storages)
        cluster: Any = CrashPoints(self.cluster, self)
        return RestorePasses(
            table=self.table,
            servers=self.servers,
            cluster=cluster,
            clock=self.clock,
            request=self.requested.append,
            sources=RestoreSources(self.table, self.servers, Copies(storages), HttpsFiles()),
            locks=AliasLocks(),
            in_place=InPlaceRestore(
                *(self.table, cluster, ScratchCollections(self.cluster.cluster_id), self.requested.append, restored),
                claims=self.keep_claims(),
                announcer=self.announcing,
            ),
            erasures=restored,
            takeover_requests=TakeoverRequests(self.table),
            announcer=self.announcing,
        )

    async def snapshot(self, name: str = "before", **changes: Any) -> None:
        """Take a snapshot, and apply a MemorySnapshot with its status."""
        physical = self.aliases()[self.alias]
        file = await self.with_server(lambda server: server.snapshots.create(physical))
        key = self.apply(MEMORY_SNAPSHOT, name, agentMemoryRef={"name": self.agent})
        count = self.count()
        status = {
            "conditions": [{"type": "Succeeded", "status": "True", "reason": "SnapshotTaken", "message": ""}],
            "agent": self.agent,
            "connection": {"namespace": NAMESPACE, "name": "main"},
            "physical": physical,
            "sha256": file.sha256,
            "points": {"before": count, "after": count},
            "qdrantVersion": "1.18.3",
            "locations": [{"type": "Qdrant", "physical": physical, "name": file.name}],
            "startTime": "2026-01-01T00:00:00Z",
        }
        self.table.put(self.must_get(key) | {"status": status | changes})

    def restore(self, name: str = "undo", *, annotations: dict[str, str] | None = None, **spec: Any) -> Key:
        """Apply a MemoryRestore."""
        asked = {"target": {"name": self.agent}, "source": SNAPSHOT} | spec
        return self.apply(MEMORY_RESTORE, name, annotations=annotations, **asked)

    async def run(self, key: Key, *, passes: int = 12) -> None:
        """Run up to `passes` passes, until the next one is more than 1 s away."""
        for _ in range(passes):
            due_s = await self.restores.run(key)
            if due_s is None or due_s > 1:
                return

    def count(self, collection: str | None = None) -> int:
        answer = self.http.post(f"/collections/{collection or self.alias}/points/count", json={"exact": True})
        return int(check_success(answer).json()["result"]["count"])

    def aliases(self) -> dict[str, str]:
        found = self.http.get("/aliases").json()["result"]["aliases"]
        return {item["alias_name"]: item["collection_name"] for item in found if self.agent in item["alias_name"]}

    def metadata(self, collection: str) -> Json:
        found: Json = self.http.get(f"/collections/{collection}").json()["result"]["config"]["metadata"]
        return found

    def message(self, key: Key, kind: str) -> str:
        found = [item for item in self.status(key)["conditions"] if item["type"] == kind]
        return str(found[0]["message"])

    def change(self, **spec: Any) -> None:
        """Change the AgentMemory's spec."""
        document = self.must_get(self.memory)
        self.table.put(document | {"spec": document["spec"] | spec})

    def set_rebuild_status(self, **told: Any) -> None:
        """Set a rebuild in the AgentMemory's status."""
        document = self.must_get(self.memory)
        self.table.put(document | {"status": (document.get("status") or {}) | {"rebuild": told}})

    def annotate(self, key: Key, annotations: dict[str, str]) -> None:
        document = self.must_get(key)
        self.table.put(document | {"metadata": document["metadata"] | {"annotations": annotations}})

    def change_owner(self, owner: Json) -> None:
        """Change the owner in the collection's marker."""
        marker = self.metadata(self.alias)["agentmemory"] | owner
        body = {"metadata": {"agentmemory": marker}}
        check_success(self.http.patch(f"/collections/{self.physical}", json=body))

    def check_untouched(self, key: Key) -> None:
        """Fail unless a refused restore left the live collection unchanged and created no other one."""
        assert self.collections() == [self.physical]
        assert self.aliases() == {self.alias: self.physical}
        assert self.count() == POINTS + 5
        assert not self.must_get(key)["metadata"].get("finalizers")

    @property
    def memory(self) -> Key:
        return Key(AGENT_MEMORY, NAMESPACE, self.agent)


@contextlib.asynccontextmanager
async def open_restore(url: str, *, points: int = POINTS, since: int = 0) -> AsyncIterator[RestoreWorld]:
    """Create an agent and a snapshot of it; remove everything at the end.

    Args:
        since: Number of memories stored after the snapshot, numbered from 100.
    """
    world = RestoreWorld(url)
    await world.create_agent(points)
    await world.snapshot()
    world.store(since, first=100)
    try:
        yield world
    finally:
        await world.close()
