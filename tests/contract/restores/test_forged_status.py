"""Forged status fields that name another namespace's collections and files.

The thief works in the namespace of the world, the victim in another one on the same server.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.deletion import FINALIZER as COLLECTION_FINALIZER
from agentmemory_operator.controllers.deletion import Deletion
from agentmemory_operator.errors import NotOwned
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.restores.job import FINALIZER as RESTORE_FINALIZER
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, MEMORY_SNAPSHOT, Key
from agentmemory_operator.snapshots.controller import FINALIZER as SNAPSHOT_FINALIZER
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.kinds.agent_memory import (
    CONFIRM_DELETE,
    ROLLBACK,
    TAKEOVER,
    VERIFY_REQUESTED_AT,
    Metadata,
)
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.times import render_second
from tests.support.job.job_world import EMBEDDING, NAMESPACE
from tests.support.job.restore_world import PLACEHOLDER, POINTS, RestoreWorld
from tests.support.spec.documents import memory_document

SECRET = "the victim's secret"
LONG_AGO = "2020-01-01T00:00:00Z"
ENDED = {"type": "Succeeded", "message": "told", "lastTransitionTime": LONG_AGO}
DONE = ENDED | {"status": "True", "reason": "SnapshotTaken"}
RESTORED = ENDED | {"status": "True", "reason": "Restored"}
FAILED = ENDED | {"status": "False", "reason": "SnapshotRefused"}


@dataclass
class Theft:
    """The thief's world, and the victim's agent on the same server."""

    world: RestoreWorld
    file: str = ""

    @property
    def slug(self) -> str:
        return f"{self.world.agent}-victim"

    @property
    def alias(self) -> str:
        return f"agent_memory_{self.slug}"

    @property
    def physical(self) -> str:
        """Name of the victim's collection."""
        return f"{self.alias}__1"

    @property
    def connection(self) -> Json:
        return {"namespace": NAMESPACE, "name": "main"}

    def set_up(self) -> None:
        """Create the victim's agent with one memory and a snapshot."""
        world, http = self.world, self.world.http
        world.table.put(memory_document("victim", agent=self.slug, metadata={"namespace": "alpha"}))
        config = http.get(f"/collections/{world.physical}").json()["result"]["config"]
        marker = config["metadata"]["agentmemory"] | {"namespace": "alpha", "name": "victim", "uid": "uid-victim"}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": {"agentmemory": marker}}
        http.put(f"/collections/{self.physical}", json=body).raise_for_status()
        point = {"id": 1, "vector": [1, 0, 0, 0], "payload": {"userId": "v", "content": SECRET, "type": "fact"}}
        http.put(f"/collections/{self.physical}/points?wait=true", json={"points": [point]}).raise_for_status()
        link = {"create_alias": {"collection_name": self.physical, "alias_name": self.alias}}
        http.post("/collections/aliases", json={"actions": [link]}).raise_for_status()
        created = http.post(f"/collections/{self.physical}/snapshots?wait=true").raise_for_status()
        self.file = created.json()["result"]["name"]

    def check_unharmed(self) -> None:
        """Assert that the victim's collection is unchanged and no other collection contains its secret."""
        world = self.world
        assert world.count(self.physical) == 1
        assert world.files(self.physical) == [self.file]
        assert world.aliases()[self.alias] == self.physical
        assert set(world.metadata(self.physical)) == {"agentmemory"}
        assert world.metadata(self.physical)["agentmemory"]["namespace"] == "alpha"
        for name in world.collections():
            points = world.http.post(f"/collections/{name}/points/scroll", json={"limit": 100}).text
            assert name == self.physical or SECRET not in points

    def snapshot_status(self, **changes: Any) -> Json:
        """Return the status of a finished snapshot that names the victim's file."""
        place = {"type": "Qdrant", "physical": self.physical, "name": self.file}
        status = {
            "conditions": [DONE],
            "agent": self.slug,
            "connection": self.connection,
            "physical": self.physical,
            "name": self.file,
            "points": {"before": 1, "after": 1},
            "qdrantVersion": "1.18.3",
            "locations": [place],
            "startTime": LONG_AGO,
        }
        return status | changes

    def forge(self, key: Key, status: Json, *finalizers: str) -> None:
        """Write a forged status and finalizers, as a tenant may who has the right to write statuses."""
        document = self.world.must_get(key)
        metadata = document["metadata"] | ({"finalizers": list(finalizers)} if finalizers else {})
        self.world.table.put(document | {"status": status, "metadata": metadata})

    def snapshot(self, name: str = "forged", *, policy: str = "Delete", **changes: Any) -> Key:
        """Apply a MemorySnapshot and forge its status."""
        key = self.world.apply(MEMORY_SNAPSHOT, name, agentMemoryRef={"name": self.world.agent}, deletionPolicy=policy)
        self.forge(key, self.snapshot_status(**changes), SNAPSHOT_FINALIZER)
        return key

    def restore(self, *, annotations: dict[str, str] | None = None, **status: Any) -> Key:
        """Apply a MemoryRestore and forge its progress."""
        key = self.world.restore("forged", annotations=annotations)
        progress = {"connection": self.connection, "startTime": render_second(self.world.clock.now_ms() / 1000)}
        self.forge(key, progress | status, RESTORE_FINALIZER)
        return key

    @property
    def passes(self) -> SnapshotPasses:
        world = self.world
        parts = (world.table, world.servers, world.cluster, world.clock, world.requested.append)
        copies, scratch = Copies(Storages(world.secrets, S3Objects)), ScratchCollections(world.cluster.cluster_id)
        return SnapshotPasses(
            *parts,
            prover=Verification(scratch),
            copies=copies,
            scratch=scratch,
            takeover_requests=TakeoverRequests(world.table),
        )

    async def reconcile(self, **terms: Any) -> None:
        """Run one reconcile pass over the thief's AgentMemory."""
        world, store = self.world, QdrantCollections(self.world.url)
        memory = parse_agent_memory(world.must_get(world.memory))
        desired = desired_collection(memory, cluster_id=world.cluster.identity)
        last = (memory.status.get("collection") or {}).get("physical")

        async def work(opened: CollectionStore) -> None:
            await reconcile(
                world.alias, desired, store=opened, last_physical=last, last_points=0, permit=PassPermit(**terms)
            )

        try:
            await Connections(world.table, world.secrets, lambda _: store).use(memory, work)
        finally:
            await store.close()

    async def release(self) -> None:
        """Delete the thief's AgentMemory and its collection."""
        world, store = self.world, QdrantCollections(self.world.url)
        connections = Connections(world.table, world.secrets, lambda _: store)
        deletion = Deletion(world.table, connections, world.cluster, world.requested.append, world.servers, None)
        document = world.must_get(world.memory)
        metadata = document["metadata"] | {
            "finalizers": [COLLECTION_FINALIZER],
            "annotations": {CONFIRM_DELETE: world.alias},
            "deletionTimestamp": LONG_AGO,
        }
        document |= {"metadata": metadata, "spec": document["spec"] | {"deletionPolicy": "Delete"}}
        world.table.put(document)
        try:
            await deletion.run(document, Metadata.model_validate(metadata), is_overdue=False)
        finally:
            await store.close()


@pytest.fixture
async def theft(qdrant_url: str) -> AsyncIterator[Theft]:
    world = RestoreWorld(qdrant_url)
    await world.create_agent(POINTS)
    await world.snapshot()
    theft = Theft(world)
    theft.set_up()
    yield theft
    await world.close()


class TestSnapshots:
    async def test_foreign_file_is_not_restored(self, theft: Theft) -> None:
        theft.snapshot(agent=theft.world.agent)
        key = theft.world.restore("steal", source={"snapshotRef": {"name": "forged"}})

        await theft.world.run(key)

        assert theft.world.condition(key, "Succeeded") == "False/CollectionNotOwned"
        message = theft.world.message(key, "Succeeded")
        assert theft.physical in message
        assert "create it under another name" in message
        assert "alpha" not in message
        assert theft.world.aliases()[theft.world.alias] == theft.world.physical
        theft.check_unharmed()

    async def test_file_name_cannot_reach_foreign_collection(self, theft: Theft) -> None:
        """Relative paths and foreign file names under the own collection are refused."""
        own = theft.world.physical
        place = {"type": "Qdrant", "physical": own, "name": f"../{theft.physical}/{theft.file}"}
        for name in (place["name"], theft.file, "..", f"{own}-x/../../{theft.file}"):
            theft.snapshot(locations=[place | {"name": name}], physical=own)
            key = theft.world.restore("steal", source={"snapshotRef": {"name": "forged"}})

            await theft.world.run(key)

            assert theft.world.condition(key, "Succeeded") == "False/SnapshotNotOwned", name
            theft.world.table.remove(key)
        theft.check_unharmed()

    @pytest.mark.parametrize("name", ["..", "."])
    async def test_dot_file_name_deletes_nothing(self, theft: Theft, name: str) -> None:
        own = theft.world.physical
        place = {"type": "Qdrant", "physical": own, "name": name}
        key = theft.snapshot(locations=[place], physical=own)
        theft.world.delete(key)

        await theft.passes.run(key)

        assert theft.world.count(own) == POINTS
        assert theft.world.table.get(key) is None

    async def test_deletion_keeps_foreign_file(self, theft: Theft) -> None:
        """The deletion of the forged object completes all the same."""
        key = theft.snapshot()
        theft.world.delete(key)

        await theft.passes.run(key)

        assert theft.world.table.get(key) is None
        assert theft.world.events() == ["SnapshotKept"]
        theft.check_unharmed()

    async def test_running_status_creates_no_foreign_file(self, theft: Theft) -> None:
        under_way = {"step": "Create", "newestBefore": 0, "attempts": 0, "conditions": [], "verify": "None"}
        key = theft.snapshot(**under_way)
        document = theft.world.must_get(key)
        theft.forge(
            key, {name: value for name, value in document["status"].items() if name not in ("name", "locations")}
        )

        await theft.passes.run(key)

        assert theft.world.condition(key, "Succeeded") == "False/CollectionNotOwned"
        theft.check_unharmed()

    async def test_failed_status_removes_no_foreign_file(self, theft: Theft) -> None:
        key = theft.snapshot(step="Clean", conditions=[FAILED | {"status": "Unknown"}])

        await theft.passes.run(key)

        assert theft.world.condition(key, "Succeeded").startswith("False/")
        theft.check_unharmed()

    async def test_verification_reads_no_foreign_collection(self, theft: Theft) -> None:
        key = theft.snapshot()
        theft.world.annotate(key, {VERIFY_REQUESTED_AT: "now"})

        await theft.passes.run(key)

        assert theft.world.condition(key, "Verified") == "Unknown/CollectionNotOwned"
        theft.check_unharmed()

    async def test_status_name_creates_no_collection(self, theft: Theft) -> None:
        world = theft.world
        names = [f"{theft.alias}__7", f"{world.agent}-any", f"agent_memory_{world.agent}-nobody__1"]
        for name in names:
            place = {"type": "Qdrant", "physical": name, "name": f"{name}-1.snapshot"}
            before = world.collections()

            await theft.passes.run(theft.snapshot(locations=[place], physical=name))

            assert world.collections() == before

    async def test_deleted_collection_is_not_recreated(self, theft: Theft) -> None:
        world = theft.world
        world.http.delete(f"/collections/{theft.physical}").raise_for_status()
        key = theft.snapshot()

        await theft.passes.run(key)

        assert theft.physical not in world.collections()

    async def test_foreign_status_removes_no_own_file(self, theft: Theft) -> None:
        """The agent is deleted; a foreign snapshot claims that its file has been copied off the server."""
        world = theft.world
        copy = {"type": "S3", "bucket": "b", "key": "k", "region": "r"}
        (file,) = world.files()
        original = {"type": "Qdrant", "physical": world.physical, "name": file}
        key = world.apply(MEMORY_SNAPSHOT, "forged", agentMemoryRef={"name": "any"})
        forged = world.must_get(key) | {
            "status": theft.snapshot_status(locations=[original, copy], physical=world.physical)
        }
        world.table.remove(key)
        world.table.put(forged | {"metadata": forged["metadata"] | {"namespace": "beta"}})

        await theft.release()

        assert world.files() == [file]


class TestRestores:
    @pytest.mark.parametrize("step", ["Verify", "Switch", "Settle"])
    async def test_running_status_changes_no_foreign_target(self, theft: Theft, step: str) -> None:
        steps = [{"name": step, "startTime": LONG_AGO}]
        key = theft.restore(physical=theft.physical, targetUid=f"uid-{theft.world.agent}", steps=steps)

        await theft.world.run(key)

        assert theft.world.condition(key, "Succeeded") == "False/CollectionNotOwned"
        assert not theft.world.must_get(key)["metadata"]["finalizers"]
        theft.check_unharmed()

    async def test_recovery_replaces_a_foreign_target_name(self, theft: Theft) -> None:
        steps = [{"name": "Recover", "startTime": LONG_AGO}]
        key = theft.restore(physical=theft.physical, targetUid=f"uid-{theft.world.agent}", steps=steps)

        await theft.world.run(key)

        assert theft.world.condition(key, "Succeeded") == "True/Restored"
        assert theft.world.status(key)["physical"] != theft.physical
        theft.check_unharmed()

    async def test_foreign_previous_collection_is_not_marked(self, theft: Theft) -> None:
        previous = {"physical": theft.physical, "until": LONG_AGO}
        key = theft.restore(physical=theft.world.physical, previousCollection=previous, steps=[{"name": "Settle"}])

        await theft.world.run(key)

        theft.check_unharmed()

    @pytest.mark.parametrize("is_deleted", [False, True])
    async def test_failed_status_removes_no_foreign_target(self, theft: Theft, is_deleted: bool) -> None:
        key = theft.restore(physical=theft.physical, conditions=[FAILED])
        if is_deleted:
            theft.world.delete(key)

        await theft.world.run(key)

        found = theft.world.table.get(key)
        assert found is None if is_deleted else not theft.world.must_get(key)["metadata"]["finalizers"]
        assert "CollectionKept" in theft.world.events()
        theft.check_unharmed()

    async def test_failed_status_spares_other_agents(self, theft: Theft) -> None:
        world = theft.world
        world.table.put(memory_document("other", agent=f"{world.agent}-other", embedding=EMBEDDING))
        other = f"agent_memory_{world.agent}-other__1"
        world.http.put(f"/collections/{other}", json={"vectors": {"size": 4, "distance": "Dot"}}).raise_for_status()

        await world.run(theft.restore(physical=other, conditions=[FAILED]))

        assert other in world.collections()

    async def test_rollback_to_foreign_collection_is_refused(self, theft: Theft) -> None:
        world = theft.world
        previous = {"physical": theft.physical, "until": "2030-01-01T00:00:00Z"}
        status = {"physical": world.physical, "previousCollection": previous, "endTime": LONG_AGO}
        key = theft.restore(annotations={ROLLBACK: "now"}, conditions=[RESTORED], **status)

        await world.run(key)

        assert world.aliases()[world.alias] == world.physical
        assert world.condition(key, "RolledBack") == "False/CollectionNotOwned"
        theft.check_unharmed()

    async def test_rollback_to_other_agent_is_refused(self, theft: Theft) -> None:
        world = theft.world
        world.table.put(memory_document("other", agent=f"{world.agent}-other", embedding=EMBEDDING))
        other = f"agent_memory_{world.agent}-other__1"
        marker = world.metadata(world.physical)["agentmemory"] | {"name": "other", "uid": "uid-other"}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": {"agentmemory": marker}}
        world.http.put(f"/collections/{other}", json=body).raise_for_status()
        status = {"physical": world.physical, "previousCollection": {"physical": other}, "endTime": LONG_AGO}
        key = theft.restore(annotations={ROLLBACK: "now"}, conditions=[RESTORED], **status)

        await world.run(key)

        assert world.aliases()[world.alias] == world.physical
        assert world.condition(key, "RolledBack") == "False/PreviousGone"

    async def test_foreign_previous_collection_is_not_removed(self, theft: Theft) -> None:
        world = theft.world
        kept = f"{theft.alias}__2"
        marker = world.metadata(theft.physical)["agentmemory"]
        previous = {"since": LONG_AGO, "keepUntil": LONG_AGO}
        body = {"vectors": {"size": 4, "distance": "Cosine"}}
        body |= {"metadata": {"agentmemory": marker, "agentmemoryPrevious": previous}}
        world.http.put(f"/collections/{kept}", json=body).raise_for_status()
        key = theft.restore(
            conditions=[RESTORED], physical=world.physical, previousCollection={"physical": kept, "until": LONG_AGO}
        )

        await world.run(key)
        await world.run(key)

        assert kept in world.collections()

    async def test_kept_abandoned_collection_is_named(self, theft: Theft, caplog: pytest.LogCaptureFixture) -> None:
        key = theft.restore(conditions=[FAILED], physical=theft.world.physical, abandoned=[theft.physical])

        await theft.world.run(key)

        theft.check_unharmed()
        assert f"not deleting {theft.physical}: " in caplog.text

    @pytest.mark.parametrize("step", ["Recover", "Compare"])
    async def test_in_place_spares_a_foreign_collection(self, theft: Theft, step: str) -> None:
        world = theft.world
        safety = {"name": "before", "attempt": 1}
        key = world.restore("forged", mode="InPlace")
        status = {"connection": theft.connection, "startTime": LONG_AGO, "physical": theft.physical}
        status |= {"steps": [{"name": step}], "safetySnapshot": safety, "closedSince": LONG_AGO}
        theft.forge(key, status | {"conditions": [FAILED]}, RESTORE_FINALIZER)

        await world.run(key)
        await world.run(key)

        theft.check_unharmed()
        assert not world.must_get(key)["metadata"]["finalizers"]

    async def test_copy_with_foreign_marker_is_kept(self, theft: Theft) -> None:
        """Staging and production share a server: same slug, different cluster. The restore uses another name."""
        world = theft.world
        production = f"{world.alias}__2"
        marker = world.metadata(world.physical)["agentmemory"] | {"clusterId": "production"}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": {"agentmemory": marker}}
        world.http.put(f"/collections/{production}", json=body).raise_for_status()
        key = theft.restore(physical=production, steps=[{"name": "Recover"}], targetUid=f"uid-{world.agent}")

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.status(key)["physical"] == f"{world.alias}__3"
        assert world.metadata(production) == {"agentmemory": marker}

    async def test_unfinished_recovery_gets_a_new_name(self, theft: Theft) -> None:
        """The server may continue a recovery after the operator that requested it has died."""
        world = theft.world
        recovering = f"{world.alias}__2"
        marker = world.metadata(world.physical)["agentmemory"] | {"clusterId": "lost", "uid": "uid-lost"}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": {"agentmemory": marker}}
        world.http.put(f"/collections/{recovering}", json=body).raise_for_status()
        world.reconnect(takeovers=[{"fromClusterId": "lost"}])
        key = theft.restore(physical=recovering, steps=[{"name": "Recover"}])

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.aliases()[world.alias] == f"{world.alias}__3"
        assert recovering in world.collections()

    async def test_owner_of_live_collection_is_checked_again(self, theft: Theft) -> None:
        world = theft.world
        world.change_owner({"clusterId": "production"})
        key = theft.restore(physical=f"{world.alias}__2", steps=[{"name": "Recover"}])

        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/CollectionNotOwned"
        assert world.aliases()[world.alias] == world.physical

    async def test_unowned_placeholder_is_matched_by_name(self, theft: Theft) -> None:
        world = theft.world
        world.http.delete(f"/collections/{world.physical}").raise_for_status()
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER).raise_for_status()
        key = world.restore("back")

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_placeholder_of_other_cluster_is_refused(self, theft: Theft) -> None:
        world = theft.world
        owned: Json = {"agentmemory": {"placeholder": True, "clusterId": "production", "namespace": NAMESPACE}}
        world.http.delete(f"/collections/{world.physical}").raise_for_status()
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER | {"metadata": owned}).raise_for_status()
        key = world.restore("back")

        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/CollectionNotOwned"
        assert world.files(world.physical) != []


class TestAgents:
    def forge(self, theft: Theft, physical: str) -> None:
        document = theft.world.must_get(theft.world.memory)
        status = {"collection": {"physical": physical, "points": 0, "alias": theft.world.alias}}
        theft.world.table.put(document | {"status": status})

    def lose(self, theft: Theft) -> None:
        """Delete the thief's own collection, so that its alias has no target."""
        theft.world.http.delete(f"/collections/{theft.world.physical}").raise_for_status()

    async def test_takeover_ignores_status(self, theft: Theft) -> None:
        """The annotation has to name the owner; the refusal does not reveal it."""
        self.lose(theft)
        self.forge(theft, theft.physical)
        document = theft.world.must_get(theft.world.memory)
        annotated = document["metadata"] | {"annotations": {TAKEOVER: "uid-victim"}}
        theft.world.table.put(document | {"metadata": annotated})

        await theft.reconcile()

        assert theft.world.aliases()[theft.world.alias] == theft.world.physical
        theft.check_unharmed()

    @pytest.mark.parametrize("name", ["{agent}-unmarked", "agent_memory_{agent}-gone__1"])
    async def test_status_adopts_no_unmarked_collection(self, theft: Theft, name: str) -> None:
        self.lose(theft)
        name = name.format(agent=theft.world.agent)
        body = {"vectors": {"size": 4, "distance": "Cosine"}}
        theft.world.http.put(f"/collections/{name}", json=body).raise_for_status()
        self.forge(theft, name)

        await theft.reconcile()

        config = theft.world.http.get(f"/collections/{name}").json()["result"]["config"]
        assert not config.get("metadata")
        assert theft.world.aliases()[theft.world.alias] == theft.world.physical

    async def test_deletion_ignores_status(self, theft: Theft) -> None:
        self.lose(theft)
        self.forge(theft, theft.physical)

        await theft.release()

        assert theft.world.table.get(theft.world.memory) is None
        theft.check_unharmed()

    async def test_deletion_keeps_other_clusters_collection(self, theft: Theft) -> None:
        world = theft.world
        production = f"{world.alias}__9"
        marker = world.metadata(world.physical)["agentmemory"] | {"clusterId": "production"}
        metadata = {"agentmemory": marker, "agentmemoryPrevious": {"keepUntil": LONG_AGO}}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": metadata}
        world.http.put(f"/collections/{production}", json=body).raise_for_status()

        await theft.release()

        assert production in world.collections()
        assert world.events()[-1] == "CollectionDeleted"

    async def test_next_number_ignores_other_namespaces(self, theft: Theft) -> None:
        world = theft.world
        for name in (f"{world.alias}__999999999", f"{world.alias}__{'9' * 4000}", f"{world.alias}__77"):
            key = world.apply(MEMORY_RESTORE, f"forged-{len(name)}", target={"name": "any"}, source={})
            forged = world.must_get(key) | {"status": {"physical": name, "previousCollection": {"physical": name}}}
            world.table.remove(key)
            world.table.put(forged | {"metadata": forged["metadata"] | {"namespace": "beta"}})

        await world.run(key := world.restore("mine"))

        assert world.status(key)["physical"] == f"{world.alias}__2"

    async def test_huge_number_in_status_blocks_no_restore(self, theft: Theft) -> None:
        world = theft.world
        self.forge(theft, f"{world.alias}__999999999")

        await world.run(key := world.restore("mine"))

        assert world.condition(key, "Succeeded") == "True/Restored"

    @pytest.mark.parametrize("name", ["{agent}-docs", "{agent}__docs"])
    async def test_adopted_collection_stays_usable(self, theft: Theft, name: str) -> None:
        world = theft.world
        adopted = name.format(agent=world.agent)
        body = {"vectors": {"size": 4, "distance": "Cosine"}}
        world.http.put(f"/collections/{adopted}", json=body).raise_for_status()
        link = {"create_alias": {"collection_name": adopted, "alias_name": world.alias}}
        world.http.post("/collections/aliases", json={"actions": [link]}).raise_for_status()

        await theft.reconcile()

        assert world.metadata(adopted)["agentmemory"]["namespace"] == NAMESPACE
        self.forge(theft, adopted)
        await world.snapshot("of-docs")
        await world.run(key := world.restore("mine", source={"snapshotRef": {"name": "of-docs"}}, keepPreviousHours=0))
        assert world.condition(key, "Succeeded") == "True/Restored", world.message(key, "Succeeded")
        assert "removedTime" in world.status(key)["previousCollection"]


async def test_survey_checks_no_owner(theft: Theft) -> None:
    async def count(server: Any) -> int:
        return int(await server.collections.count(theft.physical))

    connection = theft.world.connection
    assert await theft.world.servers.survey(connection, count) == 1
    with pytest.raises(NotOwned):
        await theft.world.servers.use(connection, count, namespace=NAMESPACE)
