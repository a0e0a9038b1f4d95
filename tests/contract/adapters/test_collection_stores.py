"""One table of calls for Qdrant and its fake, which must give the same results.

Tests of plans, passes and forged statuses use `FakeCollectionStore`. A new case is an entry of `CASES`.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.rules.changes import (
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateHnsw,
    UpdateKeyword,
    UpdateOptimizers,
    UpdateStrictMode,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.errors import AgentMemoryError
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.spec.plans import desired_of
from tests.support.web.http_server import check_success

DESIRED = desired_of({"embedding": {"provider": "none", "dimensions": 4}})
# Values that the server chooses by default.
BARE = replace(
    DESIRED,
    indexes=(),
    payload_on_disk=True,
    shard_number=1,
    replication_factor=1,
    strict_mode=DESIRED.strict_mode or (),
)
assert DESIRED.marker is not None
OTHER = replace(DESIRED.marker, name="other", uid="uid-other")


@dataclass(slots=True)
class NamedStore:
    """A store with its own names, written `alias`, `one` and `two` in the cases."""

    store: Any
    http: httpx.Client | None = None
    slug: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex[:12]}")

    def name(self, short: str) -> str:
        alias = f"agent_memory_{self.slug}"
        return {"alias": alias, "one": f"{alias}__1", "two": f"{alias}__2"}[short]

    def short(self, name: str) -> str:
        return {self.name(short): short for short in ("alias", "one", "two")}[name]

    def fill(self, short: str, count: int) -> None:
        """Store memories, as the API would."""
        name = self.name(short)
        if self.http is None:
            self.store.points[name] = count
            return
        points = [{"id": str(uuid.uuid4()), "vector": [1, 0, 0, 1], "payload": {}} for _ in range(count)]
        check_success(self.http.put(f"/collections/{name}/points?wait=true", json={"points": points}))

    async def do(self, method: str, *arguments: Any) -> str:
        """Run a call of a case; return the name of its error, or ''."""
        if method == "fill":
            self.fill(*arguments)
            return ""
        short, *rest = arguments
        given = [self._with_own_names(argument) for argument in rest]
        try:
            await getattr(self.store, method)(self.name(short), *given)
        except AgentMemoryError as error:
            return type(error).__name__
        return ""

    def _with_own_names(self, argument: Any) -> Any:
        match argument:
            case CreateCollection(physical, collection):
                return CreateCollection(self.name(physical), collection)
            case SetAlias(alias, physical):
                return SetAlias(self.name(alias), self.name(physical))
        return argument

    async def state(self) -> dict[str, Any]:
        """Return everything that the port reports about the names of this store."""
        own_names = {self.name(short) for short in ("alias", "one", "two")}
        seen = {short: await self.store.observe(self.name("alias"), self.name(short)) for short in ("one", "two")}
        targets = {short: self.short(await self.store.target(self.name(short))) for short in ("alias", "one")}
        return {
            "names": sorted(self.short(name) for name in await self.store.names() if name in own_names),
            "seen": {likely: found and _comparable(self, found) for likely, found in seen.items()},
            "list_agent_collections": {
                self.short(one.physical): (tuple(self.short(alias) for alias in one.aliases), one.points, one.size)
                for one in await self.store.list_agent_collections()
                if one.physical in own_names
            },
            "targets": targets,
            "counts": {short: await self.store.count(self.name(short)) for short in ("one", "two")},
        }


def _comparable(site: NamedStore, found: Any) -> tuple[Any, ...]:
    collection: Collection = found.collection
    return site.short(found.physical), found.is_aliased, found.points, found.state, collection


ONE = CreateCollection("one", BARE)
TWO = CreateCollection("two", BARE)
LED = (("apply", "one", ONE), ("apply", "one", SetAlias("alias", "one")))

CASES: dict[str, Sequence[tuple[Any, ...]]] = {
    "nothing": (),
    "a collection without alias": (("apply", "one", ONE),),
    "a collection behind its alias": LED,
    "one that is made twice": (("apply", "one", ONE), ("fill", "one", 3), ("apply", "one", ONE)),
    "another's of the same name": (
        ("apply", "one", CreateCollection("one", replace(BARE, marker=OTHER))),
        ("apply", "one", ONE),
    ),
    "a plain collection named as the alias": (("apply", "alias", CreateCollection("alias", BARE)),),
    "an alias that moves": (
        *LED,
        ("fill", "one", 2),
        ("apply", "two", TWO),
        ("apply", "two", SetAlias("alias", "two")),
    ),
    "an alias that is set twice": (*LED, ("apply", "one", SetAlias("alias", "one"))),
    "an alias to what is not there": (("apply", "one", SetAlias("alias", "one")),),
    "an alias of the name of a collection": (
        ("apply", "alias", CreateCollection("alias", BARE)),
        ("apply", "one", ONE),
        ("apply", "one", SetAlias("alias", "one")),
    ),
    "a collection of the name of an alias": (*LED, ("apply", "alias", CreateCollection("alias", BARE))),
    "a deletion, aliases included": (*LED, ("fill", "one", 2), ("delete", "one")),
    "a deletion of what an alias left": (
        *LED,
        ("apply", "two", TWO),
        ("apply", "two", SetAlias("alias", "two")),
        ("delete", "one"),
    ),
    "a deletion of what is not there": (("delete", "one"),),
    "a marker": (("apply", "one", ONE), ("apply", "one", WriteMarker(OTHER))),
    "indexes, one of them twice": (
        *LED,
        ("apply", "one", CreateIndexes((("userId", "keyword"), ("createdAt", "integer")))),
        ("apply", "one", CreateIndexes((("userId", "keyword"),))),
    ),
    "an index that is dropped, and one that is not there": (
        *LED,
        ("apply", "one", CreateIndexes((("userId", "keyword"), ("createdAt", "integer")))),
        ("drop_index", "one", "userId"),
        ("drop_index", "one", "userId"),
    ),
    "an index of what is not there": (("apply", "one", CreateIndexes((("userId", "keyword"),))),),
    "an index that is dropped of what is not there": (("drop_index", "one", "userId"),),
    "figures": (
        *LED,
        ("apply", "one", UpdateHnsw(m=24)),
        ("apply", "one", UpdateOptimizers(indexing_threshold_kb=10_000)),
        ("apply", "one", UpdateStrictMode((("max_query_limit", 50),))),
        ("apply", "one", WakeOptimizers()),
    ),
    "keywords, given and taken": (
        *LED,
        ("apply", "one", UpdateKeyword(has_keyword=True)),
        ("apply", "one", UpdateKeyword(has_keyword=False)),
    ),
    "figures of what is not there": (("apply", "one", UpdateHnsw(m=24)),),
    "a marker of what is not there": (("apply", "one", WriteMarker(OTHER)),),
    "what cannot change in place": (*LED, ("apply", "one", Rebuild("index.distance", "Cosine", "Dot"))),
}


@pytest.fixture
async def engine(qdrant_url: str) -> AsyncIterator[NamedStore]:
    with httpx.Client(base_url=qdrant_url, timeout=30) as http:
        site = NamedStore(QdrantCollections(qdrant_url), http)
        yield site
        for short in ("one", "two", "alias"):
            http.delete(f"/collections/{site.name(short)}")
    await site.store.close()


@pytest.mark.parametrize("name", CASES)
async def test_fake_matches_engine(engine: NamedStore, name: str) -> None:
    fake = NamedStore(FakeCollectionStore(), slug=engine.slug)

    for call in CASES[name]:
        assert (call, await fake.do(*call)) == (call, await engine.do(*call))
        assert await fake.state() == await engine.state(), call
