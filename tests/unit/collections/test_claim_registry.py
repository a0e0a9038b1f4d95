"""The claims as objects, connections and other hands come and go."""

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
        connections = Connections(self.table, FakeSecrets(), self._open, namespaces=FakeCluster())
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


def waiting(
    bench: Bench,
    name: str,
    *,
    namespace: str = "alpha",
    created: str = "2026-01-01T00:00:00Z",
    **more: object,
) -> AgentMemory:
    """Put an AgentMemory that no pass has looked at."""
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


async def check_kept(bench: Bench) -> None:
    """Fail where a claim does not outlive its object."""
    memory = bench.put("alpha")
    async with bench.running():
        await until(lambda: bench.owner() == "alpha")
        bench.drop(memory)
        await asyncio.sleep(0.15)

    assert bench.owner() == "alpha"


class TestFirstSet:
    async def test_collections_say_whose_a_slug_is_though_the_object_is_gone_and_another_is_there(
        self, bench: Bench
    ) -> None:
        bench.connect().collections[f"{BOT}__1"] = collection_of("alpha")
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)

        assert bench.owner() == "alpha"
        assert bench.table.find_owner("bot") is None
        assert bench.table.find_namespace("bot") == "alpha"

    async def test_what_4f95245_wrote_counts_a_marker_without_its_connection(self, bench: Bench) -> None:
        bench.connect().collections[f"{BOT}__1"] = collection_of("alpha", connection=None)

        async with bench.running():
            await until(lambda: bench.owner() == "alpha")

        assert bench.store.stored.claims["bot"].connections == ("infra/main",)

    @pytest.mark.parametrize(
        "marked",
        [
            pytest.param(collection_of("alpha", cluster="cluster-2"), id="another cluster's"),
            pytest.param(collection_of("alpha", connection="infra/other"), id="copied from another server"),
            pytest.param(replace(collection_of("alpha"), marker=None), id="nobody's"),
            pytest.param(collection_of(""), id="of no namespace"),
        ],
    )
    async def test_what_is_no_witness_leaves_the_slug_to_the_objects(self, bench: Bench, marked: Collection) -> None:
        bench.connect().collections[f"{BOT}__1"] = marked
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.owner() == "beta")

    async def test_a_marker_counts_only_where_the_connection_allows_its_namespace(self, bench: Bench) -> None:
        """Beta's own server says that alpha has a slug, or that beta's neighbour had it: nobody heeds it."""
        bench.connect(namespaces={"from": "Same"}).collections[f"{BOT}__1"] = collection_of("alpha")
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.owner() == "beta")

    async def test_without_collections_the_oldest_object_has_it(self, bench: Bench) -> None:
        bench.connect()
        bench.put("beta", created="2026-02-01T00:00:00Z")
        bench.put("alpha")

        async with bench.running():
            await until(lambda: bench.owner() == "alpha")

    async def test_until_then_a_slug_is_its_oldest_object_s_and_nothing_is_written(self) -> None:
        bench = Bench(replace(QUICK, first_set_timeout_s=60.0))
        bench.connect().error = StoreUnavailable("away")
        memory = bench.put("beta")

        async with bench.running():
            await bench.claims.claim(memory)
            await asyncio.sleep(0.05)

            assert not bench.store.saves
            assert bench.table.find_owner("bot") == Key(AGENT_MEMORY, "beta", "bot")

    async def test_a_connection_that_stays_away_holds_the_set_up_for_a_while_and_is_heard_when_it_is_back(
        self, bench: Bench
    ) -> None:
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

    async def test_a_server_that_never_ends_its_answer_holds_nobody_up_for_long(self, bench: Bench) -> None:
        class StandsStill(FakeCollectionStore):
            async def list_agent_collections(self) -> list[CollectionSummary]:
                await asyncio.sleep(3600)
                return []

        bench.servers["http://slow:6333"] = StandsStill()
        bench.connect("slow")
        bench.connect()
        bench.put("beta")

        async with bench.running():
            await until(lambda: bench.owner() == "beta")

    async def test_a_part_that_was_lost_is_made_again_and_what_was_known_stays(self, bench: Bench) -> None:
        bench.connect()
        known = SlugClaim(namespace="alpha", uid="u", connections=("infra/main",))
        bench.store.stored = ClaimSet(claims={"other": known}, is_complete=False)
        bench.connect().collections["agent_memory_other__1"] = collection_of("beta")

        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)

        assert bench.owner("other") == "alpha"


class TestClaim:
    async def test_it_is_recorded_before_anything_is_made_and_only_once(self, bench: Bench) -> None:
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

    async def test_many_at_once_are_written_together(self, bench: Bench) -> None:
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

    async def test_those_of_its_namespace_that_wait_for_their_passes_are_written_with_it(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            before = len(bench.store.saves)
            memories = [waiting(bench, f"m{number}") for number in range(20)]
            for memory in memories:
                await bench.claims.claim(memory)

        assert len(bench.store.saves) - before == 1
        assert {claim.uid for claim in bench.store.stored.claims.values()} == {f"uid-m{n}" for n in range(20)}

    async def test_what_its_own_pass_would_not_claim_is_not_taken_along(self, bench: Bench) -> None:
        """Of another namespace, suspended, being deleted, not valid, younger than another of its slug."""
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            first = waiting(bench, "first")
            waiting(bench, "elsewhere", namespace="beta")
            waiting(bench, "suspended", suspend=True)
            waiting(bench, "going", deletionTimestamp="2026-01-02T00:00:00Z")
            bench.table.put(memory_document("invalid", metadata={"uid": "u"}, types=[{"name": "a", "halfLifeDays": 0}]))
            waiting(bench, "younger", agent="contested")
            waiting(bench, "older", agent="contested", namespace="beta", created="2025-01-01T00:00:00Z")

            await bench.claims.claim(first)

        assert set(bench.store.stored.claims) == {"first"}

    async def test_of_very_many_a_pass_takes_along_a_share(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            memories = [waiting(bench, f"m{number}") for number in range(2 * MAX_CLAIMS_AHEAD)]

            await bench.claims.claim(memories[-1])

        assert MAX_CLAIMS_AHEAD <= len(bench.store.stored.claims) <= MAX_CLAIMS_AHEAD + 1

    async def test_of_two_namespaces_that_take_a_free_name_at_once_one_has_it_and_the_other_is_told(
        self, bench: Bench
    ) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            memories = [bench.put("alpha"), bench.put("beta")]

            done = await asyncio.gather(*map(bench.claims.claim, memories), return_exceptions=True)

            owner = bench.owner()
            assert sorted(isinstance(answer, TransientError) for answer in done) == [False, True]
            (loser,) = [memory for memory in memories if memory.metadata.namespace != owner]
            assert bench.claims.find_blocking(loser) is not None

    async def test_one_that_cannot_be_written_is_none(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            bench.store.errors = [TransientError("away")]
            memory = bench.put("beta")

            with pytest.raises(TransientError):
                await bench.claims.claim(memory)
            assert bench.owner() is None
            await bench.claims.claim(memory)

        assert bench.owner() == "beta"

    async def test_who_waited_for_a_write_that_failed_writes_itself(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            bench.store.errors = [TransientError("away"), TransientError("away")]
            memories = [parse_agent_memory(memory_document(f"m{number}")) for number in range(10)]

            done = await asyncio.gather(*map(bench.claims.claim, memories), return_exceptions=True)

            failed = {f"m{number}" for number, answer in enumerate(done) if answer is not None}
            assert len(failed) == 2
            assert {f"m{number}" for number in range(10)} - failed <= bench.store.stored.claims.keys()

    async def test_what_another_hand_wrote_meanwhile_holds(self, bench: Bench) -> None:
        async with bench.running():
            await until(lambda: bench.store.stored.is_complete)
            theirs = SlugClaim(namespace="alpha", uid="u")
            bench.store.stored = ClaimSet(claims={"bot": theirs}, is_complete=True)
            bench.store.errors = [Conflict("409")]
            memory = bench.put("beta")

            with pytest.raises(TransientError):
                await bench.claims.claim(memory)

            assert bench.claims.find_blocking(memory) == theirs

    async def test_who_lost_the_lease_stops(self, bench: Bench) -> None:
        bench.store.errors = [LeadershipLost("lost")]
        await bench.claims.load()

        with pytest.raises(LeadershipLost):
            await bench.claims.run()


class TestEnd:
    async def test_a_claim_ends_when_nothing_is_left_and_who_waits_for_the_slug_is_looked_at(
        self, bench: Bench
    ) -> None:
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
    async def test_a_placeholder_or_a_collection_that_was_replaced_keeps_it(self, bench: Bench, left: str) -> None:
        server = bench.connect()
        server.collections[left] = replace(desired_of(), marker=None)
        await check_kept(bench)

    async def test_a_collection_of_another_name_that_was_adopted_behind_the_alias_keeps_it(self, bench: Bench) -> None:
        server = bench.connect()
        server.collections["docs"], server.aliases[BOT] = collection_of("alpha"), "docs"
        await check_kept(bench)

    async def test_a_namesake_with_a_longer_name_does_not_keep_it(self, bench: Bench) -> None:
        bench.connect().collections[f"{BOT}-two__1"] = replace(desired_of(), marker=None)
        memory = bench.put("alpha")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            bench.drop(memory)
            await until(lambda: bench.owner() is None)

    async def test_news_that_comes_while_the_server_is_away_is_followed_up_before_the_next_look_at_all(self) -> None:
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

    async def test_news_of_a_server_that_never_answers_does_not_hold_up_the_look_at_all(self) -> None:
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

    @pytest.mark.parametrize("is_gone", [False, True])
    async def test_a_connection_that_is_away_or_gone_frees_nothing(self, bench: Bench, is_gone: bool) -> None:
        server = bench.connect()
        memory = bench.put("alpha")
        async with bench.running():
            await until(lambda: bench.owner() == "alpha")
            if is_gone:
                bench.table.remove(key_of(connection_document(namespace="infra")))
            else:
                server.error = StoreUnavailable("away")
            bench.drop(memory)
            await asyncio.sleep(0.15)

        assert bench.owner() == "alpha"

    async def test_a_name_that_people_have_reserved_by_hand_stays(self, bench: Bench) -> None:
        bench.connect()
        bench.store.stored = ClaimSet(claims={"bot": SlugClaim(namespace="alpha", uid="")}, is_complete=True)
        async with bench.running():
            await asyncio.sleep(0.15)

            assert bench.claims.find_blocking(bench.put("beta")) is not None

        assert bench.owner() == "alpha"

    async def test_every_connection_that_it_was_seen_on_has_to_be_empty(self, bench: Bench) -> None:
        bench.connect("old").collections[f"{BOT}__1"] = collection_of("alpha")
        bench.connect()
        known = SlugClaim(namespace="alpha", uid="u", connections=("infra/main", "infra/old"))
        bench.store.stored = ClaimSet(claims={"bot": known}, is_complete=True)
        async with bench.running():
            await asyncio.sleep(0.15)

        assert bench.owner() == "alpha"

    async def test_a_snapshot_of_its_namespace_keeps_it_and_another_s_does_not(self, bench: Bench) -> None:
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

    async def left_to(self, bench: Bench, **spec: object) -> AgentMemory:
        """Return beta's object, after alpha's is gone and its collection is left."""
        bench.connect(**spec).collections[f"{BOT}__1"] = collection_of("alpha")
        await bench.claims.load()
        await bench.claims._complete()
        return bench.put("beta")

    async def test_an_entry_of_the_connection_moves_the_claim(self, bench: Bench) -> None:
        memory = await self.left_to(bench, takeovers=[self.GIVEN])

        assert await bench.claims.transfer(memory)

        assert bench.store.stored.claims["bot"] == SlugClaim(
            namespace="beta", uid="uid-beta", connections=("infra/main",)
        )

    @pytest.mark.parametrize("other", [{"agent": "tob"}, {"fromUid": "uid-gamma"}, {"toNamespace": "gamma"}])
    async def test_another_entry_moves_nothing(self, bench: Bench, other: dict[str, str]) -> None:
        memory = await self.left_to(bench, takeovers=[self.GIVEN | other, {"fromClusterId": "cluster-1"}])

        assert not await bench.claims.transfer(memory)

    async def test_nothing_is_taken_from_an_object_that_is_there(self, bench: Bench) -> None:
        memory = await self.left_to(bench, takeovers=[self.GIVEN])
        bench.put("alpha")

        assert not await bench.claims.transfer(memory)
