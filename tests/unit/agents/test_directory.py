"""AgentDirectory: objects, claims, and the open agents of a process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.agents import directory
from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.agents.fence import FenceTiming
from agentmemory_operator.collections.rules.announcement import LEASE_S, MOVING_KEY
from agentmemory_operator.collections.rules.claims import AgentClaim, ClaimSet, SlugClaim
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.collections.rules.epochs import CLOSED_KEY
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildRecord, record_to_json
from agentmemory_operator.errors import EmbedderUnavailable, NotFound, StoreUnavailable, TransientError
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.presets import Weights
from tests.support.engine.agents import EVERYTHING, settings_of
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import cluster_id, marker_for

EMBEDDING = {"provider": "openai", "model": "m", "dimensions": 8, "baseUrl": "http://e", "secretName": "s"}


class FakeStore:
    """A store with the metadata of one collection."""

    def __init__(self) -> None:
        self.embedding: dict[str, Any] | None = EMBEDDING
        self.keyword: dict[str, Any] | None = None
        self.origin: str | None = None
        self.moving: dict[str, Any] | None = None
        self.rebuilt: dict[str, Any] | None = None
        self.closed: dict[str, str] | None = None
        self.owner: dict[str, Any] = {}
        self.is_there = True
        self.described = 0

    async def query(self, collection: str, body: Any) -> list[Any]:
        return []

    async def describe(self, collection: str) -> dict[str, Any]:
        self.described += 1
        if not self.is_there:
            raise NotFound(collection)
        marker = marker_for("bot", embedding=self.embedding, keyword=self.keyword) | self.owner
        metadata = (
            {"agentmemory": marker, "agentmemoryOrigin": self.origin, CLOSED_KEY: self.closed}
            | {MOVING_KEY: self.moving, REBUILD_KEY: self.rebuilt}
            if self.embedding
            else None
        )
        return {"config": {"metadata": metadata, "params": {"vectors": {"size": 8, "distance": "Cosine"}}}}


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Implements ports.Embedder."""

    dimensions: int

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [[1.0] * self.dimensions for _ in texts]


class WatchedDirectory:
    """A directory, and the stores and embedders that it created."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.made: list[EmbeddingSource] = []
        self.made_for: list[str] = []
        self.capabilities: frozenset[str] = frozenset()
        self.now_s = 100.0
        self.fails: EmbedderUnavailable | None = None
        self.directory = self.make_directory()

    def make_directory(self) -> AgentDirectory:
        return AgentDirectory(
            self.make_store,
            self.make_embedder,
            lambda _: self.capabilities,
            secret_rules=OWN_RULES,
            times=FenceTiming(now_s=lambda: self.now_s),
            cluster_id=cluster_id,
            clock=FakeClock(),
        )

    async def make_store(self, settings: AgentSettings) -> Any:
        return self.store

    async def make_embedder(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder:
        self.made.append(source)
        self.made_for.append(settings.namespace)
        if self.fails:
            raise self.fails
        return Constant(source.dimensions)

    def put(self, *, uid: str = "1", created: str = "2026-01-01T00:00:00Z", **more: Any) -> None:
        settings = replace(settings_of("bot"), **more)
        self.directory.put(AgentClaim(uid=uid, created=created, settings=settings))


@pytest.fixture
def world() -> WatchedDirectory:
    return WatchedDirectory()


async def test_an_unknown_slug_is_not_found(world: WatchedDirectory) -> None:
    with pytest.raises(NotFound, match="bot"):
        await world.directory.open("bot")


async def test_embedding_comes_from_the_collection(world: WatchedDirectory) -> None:
    world.put()

    agent = await world.directory.open("bot")

    assert agent.source == EmbeddingSource(
        provider="openai", model="m", dimensions=8, base_url="http://e", secret_name="s"
    )


@pytest.mark.parametrize("missing", ["collection", "metadata"])
async def test_agent_is_not_ready_before_its_collection(world: WatchedDirectory, missing: str) -> None:
    world.put()
    world.store.is_there, world.store.embedding = missing != "collection", None
    with pytest.raises(StoreUnavailable, match="not ready"):
        await world.directory.open("bot")

    world.store.is_there, world.store.embedding = True, EMBEDDING

    assert await world.directory.open("bot")


async def test_metadata_is_read_once_per_object_change(world: WatchedDirectory) -> None:
    world.put()
    for _ in range(3):
        await world.directory.open("bot")
    assert world.store.described == 1

    world.put()
    await world.directory.open("bot")

    assert world.store.described == 2


async def test_changed_weights_keep_the_embedder(world: WatchedDirectory) -> None:
    world.put()
    before = await world.directory.open("bot")
    ranking = replace(EVERYTHING, weights=Weights(1, 0, 0))

    world.put(ranking=ranking, generation=2)
    after = await world.directory.open("bot")

    assert (after.settings.ranking, after.settings.generation) == (ranking, 2)
    assert after.embedder is before.embedder
    assert len(world.made) == 1


async def test_new_embedding_creates_new_embedder(world: WatchedDirectory) -> None:
    world.put()
    await world.directory.open("bot")

    world.store.embedding = EMBEDDING | {"model": "n"}
    world.put()
    await world.directory.open("bot")

    assert [source.model for source in world.made] == ["m", "n"]


async def test_new_store_rereads_metadata(world: WatchedDirectory) -> None:
    world.put()
    await world.directory.open("bot")

    world.store = FakeStore()
    await world.directory.open("bot")

    assert world.store.described == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_oldest_object_owns_the_slug(world: WatchedDirectory, order: tuple[int, ...]) -> None:
    claims = [
        {"uid": "b", "created": "2026-01-01T00:00:00Z", "name": "first"},
        {"uid": "c", "created": "2026-01-01T00:00:00Z", "name": "second"},
        {"uid": "a", "created": "2026-01-02T00:00:00Z", "name": "third"},
    ]
    for place in order:
        world.put(**claims[place])

    holders = []
    for uid in ("b", "c", "a"):
        holders.append(world.directory.find_settings("bot").name)
        world.directory.remove("bot", uid)

    assert holders == ["first", "second", "third"]
    assert world.directory.list_settings() == []


async def test_upgraded_server_needs_no_metadata_read(
    world: WatchedDirectory,
) -> None:
    world.put()
    before = await world.directory.open("bot")
    world.capabilities = frozenset({"minMax"})

    after = await world.directory.open("bot")

    assert (before.capabilities, after.capabilities) == (frozenset(), {"minMax"})
    assert world.store.described == 1


async def test_keywords_apply_once_in_the_collection(world: WatchedDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the collection reaches the directory only by a read: no event reports it."""
    monkeypatch.setattr(directory, "REREAD_PERIOD_S", 0.0)
    world.put(has_keyword=True)
    before = await world.directory.open("bot")

    world.store.keyword = {"language": "english", "window": 2}
    after = await world.directory.open("bot")
    await world.directory.open("bot")

    assert (before.keyword, after.keyword) == (None, KeywordSource(language="english", window=2))
    assert world.store.described == 2


async def test_missing_keywords_cause_no_read_per_request(
    world: WatchedDirectory,
) -> None:
    world.put(has_keyword=True)
    for _ in range(5):
        await world.directory.open("bot")

    assert world.store.described == 1


async def test_ids_use_the_slug_of_the_original_agent(world: WatchedDirectory) -> None:
    """Keys and identities in a copy must refer to the memories in that copy."""
    world.put()
    assert (await world.directory.open("bot")).id_slug == "bot"

    world.store.origin = "first"
    world.put()

    agent = await world.directory.open("bot")
    assert (agent.id_slug, agent.alias) == ("first", "agent_memory_bot")


async def test_closed_collection_is_detected_at_start(
    world: WatchedDirectory,
) -> None:
    world.put()
    world.store.closed = {"restore": "agents/undo"}

    with pytest.raises(StoreUnavailable, match="being restored"):
        await world.directory.open("bot")

    world.store.closed = None
    assert await world.directory.open("bot")


async def later(world: WatchedDirectory, seconds: float) -> None:
    """Advance the clock and let background tasks finish."""
    world.now_s += seconds
    for _ in range(5):
        await asyncio.sleep(0)


async def test_moved_alias_reopens_agent_without_event(
    world: WatchedDirectory,
) -> None:
    world.put()
    await world.directory.open("bot")

    world.store.embedding = EMBEDDING | {"model": "n"}
    record = RebuildRecord(source="a__1", target="a__2", digest="", started_ms=0, since_ms=0)
    world.store.rebuilt = record_to_json(record)
    await later(world, LEASE_S)
    before = await world.directory.open("bot")
    await later(world, 0)
    after = await world.directory.open("bot")

    assert (before.source.model, after.source.model) == ("m", "n")


async def test_metadata_is_renewed_only_with_requests(world: WatchedDirectory) -> None:
    world.put()
    await world.directory.open("bot")

    read = []
    for seconds in (0, LEASE_S / 4, LEASE_S / 4, 1000 * LEASE_S):
        await later(world, seconds)
        read.append(world.store.described)
        await world.directory.open("bot")
        await later(world, 0)

    assert (read, world.store.described) == ([1, 1, 1, 2], 3)


async def test_open_without_renewal_reads_nothing(world: WatchedDirectory) -> None:
    world.put()
    await world.directory.open("bot")

    await later(world, 1000 * LEASE_S)
    await world.directory.open("bot", renews_lease=False)
    await later(world, 0)

    assert world.store.described == 1


async def test_announced_move_keeps_the_embedder(world: WatchedDirectory) -> None:
    world.put()
    before = await world.directory.open("bot")

    moving = {"from": "a__1", "to": "a__2", "phase": "Announced", "carries": False}
    world.store.moving = moving | {"embedding": EMBEDDING | {"model": "n"}}
    await later(world, LEASE_S)
    await world.directory.open("bot")
    await later(world, 0)
    after = await world.directory.open("bot")

    assert after.embedder is before.embedder
    assert world.store.described == 2


async def test_announced_move_prepares_next_embedder(world: WatchedDirectory) -> None:
    world.put()
    await world.directory.open("bot")
    upcoming = EMBEDDING | {"model": "n"}

    world.store.moving = {"from": "a__1", "to": "a__2", "phase": "Announced", "embedding": upcoming}
    await later(world, LEASE_S)
    for _ in range(3):
        before = await world.directory.open("bot")
        await later(world, 0)
    made = [source.model for source in world.made]
    world.store.moving, world.store.embedding = None, upcoming
    world.put()
    after = await world.directory.open("bot")

    assert (before.source.model, made, after.source.model) == ("m", ["m", "n"], "n")
    assert len(world.made) == 2


async def test_failed_embedder_is_retried_after_move(world: WatchedDirectory, caplog: pytest.LogCaptureFixture) -> None:
    world.put()
    await world.directory.open("bot")
    upcoming = EMBEDDING | {"model": "n"}
    world.fails = EmbedderUnavailable("away")

    world.store.moving = {"from": "a__1", "to": "a__2", "phase": "Announced", "embedding": upcoming}
    await later(world, LEASE_S)
    for _ in range(2):
        await world.directory.open("bot")
        await later(world, 0)
    world.store.moving, world.store.embedding, world.fails = None, upcoming, None
    world.put()

    assert (await world.directory.open("bot")).source.model == "n"
    assert "about to switch to an embedding that fails: away" in caplog.text


@pytest.mark.parametrize("owner", [{"clusterId": "another"}, {"clusterId": ""}, {"namespace": ""}, {"name": "other"}])
async def test_collection_of_another_owner_is_not_opened(world: WatchedDirectory, owner: dict[str, str]) -> None:
    world.put()
    agent = await world.directory.open("bot")
    world.store.owner = owner
    world.now_s += 2 * LEASE_S
    with pytest.raises(StoreUnavailable, match="not ready"):
        await agent.store.query("agent_memory_bot", {})

    with pytest.raises(StoreUnavailable, match="not ready"):
        await world.directory.open("bot")
    world.store.owner = {}

    assert await world.directory.open("bot")


async def test_unknown_cluster_id_blocks_opening(world: WatchedDirectory) -> None:
    async def unknown() -> str:
        raise TransientError("nobody knows")

    directory = AgentDirectory(world.make_store, world.make_embedder, cluster_id=unknown, clock=FakeClock())
    directory.put(AgentClaim(uid="1", created="2026-01-01T00:00:00Z", settings=settings_of("bot")))

    with pytest.raises(TransientError, match="nobody knows"):
        await directory.open("bot")

    assert world.store.described == 0


@pytest.mark.parametrize("at", ["store", "collection", "embedder"])
async def test_object_removed_during_open_is_not_found(
    world: WatchedDirectory, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    owner, name = {
        "store": (world, "make_store"),
        "collection": (world.store, "describe"),
        "embedder": (world, "make_embedder"),
    }[at]
    whole, goes_on = getattr(owner, name), asyncio.Event()

    async def waiting(*args: Any) -> Any:
        await goes_on.wait()
        return await whole(*args)

    monkeypatch.setattr(owner, name, waiting)
    world.directory = world.make_directory()
    world.put()
    requests = [asyncio.create_task(world.directory.open("bot")) for _ in range(3)]
    await asyncio.sleep(0.01)

    world.directory.remove("bot", "1")
    goes_on.set()

    for found in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(found, NotFound)


class TestClaimedNamespace:
    """A slug belongs to one namespace; objects of other namespaces with this slug are ignored."""

    def put(self, world: WatchedDirectory, namespace: str, created: str) -> None:
        settings = replace(settings_of("bot"), namespace=namespace)
        world.directory.put(AgentClaim(uid=namespace, created=created, settings=settings))

    def give(self, world: WatchedDirectory, namespace: str | None) -> None:
        claims = {"bot": SlugClaim(namespace=namespace, uid="u")} if namespace else {}
        world.directory.claims = ClaimSet(claims=claims, is_complete=True)

    async def test_claimed_namespace_wins_over_age(self, world: WatchedDirectory) -> None:
        slug = "bot"
        self.put(world, "elder", "2025-01-01T00:00:00Z")
        self.put(world, "owner", "2026-01-01T00:00:00Z")

        self.give(world, "owner")

        assert world.directory.find_settings(slug).namespace == "owner"
        assert [settings.namespace for settings in world.directory.list_settings()] == ["owner"]

    async def test_claim_without_object_is_not_found(self, world: WatchedDirectory) -> None:
        slug = "bot"
        self.put(world, "taker", "2026-01-01T00:00:00Z")

        self.give(world, "owner")

        with pytest.raises(NotFound):
            await world.directory.open(slug)
        with pytest.raises(NotFound):
            world.directory.find_settings(slug)
        assert world.directory.list_settings() == []

    async def test_unclaimed_slug_is_not_opened(self, world: WatchedDirectory) -> None:
        self.put(world, "agents", "2026-01-01T00:00:00Z")

        self.give(world, None)

        with pytest.raises(StoreUnavailable, match="is not ready"):
            await world.directory.open("bot")
        assert world.store.described == 0

    async def test_new_claim_rereads_metadata(self, world: WatchedDirectory) -> None:
        slug = "bot"
        for namespace in ("agents", "beta"):
            self.put(world, namespace, "2026-01-01T00:00:00Z")
        self.give(world, "agents")
        await world.directory.open(slug)

        self.give(world, "beta")
        world.store.owner = {"namespace": "beta"}

        assert (await world.directory.open(slug)).settings.namespace == "beta"
        assert world.store.described == 2

    async def test_embedder_is_not_shared_between_owners(self, world: WatchedDirectory) -> None:
        """An embedder's API key and cache belong to the namespace of the owner."""
        for namespace in ("agents", "beta"):
            self.put(world, namespace, "2026-01-01T00:00:00Z")
        self.give(world, "agents")
        before = await world.directory.open("bot")

        self.give(world, "beta")
        world.store.owner = {"namespace": "beta"}

        assert (await world.directory.open("bot")).embedder is not before.embedder
        assert world.made_for == ["agents", "beta"]

    async def test_prepared_embedder_is_not_shared(self, world: WatchedDirectory) -> None:
        upcoming = EMBEDDING | {"model": "n"}
        for namespace in ("agents", "beta"):
            self.put(world, namespace, "2026-01-01T00:00:00Z")
        self.give(world, "agents")
        world.store.moving = {"from": "a__1", "to": "a__2", "phase": "Announced", "embedding": upcoming}
        await world.directory.open("bot")
        await asyncio.sleep(0.01)
        assert world.made_for == ["agents", "agents"]

        self.give(world, "beta")
        world.store.owner, world.store.moving, world.store.embedding = {"namespace": "beta"}, None, upcoming
        await world.directory.open("bot")

        assert world.made_for[2:] == ["beta"]
