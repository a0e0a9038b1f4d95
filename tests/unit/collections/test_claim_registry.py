"""Claims of slugs while objects, connections and other writers come and go."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentmemory_operator.collections.claim_registry import MAX_CLAIMS_AHEAD, ClaimPeriods, ClaimRegistry
from agentmemory_operator.collections.rules.claims import ClaimSet, SlugClaim
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.rules.orphans import CollectionSummary
from agentmemory_operator.errors import Conflict, LeadershipLost, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, key_of
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClaimStore, FakeCluster, FakeSecrets
from tests.support.job.schedule_world import snapshot_document
from tests.support.spec.documents import connection_document, memory_document
from tests.support.spec.plans import desired_of

QUICK = ClaimPeriods(
    first_set_timeout_s=0.3, survey_timeout_s=0.2, retry_period_s=0.02, check_period_s=0.05, deletion_delay_s=0.0
)
BOT = "agent_memory_bot"


class Bench:
    """Claims over servers by URL, on fakes of our ports."""

    def __init__(self, periods: ClaimPeriods = QUICK) -> None:
        self.table, self.store, self.requested = ObjectTable(), FakeClaimStore(), list[Key]()
        self.servers: dict[str, FakeCollectionStore] = {}
        self.namespaces = FakeCluster(namespaces={"alpha": {"team": "a"}})
        connections = Connections(self.table, FakeSecrets(), self._open, namespaces=self.namespaces)
        self.claims = ClaimRegistry(
            self.store, self.table, connections, FakeCluster().cluster_id, self.requested.append, periods
        )

    def _open(self, endpoint: Endpoint) -> FakeCollectionStore:
        return self.servers[endpoint.url]

    def connect(self, name: str = "main", **spec: object) -> FakeCollectionStore:
        """Put a connection of namespace infra, open to all, and return its server."""
        url = f"http://{name}:6333"
        self.table.put(
            connection_document(name, namespace="infra", **({"url": url, "namespaces": {"from": "All"}} | spec))
        )
        return self.servers.setdefault(url, FakeCollectionStore())

    def put(self, namespace: str, *, name: str = "bot", created: str = "2026-01-01T00:00:00Z") -> AgentMemory:
        """Put an AgentMemory that names the slug `bot`."""
        document = agent(namespace, name, created)
        self.table.put(document)
        return parse_agent_memory(document)

    def drop(self, memory: AgentMemory) -> None:
        key = Key(AGENT_MEMORY, memory.metadata.namespace, memory.metadata.name)
        document = self.table.get(key)
        assert document is not None
        self.table.remove(key)
        self.claims.note_deletion(document)

    def owner(self, slug: str = "bot") -> str | None:
        claim = self.store.stored.claims.get(slug)
        return claim.namespace if claim else None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.claims.load()
        task = asyncio.create_task(self.claims.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def agent(namespace: str, name: str, created: str) -> Json:
    metadata = {"namespace": namespace, "uid": f"uid-{namespace}", "creationTimestamp": created}
    ref = {"name": "main", "namespace": "infra"}
    return memory_document(name, metadata=metadata, agent="bot", connectionRef=ref)


def put_unreconciled(
    bench: Bench,
    name: str,
    *,
    namespace: str = "alpha",
    created: str = "2026-01-01T00:00:00Z",
    **more: object,
) -> AgentMemory:
    """Put an AgentMemory that no pass has read."""
    metadata = {"namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": created}
    if deleted := more.pop("deletionTimestamp", None):
        metadata["deletionTimestamp"] = str(deleted)
    document = memory_document(name, metadata=metadata, connectionRef={"name": "main", "namespace": "infra"}, **more)
    bench.table.put(document)
    return parse_agent_memory(document)


def collection_of(namespace: str, *, connection: str | None = "infra/main", cluster: str = "cluster-1") -> Collection:
    desired = desired_of()
    assert desired.marker is not None
    owner = replace(desired.marker, cluster_id=cluster, namespace=namespace, name="bot", uid=f"uid-{namespace}")
    return replace(desired, marker=replace(owner, connection=connection))


async def until(holds: object, bench: Bench | None = None) -> None:
    async with asyncio.timeout(3):
        while not (holds() if callable(holds) else holds):
            await asyncio.sleep(0.005)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def assert_claim_kept(bench: Bench) -> None:
    """Assert that the claim outlives its object."""
    memory = bench.put("alpha")
    async with bench.running():
        await until(lambda: bench.owner() == "alpha")
        bench.drop(memory)
        await asyncio.sleep(0.15)

    assert bench.owner() == "alpha"


class TestFirstSet:
    async def test_collection_marker_outranks_object(self, bench: Bench) -> None:
        bench.connect().collections[f"{BOT}__1"] = collection_of("alpha")
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)

        assert bench.owner() == "alpha"
        assert bench.table.find_owner("bot") is None
        assert bench.table.find_namespace("bot") == "alpha"

    async def test_marker_without_connection_counts(self, bench: Bench) -> None:
        """Commit 4f95245 wrote markers without a connection."""
        bench.connect().collections[f"{BOT}__1"] = collection_of("alpha", connection=None)

        async with bench.running():
            await until(lambda: bench.owner() == "alpha")

        assert bench.store.stored.claims["bot"].connections == ("infra/main",)

    @pytest.mark.parametrize(
        "marked",
        [
            pytest.param(collection_of("alpha", cluster="cluster-2"), id="another cluster's"),
            pytest.param(collection_of("alpha", connection="infra/other"), id="copied from another server"),
            pytest.param(replace(collection_of("alpha"), marker=None), id="unmarked"),
            pytest.param(collection_of(""), id="without a namespace"),
        ],
    )
    async def test_invalid_marker_is_ignored(self, bench: Bench, marked: Collection) -> None:
        bench.connect().collections[f"{BOT}__1"] = marked
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.owner() == "beta")

    async def test_marker_needs_allowed_namespace(self, bench: Bench) -> None:
        """A tenant's own server cannot claim a slug for another namespace."""
        bench.connect(namespaces={"from": "Same"}).collections[f"{BOT}__1"] = collection_of("alpha")
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.owner() == "beta")

    async def test_oldest_object_owns_slug_without_collections(self, bench: Bench) -> None:
        bench.connect()
        bench.put("beta", created="2026-02-01T00:00:00Z")
        bench.put("alpha")

        async with bench.running():
            await until(lambda: bench.owner() == "alpha")

    async def test_oldest_object_owns_slug_until_complete(self) -> None:
        bench = Bench(replace(QUICK, first_set_timeout_s=60.0))
        bench.connect().error = StoreUnavailable("away")
        memory = bench.put("beta")

        async with bench.running():
            await bench.claims.claim(memory)
            await asyncio.sleep(0.05)

            assert not bench.store.saves
            assert bench.table.find_owner("bot") == Key(AGENT_MEMORY, "beta", "bot")

    async def test_unavailable_connection_is_read_later(self, bench: Bench) -> None:
        server = bench.connect("gone")
        server.collections["agent_memory_kept__1"] = collection_of("alpha", connection=None)
        server.error = StoreUnavailable("away")
        bench.connect()
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            assert bench.store.stored.unread == {"infra/gone"}
            assert bench.owner("kept") is None
            server.error = None
            await until(lambda: bench.owner("kept") == "alpha")

        assert bench.store.stored.unread == frozenset()
        assert bench.owner() == "beta"

    async def test_unreadable_labels_delay_one_connection(self, bench: Bench) -> None:
        labelled = {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}
        bench.connect("labelled", namespaces=labelled).collections[f"{BOT}__1"] = collection_of(
            "alpha", connection=None
        )
        bench.connect().collections["agent_memory_kept__1"] = collection_of("beta")
        bench.namespaces.error = TransientError("403")

        async with bench.running():
            await until(lambda: bench.owner("kept") == "beta")
            assert bench.store.stored.unread == {"infra/labelled"}
            bench.namespaces.error = None
            await until(lambda: bench.owner() == "alpha")

    async def test_hanging_server_delays_others_briefly(self, bench: Bench) -> None:
        class HangingStore(FakeCollectionStore):
            async def list_agent_collections(self) -> list[CollectionSummary]:
                await asyncio.sleep(3600)
                return []

        bench.servers["http://slow:6333"] = HangingStore()
        bench.connect("slow")
        bench.connect()
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.owner() == "beta")

    async def test_incomplete_set_keeps_known_claims(self, bench: Bench) -> None:
        bench.connect()
        known = SlugClaim(namespace="alpha", uid="u", connections=("infra/main",))
        bench.store.stored = ClaimSet(claims={"other": known}, is_complete=False)
        bench.connect().collections["agent_memory_other__1"] = collection_of("beta")

        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)

        assert bench.owner("other") == "alpha"


class TestClaim:
    async def test_is_saved_first_and_once(self, bench: Bench) -> None:
        bench.connect()
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            memory = bench.put("beta")
            await bench.claims.claim(memory)
            written = len(bench.store.saves)
            await bench.claims.claim(memory)

        assert bench.store.stored.claims["bot"] == SlugClaim(
            namespace="beta", uid="uid-beta", connections=("infra/main",)
        )
        assert len(bench.store.saves) == written

    async def test_concurrent_claims_share_a_write(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            before = len(bench.store.saves)
            memories = [
                parse_agent_memory(memory_document(f"m{number}", connectionRef={"name": "main"}))
                for number in range(100)
            ]

            await asyncio.gather(*map(bench.claims.claim, memories))

            assert len(bench.store.stored.claims) == 100
            assert len(bench.store.saves) - before <= 2

    async def test_includes_waiting_objects_of_namespace(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            before = len(bench.store.saves)
            memories = [put_unreconciled(bench, f"m{number}") for number in range(20)]
            for memory in memories:
                await bench.claims.claim(memory)

        assert len(bench.store.saves) - before == 1
        assert {claim.uid for claim in bench.store.stored.claims.values()} == {f"uid-m{n}" for n in range(20)}

    async def test_excludes_unclaimable_objects(self, bench: Bench) -> None:
        """Excludes objects of another namespace, suspended, deleted, invalid, or younger than one of the same slug."""
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            first = put_unreconciled(bench, "first")
            put_unreconciled(bench, "elsewhere", namespace="beta")
            put_unreconciled(bench, "suspended", suspend=True)
            put_unreconciled(bench, "going", deletionTimestamp="2026-01-02T00:00:00Z")
            bench.table.put(memory_document("invalid", metadata={"uid": "u"}, types=[{"name": "a", "halfLifeDays": 0}]))
            put_unreconciled(bench, "younger", agent="contested")
            put_unreconciled(bench, "older", agent="contested", namespace="beta", created="2025-01-01T00:00:00Z")

            await bench.claims.claim(first)

        assert set(bench.store.stored.claims) == {"first"}

    async def test_includes_limited_number_of_objects(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            memories = [put_unreconciled(bench, f"m{number}") for number in range(2 * MAX_CLAIMS_AHEAD)]

            await bench.claims.claim(memories[-1])

        assert MAX_CLAIMS_AHEAD <= len(bench.store.stored.claims) <= MAX_CLAIMS_AHEAD + 1

    async def test_concurrent_namespaces_get_one_owner(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            memories = [bench.put("alpha"), bench.put("beta")]

            done = await asyncio.gather(*map(bench.claims.claim, memories), return_exceptions=True)

            owner = bench.owner()
            assert sorted(isinstance(answer, TransientError) for answer in done) == [False, True]
            (loser,) = [memory for memory in memories if memory.metadata.namespace != owner]
            assert bench.claims.find_blocking(loser) is not None

    async def test_failed_write_claims_nothing(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            bench.store.errors = [TransientError("away")]
            memory = bench.put("beta")

            with pytest.raises(TransientError):
                await bench.claims.claim(memory)
            assert bench.owner() is None
            await bench.claims.claim(memory)

        assert bench.owner() == "beta"

    async def test_waiter_retries_failed_write(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            bench.store.errors = [TransientError("away"), TransientError("away")]
            memories = [parse_agent_memory(memory_document(f"m{number}")) for number in range(10)]

            done = await asyncio.gather(*map(bench.claims.claim, memories), return_exceptions=True)

            failed = {f"m{number}" for number, answer in enumerate(done) if answer is not None}
            assert len(failed) == 2
            assert {f"m{number}" for number in range(10)} - failed <= bench.store.stored.claims.keys()

    async def test_concurrent_external_claim_wins(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            theirs = SlugClaim(namespace="alpha", uid="u")
            bench.store.stored = ClaimSet(claims={"bot": theirs}, is_complete=True)
            bench.store.errors = [Conflict("409")]
            memory = bench.put("beta")

            with pytest.raises(TransientError):
                await bench.claims.claim(memory)

            assert bench.claims.find_blocking(memory) == theirs

    async def test_lost_lease_stops_registry(self, bench: Bench) -> None:
        bench.store.errors = [LeadershipLost("lost")]
        await bench.claims.load()

        with pytest.raises(LeadershipLost):
            await bench.claims.run()


class TestEnd:
    async def test_ends_with_collection_and_wakes_waiter(self, bench: Bench) -> None:
        server = bench.connect()
        server.collections[f"{BOT}__1"] = collection_of("alpha")
        memory = bench.put("alpha")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            waiting = bench.put("beta", created="2026-02-01T00:00:00Z")
            bench.drop(memory)
            await asyncio.sleep(0.15)
            assert bench.owner() == "alpha", "its collection is there"
            bench.requested.clear()

            del server.collections[f"{BOT}__1"]

            await until(lambda: bench.owner() is None)
            assert key_of(agent("beta", "bot", "")) in bench.requested
            assert bench.claims.find_blocking(waiting) is None

    @pytest.mark.parametrize("left", [BOT, f"{BOT}__7"])
    async def test_unmarked_collection_keeps_claim(self, bench: Bench, left: str) -> None:
        server = bench.connect()
        server.collections[left] = replace(desired_of(), marker=None)
        await assert_claim_kept(bench)

    async def test_adopted_collection_keeps_claim(self, bench: Bench) -> None:
        server = bench.connect()
        server.collections["docs"], server.aliases[BOT] = collection_of("alpha"), "docs"
        await assert_claim_kept(bench)

    async def test_longer_slug_does_not_keep_claim(self, bench: Bench) -> None:
        bench.connect().collections[f"{BOT}-two__1"] = replace(desired_of(), marker=None)
        memory = bench.put("alpha")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            bench.drop(memory)
            await until(lambda: bench.owner() is None)

    async def test_deletion_is_retried_before_next_check(self) -> None:
        bench = Bench(replace(QUICK, retry_period_s=0.05, check_period_s=600.0))
        server = bench.connect()
        memory = bench.put("alpha")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            server.error = StoreUnavailable("away")
            bench.drop(memory)
            await asyncio.sleep(0.02)
            server.error = None
            await until(lambda: bench.owner() is None)

    async def test_unavailable_server_does_not_delay_check(self) -> None:
        bench = Bench(replace(QUICK, retry_period_s=0.001))
        bench.connect().collections[f"{BOT}__1"] = collection_of("alpha")
        away = bench.connect("away")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            away.error = StoreUnavailable("away")
            other = memory_document(
                "other",
                metadata={"namespace": "beta", "uid": "uid-other", "creationTimestamp": "2026-01-01T00:00:00Z"},
                connectionRef={"name": "away", "namespace": "infra"},
            )
            bench.table.put(other)
            await bench.claims.claim(parse_agent_memory(other))
            bench.table.remove(key_of(other))
            bench.claims.note_deletion(other)
            del bench.servers["http://main:6333"].collections[f"{BOT}__1"]
            await until(lambda: bench.owner() is None)

    @pytest.mark.parametrize("is_deleted", [False, True])
    async def test_missing_connection_keeps_claim(self, bench: Bench, is_deleted: bool) -> None:
        server = bench.connect()
        memory = bench.put("alpha")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            if is_deleted:
                bench.table.remove(key_of(connection_document(namespace="infra")))
            else:
                server.error = StoreUnavailable("away")
            bench.drop(memory)
            await asyncio.sleep(0.15)

        assert bench.owner() == "alpha"

    async def test_manual_reservation_stays(self, bench: Bench) -> None:
        bench.connect()
        bench.store.stored = ClaimSet(claims={"bot": SlugClaim(namespace="alpha", uid="")}, is_complete=True)
        async with bench.running():
            await asyncio.sleep(0.15)

            assert bench.claims.find_blocking(bench.put("beta")) is not None

        assert bench.owner() == "alpha"

    async def test_all_known_connections_must_be_empty(self, bench: Bench) -> None:
        bench.connect("old").collections[f"{BOT}__1"] = collection_of("alpha")
        bench.connect()
        known = SlugClaim(namespace="alpha", uid="u", connections=("infra/main", "infra/old"))
        bench.store.stored = ClaimSet(claims={"bot": known}, is_complete=True)
        async with bench.running():
            await asyncio.sleep(0.15)

        assert bench.owner() == "alpha"

    async def test_only_own_namespace_snapshot_keeps_claim(self, bench: Bench) -> None:
        bench.connect()
        memory = bench.put("alpha")
        own, other = snapshot_document("kept"), snapshot_document("forged")
        own["metadata"]["namespace"], other["metadata"]["namespace"] = "alpha", "beta"
        own["status"] = other["status"] = {"agent": "bot"}
        bench.table.put(own)
        bench.table.put(other)
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            bench.drop(memory)
            await asyncio.sleep(0.15)
            assert bench.owner() == "alpha"

            bench.table.remove(key_of(own))
            bench.claims.note_deletion(own)

            await until(lambda: bench.owner() is None)


class TestTakeover:
    GIVEN = {"agent": "bot", "fromUid": "uid-alpha", "toNamespace": "beta"}  # noqa: RUF012

    async def put_successor(self, bench: Bench, **spec: object) -> AgentMemory:
        """Put beta's object after alpha's was deleted and left its collection."""
        bench.connect(**spec).collections[f"{BOT}__1"] = collection_of("alpha")
        await bench.claims.load()
        await bench.claims._complete()
        return bench.put("beta")

    async def test_entry_moves_claim(self, bench: Bench) -> None:
        memory = await self.put_successor(bench, takeovers=[self.GIVEN])

        assert await bench.claims.transfer(memory)

        assert bench.store.stored.claims["bot"] == SlugClaim(
            namespace="beta", uid="uid-beta", connections=("infra/main",)
        )

    @pytest.mark.parametrize("other", [{"agent": "tob"}, {"fromUid": "uid-gamma"}, {"toNamespace": "gamma"}])
    async def test_other_entry_moves_nothing(self, bench: Bench, other: dict[str, str]) -> None:
        memory = await self.put_successor(bench, takeovers=[self.GIVEN | other, {"fromClusterId": "cluster-1"}])

        assert not await bench.claims.transfer(memory)

    async def test_existing_owner_keeps_claim(self, bench: Bench) -> None:
        memory = await self.put_successor(bench, takeovers=[self.GIVEN])
        bench.put("alpha")

        assert not await bench.claims.transfer(memory)
