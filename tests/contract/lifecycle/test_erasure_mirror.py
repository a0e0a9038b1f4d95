"""The mirror of erasures in object storage: complete after a crash, and applied to a restored copy."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import ChecksumMismatch, SpecInvalid, StorageUnavailable, StoreUnavailable
from agentmemory_operator.lifecycle.erasure_mirror import ErasureMirror
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of_memory
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.agents import EVERYTHING, World, create_copy, delete_collection
from tests.support.engine.fakes import FakeCluster, FakeSecrets
from tests.support.engine.reused_agents import reuse_world
from tests.support.engine.stored_files import MemoryObjects
from tests.support.spec.documents import cluster_id, connection_document, memory_document

STORAGE = {"s3": {"bucket": "backups", "prefix": "prod"}}
CONNECTION = Key("QdrantConnection", "agents", "main")
SOURCE = KeywordSource(language="english", window=2)
HOUR_MS = 3_600_000


@dataclass(slots=True)
class MirroredAgent:
    """An agent with mirrored erasures, and an empty copy of its collection."""

    world: World
    memory: AgentMemory
    copy: str
    table: ObjectTable
    servers: Servers
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    shared: frozenset[str] | None = None

    def mirror(self) -> ErasureMirror:
        """Build the mirror of an operator that has just started."""
        storages = Storages(
            FakeSecrets(), lambda bucket: self.objects, shared=self.shared, namespace_of=self.table.find_namespace
        )
        parts = (self.table, self.servers, storages, ErasureReplay(self.world.clock), self.world.clock)
        return ErasureMirror(*parts, cluster_id=cluster_id)

    @property
    def lines(self) -> list[bytes]:
        """Lines of all objects in the storage."""
        return [line for whole, _ in self.objects.objects.values() for line in whole.splitlines()]

    async def forget(self, user: str) -> None:
        scope = ErasureScope(user_id=user, is_whole=True)
        await self.world.forgetting.forget(self.world.agent, ForgetRequest(scope=scope, filters={}))

    async def reapply(self, *, since_ms: int = 0, slug: str = "") -> int:
        async def operation(server: Server) -> int:
            agent = slug or self.memory.slug
            return await self.mirror().reapply(server, self.copy, self.memory, slug=agent, since_ms=since_ms)

        return await self.servers.use(CONNECTION, operation, namespace="agents")

    async def users(self) -> set[str]:
        """Return the users in the copy."""
        body = {"filter": {"must": []}, "limit": 1000, "with_payload": True}
        points, _ = await self.world.agent.store.scroll(self.copy, body)
        return {point["payload"]["userId"] for point in points if "userId" in point["payload"]}


@pytest.fixture
async def site(qdrant_url: str) -> AsyncIterator[MirroredAgent]:
    opened: list[Server] = []

    def open_server(endpoint: Endpoint) -> Server:
        parts = QdrantCollections(endpoint.url), QdrantSnapshots(endpoint.url), QdrantPoints(endpoint.url)
        opened.append(Server(endpoint, *parts))
        return opened[-1]

    async with reuse_world(qdrant_url, keyword=SOURCE, ranking=EVERYTHING) as world:
        settings = world.agent.settings
        copy = await create_copy(qdrant_url, settings, keyword=SOURCE)
        document = memory_document(settings.slug, agent=settings.slug, snapshots={"storage": STORAGE})
        document["status"] = {"collection": {"physical": f"{settings.alias}__1"}}
        table = ObjectTable()
        for found in (connection_document(url=qdrant_url), document):
            table.put(found)
        servers = Servers(table, FakeSecrets(), open_server, cluster_id=FakeCluster().cluster_id)
        yield MirroredAgent(world, parse_agent_memory(document), copy, table, servers)
        await delete_collection(qdrant_url, settings, number=2)
    for server in opened:
        await server.close()


async def remember_in_both(site: MirroredAgent, user: str, *texts: str) -> None:
    for text in texts:
        await site.world.add(text, user_id=user)
    body = {"filter": {"must": []}, "limit": 1000, "with_payload": True, "with_vector": True}
    points, _ = await site.world.agent.store.scroll(site.world.agent.alias, body)
    bare = [{"id": p["id"], "vector": p.get("vector") or {}, "payload": p["payload"]} for p in points]
    await site.world.agent.store.upsert(site.copy, bare)


async def test_mirror_alone_erases_in_the_copy(site: MirroredAgent) -> None:
    # A hexadecimal hash cannot contain this name by chance.
    await remember_in_both(site, "olga", "likes tea", "lives in Oslo")
    await remember_in_both(site, "bob", "likes coffee")
    await site.forget("olga")

    await site.mirror().write_new_traces(site.memory)

    assert await site.reapply() == 2
    assert await site.users() == {"bob"}
    assert not any(word in line for line in site.lines for word in (b"olga", b"tea", b"Oslo"))


async def test_traces_are_written_once_across_restarts(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea")
    await site.forget("ada")
    mirror = site.mirror()

    assert await mirror.write_new_traces(site.memory) == 2
    assert await mirror.write_new_traces(site.memory) == 0
    assert await site.mirror().write_new_traces(site.memory) == 0
    assert len(site.objects.objects) == 1


async def test_later_run_adds_a_second_object(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea")
    await remember_in_both(site, "bob", "likes coffee")
    mirror = site.mirror()
    await site.forget("ada")
    await mirror.write_new_traces(site.memory)
    site.world.clock.move(ms=5 * HOUR_MS)
    await site.forget("bob")

    assert await mirror.write_new_traces(site.memory) == 2

    assert len(site.objects.objects) == 2
    assert await site.reapply() == 2
    assert await site.users() == set()


async def test_traces_of_deleted_objects_are_dropped(site: MirroredAgent) -> None:
    mirror = site.mirror()
    await mirror.write_new_traces(site.memory)
    recreated = site.memory.model_copy(update={"metadata": site.memory.metadata.model_copy(update={"uid": "other"})})
    document = site.table.get(key_of_memory(site.memory)) or {}
    site.table.put(document | {"metadata": document["metadata"] | {"uid": "other"}})

    await mirror.write_new_traces(recreated)

    assert {uid for uid, _ in mirror._known} == {"other"}


async def test_reapply_reads_only_recent_erasures(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea")
    await site.forget("ada")
    await site.mirror().write_new_traces(site.memory)

    assert await site.reapply(since_ms=site.world.clock.now_ms() + 3 * HOUR_MS) == 0
    assert await site.reapply(since_ms=site.world.clock.now_ms() + HOUR_MS) == 1


async def test_next_run_completes_a_killed_one(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea", "lives in Oslo")
    await site.forget("ada")
    whole = MemoryObjects()
    site.objects, broken = DyingObjects(puts=1), whole
    # The mirror writes two objects: receipts, then tombstones.
    with pytest.raises(StorageUnavailable):
        await replace(site.mirror(), part_bytes=1).write_new_traces(site.memory)
    broken.objects = site.objects.objects
    site.objects = broken
    site.world.clock.move(ms=5 * HOUR_MS)

    await site.mirror().write_new_traces(site.memory)

    assert len(site.lines) == len(set(site.lines)) == 3


class DyingObjects(MemoryObjects):
    """A storage that becomes unavailable after `puts` objects."""

    def __init__(self, *, puts: int) -> None:
        super().__init__()
        self.left = puts

    async def put(self, key: str, content: AsyncIterator[bytes], **more: Any) -> Any:
        if not self.left:
            raise StorageUnavailable("away")
        self.left -= 1
        return await super().put(key, content, **more)


async def test_corrupt_object_raises_and_is_rewritten(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea")
    await site.forget("ada")
    await site.mirror().write_new_traces(site.memory)
    ((key, (whole, metadata)),) = site.objects.objects.items()
    site.objects.objects[key] = whole[:-5], metadata
    with pytest.raises(ChecksumMismatch):
        await site.reapply()
    site.world.clock.move(ms=1000)

    assert await site.mirror().write_new_traces(site.memory) == 2


async def test_shared_bucket_hides_other_namespaces(site: MirroredAgent) -> None:
    """The owner of the snapshot comes from a status, which may be forged."""
    site.shared = frozenset({"backups"})
    site.table.put(memory_document("victim", agent="victim", metadata={"namespace": "another"}))
    site.objects.objects = {"prod/another/victim/erased/1-0000-last.ndjson": (b"", {})}

    with pytest.raises(SpecInvalid, match="name a Secret"):
        await site.reapply(slug="victim")
    await remember_in_both(site, "ada", "likes tea")
    await site.forget("ada")
    assert await site.mirror().write_new_traces(site.memory) == 2
    assert await site.reapply() == 1


async def test_agent_without_storage_has_no_mirror(site: MirroredAgent) -> None:
    document = memory_document(site.memory.slug, agent=site.memory.slug)
    assert await site.mirror().write_new_traces(parse_agent_memory(document)) == 0
    assert site.objects.objects == {}


async def test_unreadable_agent_does_not_block_others(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea")
    await site.forget("ada")
    site.table.put(
        memory_document("aaa", agent="aaa", snapshots={"storage": STORAGE})
        | {"status": {"collection": {"physical": "gone__1"}}}
    )
    mirror = site.mirror()

    for key in site.table.keys("AgentMemory"):
        await mirror.mirror_object(key)

    assert len(site.lines) == 2


async def test_collection_of_another_cluster_is_not_mirrored(site: MirroredAgent) -> None:
    await remember_in_both(site, "ada", "likes tea")
    await site.forget("ada")
    mirror = site.mirror()
    mirror.cluster_id = other_cluster_id

    with pytest.raises(StoreUnavailable, match="another owner"):
        await mirror.write_new_traces(site.memory)

    assert site.objects.objects == {}


async def other_cluster_id() -> str:
    return "another"
