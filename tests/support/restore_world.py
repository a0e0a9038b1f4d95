"""An agent, a snapshot of it, and what restores it, over a real engine; it may be killed at every call."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agentmemory_operator.adapters.https_files import HttpsFiles
from agentmemory_operator.adapters.s3_objects import S3Objects
from agentmemory_operator.domain.times import render_second
from agentmemory_operator.ports import Json
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.copies import Copies
from agentmemory_operator.services.erasure_mirror import ErasureMirror
from agentmemory_operator.services.erasures import Erasures
from agentmemory_operator.services.in_place import InPlace
from agentmemory_operator.services.keeping import PreviousSweeper
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.objects import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, Key
from agentmemory_operator.services.restore_sources import RestoreSources
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.restores import RestorePasses
from agentmemory_operator.services.scratch import Scratch
from agentmemory_operator.services.servers import Server
from agentmemory_operator.services.storages import Storages
from tests.support.job_world import NAMESPACE, JobWorld

POINTS = 10
SNAPSHOT = {"snapshotRef": {"name": "before"}}
PLACEHOLDER: Json = {
    "vectors": {"size": 1, "distance": "Dot"},
    "metadata": {"agentmemory": {"placeholder": True}},
}
CHANGING = {
    *("apply", "delete", "recover", "upload", "write_metadata", "create_placeholder", "delete_file"),
    *("write_status", "write_finalizers", "post_event", "create_object"),
}


class Killed(BaseException):
    """The operator was killed."""


class Watched:
    """Passes calls on; those that change something are moments at which the operator may be killed."""

    def __init__(self, inner: object, world: "RestoreWorld") -> None:
        self._inner, self._world = inner, world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CHANGING:
            return found
        return self._world.watched(name, found)


class RestoreWorld(JobWorld):
    """The agent, a snapshot of it, and what restores it."""

    def __init__(self, url: str, *, nodes: Sequence[str] = ()) -> None:
        super().__init__(url, nodes=nodes)
        self.crash_at, self.calls = 0, 0
        self.fails: dict[str, Exception] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.restores = self.passes()

    def watched(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the call with a moment before and one after it."""

        async def carried_out(*args: Any, **more: Any) -> Any:
            self._moment()
            if name in self.fails:
                raise self.fails[name]
            answer = await call(*args, **more)
            self.after.get(name, lambda: None)()
            self._moment()
            return answer

        return carried_out

    def _moment(self) -> None:
        self.calls += 1
        if self.calls == self.crash_at:
            raise Killed

    def open_server(self, endpoint: Endpoint) -> Server:
        opened = super().open_server(endpoint)
        collections: Any = Watched(opened.collections, self)
        snapshots: Any = Watched(opened.snapshots, self)
        return replace(opened, collections=collections, snapshots=snapshots)

    def erasures(self, storages: Storages) -> RestoredErasures:
        erasures = Erasures(self.clock)
        mirror = ErasureMirror(self.table, self.servers, storages, erasures, self.clock)
        return RestoredErasures(self.table, self.servers, erasures, mirror)

    def sweeper(self) -> PreviousSweeper:
        """Return what looks after collections that were replaced."""
        erasures = self.erasures(Storages(self.secrets, S3Objects))
        return PreviousSweeper(self.table, self.servers, self.clock, self.cluster.cluster_id, erasures)

    def passes(self) -> RestorePasses:
        """Return what a new operator would work with."""
        storages = Storages(self.secrets, S3Objects)
        restored = self.erasures(storages)
        cluster: Any = Watched(self.cluster, self)
        return RestorePasses(
            table=self.table,
            servers=self.servers,
            cluster=cluster,
            clock=self.clock,
            request=self.requested.append,
            sources=RestoreSources(self.table, self.servers, Copies(storages), HttpsFiles()),
            locks=AliasLocks(),
            in_place=InPlace(self.table, cluster, Scratch(self.cluster.cluster_id), self.requested.append, restored),
            erasures=restored,
        )

    async def snapshot(self, name: str = "before", **changes: Any) -> None:
        """Take a snapshot, and apply the MemorySnapshot that tells of it."""
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
        """Do passes until none is due soon."""
        for _ in range(passes):
            due_s = await self.restores.run(key)
            if due_s is None or due_s > 1:
                return

    def count(self, collection: str | None = None) -> int:
        answer = self.http.post(f"/collections/{collection or self.alias}/points/count", json={"exact": True})
        return int(answer.raise_for_status().json()["result"]["count"])

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
        """Change the AgentMemory."""
        document = self.must_get(self.memory)
        self.table.put(document | {"spec": document["spec"] | spec})

    def tell_rebuild(self, **told: Any) -> None:
        """Let the AgentMemory's status tell of a rebuild."""
        document = self.must_get(self.memory)
        self.table.put(document | {"status": (document.get("status") or {}) | {"rebuild": told}})

    def annotate(self, key: Key, annotations: dict[str, str]) -> None:
        document = self.must_get(key)
        self.table.put(document | {"metadata": document["metadata"] | {"annotations": annotations}})

    def created(self, key: Key) -> None:
        """Let an object have been created now."""
        document, stamp = self.must_get(key), {"creationTimestamp": render_second(self.clock.now_ms() / 1000)}
        self.table.put(document | {"metadata": document["metadata"] | stamp})

    def remark(self, owner: Json) -> None:
        """Write another owner into the collection."""
        marker = self.metadata(self.alias)["agentmemory"] | owner
        body = {"metadata": {"agentmemory": marker}}
        self.http.patch(f"/collections/{self.physical}", json=body).raise_for_status()

    def check_untouched(self, key: Key) -> None:
        """Fail unless a refused restore left the live collection as it was, and nothing beside it."""
        assert self.collections() == [self.physical]
        assert self.aliases() == {self.alias: self.physical}
        assert self.count() == POINTS + 5
        assert not self.must_get(key)["metadata"].get("finalizers")

    @property
    def memory(self) -> Key:
        return Key(AGENT_MEMORY, NAMESPACE, self.agent)
