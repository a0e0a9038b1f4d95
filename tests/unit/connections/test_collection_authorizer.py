"""What work for a namespace may touch on a server: the table of `connections/collection_authorizer.py`, and that every
call asks it."""

import inspect
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import pytest

from agentmemory_operator.collections.rules.capacity import MapDemand
from agentmemory_operator.collections.rules.changes import CreateCollection, CreateIndexes, SetAlias
from agentmemory_operator.collections.rules.collection import Observation, Tenant
from agentmemory_operator.connections.collection_authorizer import CollectionAuthorizer, OwnershipReader
from agentmemory_operator.connections.guarded_stores import (
    NAMELESS_METHODS,
    WITHHELD_METHODS,
    guarded_collections,
    guarded_points,
    guarded_snapshots,
)
from agentmemory_operator.errors import NotOwned, ServerFullRetryable, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from tests.support.spec.plans import desired_of, observed_of

OURS, THEIRS = {"clusterId": "cluster-1", "namespace": "beta"}, {"clusterId": "cluster-1", "namespace": "alpha"}
ELSEWHERE = OURS | {"clusterId": "production"}
UNMARKED: Json = {}
CLAIMS = {"mine": "beta", "victim": "alpha"}
FOREIGN = "agent_memory_victim__1"
OLD, NEW = "agent_memory_mine__1", "agent_memory_mine__2"


def marked(owner: Json) -> Json:
    return {"agentmemory": owner | {"name": "bot", "uid": "u"}}


def placeholder(owner: Json | None = None) -> Json:
    return {"agentmemory": {"placeholder": True} | (owner or {})}


@dataclass
class Ground:
    """What lies on a server, and who asks."""

    lies: dict[str, Json] = field(default_factory=dict)
    has_marks: bool = True
    is_settled: bool = True
    reads: int = 0
    made: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)

    def reach(self) -> CollectionAuthorizer:
        marks = OwnershipReader(self.read, self.cluster_id, self.target) if self.has_marks else None
        return CollectionAuthorizer(
            namespace="beta",
            namespace_of=CLAIMS.get,
            are_claims_complete=lambda: self.is_settled,
            ownership=marks,
            recovered=self.made,
        )

    async def read(self, name: str) -> Json | None:
        self.reads += 1
        return self.lies.get(self.aliases.get(name, name))

    async def target(self, name: str) -> str:
        return self.aliases.get(name, name)

    async def cluster_id(self) -> str:
        return "cluster-1"


async def may_use(reach: CollectionAuthorizer, name: str) -> bool:
    try:
        await reach.check(name)
    except NotOwned:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "metadata", "is_used"),
    [
        ("agent_memory_mine__1", None, True),
        ("agent_memory_mine", None, True),
        ("agent_memory_mine__1", UNMARKED, True),
        ("agent_memory_mine__1", marked(OURS), True),
        ("agent_memory_mine__1", marked(THEIRS), False),
        ("agent_memory_mine__1", marked(ELSEWHERE), False),
        ("agent_memory_mine__1", marked({"namespace": "beta"}), False),
        ("agent_memory_mine__1", marked({"clusterId": "cluster-1"}), False),
        ("agent_memory_mine__1", marked(OURS | {"clusterId": ["cluster-1"]}), False),
        ("agent_memory_mine__1", {"agentmemory": "beta"}, False),
        ("agent_memory_mine__1", placeholder(), True),
        ("agent_memory_mine__1", placeholder(OURS), True),
        ("agent_memory_mine__1", placeholder(THEIRS), False),
        ("agent_memory_mine__1", placeholder({"namespace": "beta"}), False),
        ("agent_memory_victim__1", None, False),
        ("agent_memory_victim__1", UNMARKED, False),
        ("agent_memory_victim__1", marked(THEIRS), False),
        ("agent_memory_victim__1", marked(OURS), False),
        ("agent_memory_victim__1", placeholder(), False),
        ("agent_memory_victim", marked(THEIRS), False),
        ("agent_memory_nobody__1", None, False),
        ("agent_memory_nobody__1", UNMARKED, False),
        ("agent_memory_nobody__1", placeholder(), False),
        ("agent_memory_nobody__1", marked(OURS), True),
        ("agent_memory_nobody__1", placeholder(OURS), True),
        ("docs", None, False),
        ("docs", UNMARKED, False),
        ("docs", marked(OURS), True),
        ("docs", marked(THEIRS), False),
        ("docs", marked(ELSEWHERE), False),
        ("agentmemory_shard_snapshots", {"agentmemory": {"shardSets": True}}, False),
        ("agentmemory_scratch__0__1", marked(THEIRS), False),
        ("agent_memory_mine__" + "9" * 10, UNMARKED, False),
        ("agent_memory_victim__" + "9" * 4000, None, False),
        ("agent_memory_mine__1/../agent_memory_victim__1", UNMARKED, False),
        ("..", UNMARKED, False),
        (".", marked(OURS), False),
        ("", marked(OURS), False),
        ("a\nb", marked(OURS), False),
        ("a\ud800", marked(OURS), False),
    ],
)
async def test_a_collection_is_used(name: str, metadata: Json | None, is_used: bool) -> None:
    ground = Ground({} if metadata is None else {name: metadata})

    assert await may_use(ground.reach(), name) is is_used


# What each name is to namespace beta: whose slug it has, and whether it can be a collection's at all.
SLUGS = {
    "agent_memory_mine": "own",
    "agent_memory_mine__1": "own",
    "agent_memory_victim": "another's",
    "agent_memory_victim__1": "another's",
    "agent_memory_nobody": "unclaimed",
    "agent_memory_nobody__7": "unclaimed",
    "docs": "none",
    "agentmemory_scratch__0__1": "none",
    "agent_memory_victim__" + "9" * 10: "none",
    "a/b": "invalid",
}
METADATA: dict[str, tuple[Json | None, str]] = {
    "no collection": (None, "absent"),
    "unmarked": (UNMARKED, "unowned"),
    "other keys": ({"team": "x"}, "unowned"),
    "old placeholder": (placeholder(), "unowned"),
    "ours": (marked(OURS), "ours"),
    "our placeholder": (placeholder(OURS), "ours"),
    "theirs": (marked(THEIRS), "other"),
    "their placeholder": (placeholder(THEIRS), "other"),
    "of another cluster": (marked(ELSEWHERE), "other"),
    "half": (marked({"namespace": "beta"}), "other"),
    "broken": ({"agentmemory": ["beta"]}, "other"),
}
# What the name is an alias of, if of anything.
TARGETS = {None: "own", OLD: "own", "docs": "none", FOREIGN: "another's", "agent_memory_nobody__1": "unclaimed"}
FLAGS = list(itertools.product([False, True], repeat=5))


def decided(slug: str, owner: str, target: str, flags: tuple[bool, ...]) -> tuple[int, str]:
    """Row and decision of the table in `connections/collection_authorizer.py`, first match wins."""
    is_granted, is_recovered, is_linked, is_complete, has_marks = flags
    if slug == "another's":
        return 1, "NotOwned"
    if is_granted:
        return 2, "allow"
    if slug == "invalid":
        return 3, "NotOwned"
    is_open = slug == "unclaimed" and not is_complete
    if not has_marks:
        if slug == "own" or (is_linked and not is_open):
            return 12, "allow"
        return (10, "StoreUnavailable") if is_open else (11, "NotOwned")
    rows = [
        (4, is_recovered, "allow"),
        (5, slug == "own" and owner == "absent", "allow"),
        (6, slug == "own" and owner == "unowned" and target in ("another's", "unclaimed"), "NotOwned"),
        (7, slug == "own" and owner == "unowned", "allow"),
        (8, slug == "none" and is_linked and owner == "unowned", "allow"),
        (9, owner == "ours", "allow"),
        (10, is_open, "StoreUnavailable"),
    ]
    return next(((row, decision) for row, holds, decision in rows if holds), (11, "NotOwned"))


async def outcome(reach: CollectionAuthorizer, name: str) -> str:
    try:
        await reach.check(name)
    except (NotOwned, StoreUnavailable) as error:
        return type(error).__name__
    return "allow"


async def test_every_combination_is_decided_by_the_first_row_that_matches() -> None:
    met: Counter[int] = Counter()
    for (name, slug), (metadata, owner), target, flags in itertools.product(
        SLUGS.items(), METADATA.values(), TARGETS, FLAGS
    ):
        is_granted, is_recovered, is_linked, is_complete, has_marks = flags
        ground = Ground(has_marks=has_marks, is_settled=is_complete, made={name} if is_recovered else set())
        ground.aliases = {} if target is None else {name: target}
        ground.lies = {} if metadata is None else {target or name: metadata}
        reach = ground.reach()
        if is_granted:
            reach.grant(name)
        if is_linked:
            reach.note_alias_target(name)

        row, expected = decided(slug, owner, TARGETS[target], flags)

        assert await outcome(reach, name) == expected, (row, name, metadata, target, flags)
        # Nothing opens what another namespace has claimed: no grant, alias, marker, recovery or silence of the claims.
        assert slug != "another's" or expected == "NotOwned"
        met[row] += 1
    assert set(met) == set(range(1, 13))


@pytest.mark.parametrize("when", ["before it is used again", "while the metadata is read"])
async def test_a_claim_that_is_recorded_in_the_meantime_ends_what_was_allowed(when: str) -> None:
    claims = dict(CLAIMS)
    ground = Ground({"agent_memory_nobody__1": marked(OURS)})

    async def read(name: str) -> Json | None:
        if when == "while the metadata is read":
            claims["nobody"] = "alpha"
        return ground.lies.get(name)

    marks = OwnershipReader(read, ground.cluster_id)
    reach = CollectionAuthorizer(
        namespace="beta", namespace_of=claims.get, are_claims_complete=lambda: True, ownership=marks
    )
    if when == "before it is used again":
        await reach.check("agent_memory_nobody__1")
        claims["nobody"] = "alpha"

    assert not await may_use(reach, "agent_memory_nobody__1")
    assert not reach.is_allowed_by_name("agent_memory_nobody__1")


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("physical", [FOREIGN, "agent_memory_victim", "agent_memory_nobody__1"])
async def test_an_alias_does_not_open_the_collection_of_another_agent(physical: str, has_marks: bool) -> None:
    unmarked = replace(seen_as(physical, is_aliased=True), collection=replace(desired_of(), marker=None))
    store = Called(observed=unmarked)
    ground = Ground({physical: UNMARKED}, has_marks=has_marks, aliases={"agent_memory_mine": physical})
    reach = ground.reach()

    with pytest.raises(NotOwned, match=f"'agent_memory_mine' points to '{physical}'.*delete the alias"):
        await guarded_collections(as_any(store), reach).observe("agent_memory_mine", OLD)
    for guarding, name in ((guarded_points, "scroll"), (guarded_snapshots, "files"), (guarded_collections, "count")):
        with pytest.raises(NotOwned):
            await getattr(guarding(as_any(store), reach), name)(physical, *[{}][: name == "scroll"])
        if has_marks:
            with pytest.raises(NotOwned):
                await getattr(guarding(as_any(store), reach), name)("agent_memory_mine", *[{}][: name == "scroll"])

    assert store.calls == ["observe"]


async def test_where_the_caller_judges_markers_names_decide_and_nothing_is_read() -> None:
    ground = Ground({"agent_memory_mine__1": marked(ELSEWHERE), FOREIGN: marked(OURS)}, has_marks=False)
    reach = ground.reach()

    assert await may_use(reach, "agent_memory_mine__1")
    assert not await may_use(reach, FOREIGN)
    assert not await may_use(reach, "docs")
    assert ground.reads == 0
    assert await reach.tenant() is None


async def test_a_name_is_judged_once_in_a_use() -> None:
    ground = Ground()
    reach = ground.reach()
    await reach.check("agent_memory_mine__1")
    # What it recovers says whose it was.
    ground.lies["agent_memory_mine__1"] = marked(THEIRS)

    await reach.check("agent_memory_mine__1")

    assert ground.reads == 1
    assert not await may_use(ground.reach(), "agent_memory_mine__1")


async def test_what_this_process_recovers_a_snapshot_into_is_its_own_until_it_is_deleted() -> None:
    store, ground = Called(), Ground()
    for _ in range(2):
        reach = ground.reach()
        await guarded_snapshots(as_any(store), reach).upload("agent_memory_mine__2", nothing(), sha256=None)
        ground.lies["agent_memory_mine__2"] = marked(THEIRS)
    assert ground.made == {"agent_memory_mine__2"}

    await guarded_collections(as_any(store), reach).delete("agent_memory_mine__2")

    assert ground.made == set()


async def test_whose_a_slug_is_that_nobody_has_claimed_is_not_decided_before_the_claims_are_known() -> None:
    name = "agent_memory_nobody__1"
    for lies in ({}, {name: UNMARKED}, {name: marked(THEIRS)}):
        with pytest.raises(StoreUnavailable, match="the namespace of agent nobody is not known yet"):
            await Ground(lies, is_settled=False).reach().check(name)

    await Ground({name: marked(OURS)}, is_settled=False).reach().check(name)
    for known in (FOREIGN, "docs", ".."):
        assert not await may_use(Ground(is_settled=False).reach(), known)


async def test_what_is_granted_is_used() -> None:
    reach = Ground({"agentmemory_scratch__0__1": marked(THEIRS)}).reach()
    reach.grant("agentmemory_scratch__0__1")

    await reach.check("agentmemory_scratch__0__1")


@pytest.mark.parametrize("name", ["..", "a/b", "../agent_memory_victim__1-1.snapshot", "agent_memory_mine__1", "", "x"])
def test_a_file_bears_its_collections_name(name: str) -> None:
    with pytest.raises(NotOwned) as caught:
        Ground().reach().check_file("agent_memory_mine__1", name)

    assert caught.value.reason == "SnapshotNotOwned"


async def test_a_refusal_says_what_was_named_and_the_way_out_and_not_whose_it_is() -> None:
    with pytest.raises(NotOwned, match=r"'agent_memory_victim__1' is not a collection .* Delete the object") as caught:
        await Ground().reach().check(FOREIGN)

    assert caught.value.owner is None
    assert "alpha" not in str(caught.value)


def as_any(store: object) -> Any:
    return store


async def nothing() -> AsyncIterator[bytes]:
    yield b""


@dataclass
class Called:
    """A store that does nothing, and remembers what it was asked."""

    calls: list[str] = field(default_factory=list)
    observed: Observation | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            self.calls.append(name)
            return self.observed if name == "observe" else "http://qdrant/file" if name == "own_location" else None

        return call

    @asynccontextmanager
    async def download(self, physical: str, name: str) -> AsyncIterator[str]:
        self.calls.append("download")
        yield ""


Guarding = Callable[[Any, CollectionAuthorizer], Any]
STORES: list[tuple[type, Guarding]] = [
    (CollectionStore, guarded_collections),
    (SnapshotStore, guarded_snapshots),
    (PointStore, guarded_points),
]
CALLS = [
    (protocol, guarding, name)
    for protocol, guarding in STORES
    for name, found in inspect.getmembers(protocol, inspect.isfunction)
    if not name.startswith("_") and name not in WITHHELD_METHODS
]
# Looked at by their names alone: whose they are, who asks judges.
JUDGED_BY_CALLER = {"observe", "metadata"}


async def ask(method: Any, name: str, protocol: type) -> None:
    """Call a method with the name, and with anything else that it takes."""
    parameters = list(inspect.signature(getattr(protocol, name)).parameters.values())[2:]
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    given: Json = {"change": SetAlias(FOREIGN, FOREIGN), "name": f"{FOREIGN}-1.snapshot", "content": nothing()}
    args = [given.get(one.name, FOREIGN) for one in needed if one.kind is not one.KEYWORD_ONLY]
    more = {one.name: given.get(one.name) for one in needed if one.kind is one.KEYWORD_ONLY}
    opened = method(FOREIGN, *args, **more)
    if hasattr(opened, "__aenter__"):
        async with opened:
            return
    await opened


@pytest.mark.parametrize(("protocol", "guarding", "name"), CALLS, ids=[f"{p.__name__}.{n}" for p, _, n in CALLS])
async def test_every_call_that_names_a_collection_asks_first(protocol: type, guarding: Guarding, name: str) -> None:
    """A method that a later version adds is asked for here too: it is guarded, or listed as naming no collection."""
    for has_marks in (True, False):
        store = Called()
        guarded = guarding(store, Ground({FOREIGN: marked(THEIRS)}, has_marks=has_marks).reach())
        if name in NAMELESS_METHODS:
            taken = inspect.signature(getattr(protocol, name)).parameters
            assert not [one for one in taken if "collection" in one or "physical" in one], name
            await getattr(guarded, name)()
            assert store.calls == [name]
            continue

        with pytest.raises(NotOwned):
            await ask(getattr(guarded, name), name, protocol)

        assert store.calls == []


async def test_an_alias_of_anothers_is_not_moved() -> None:
    store = Called()
    guarded = guarded_collections(as_any(store), Ground().reach())

    with pytest.raises(NotOwned):
        await guarded.apply("agent_memory_mine__2", SetAlias("agent_memory_victim", "agent_memory_mine__2"))
    await guarded.apply("agent_memory_mine__2", SetAlias("agent_memory_mine", "agent_memory_mine__2"))

    assert store.calls == ["apply"]


async def test_an_alias_that_leads_to_another_clusters_collection_is_not_moved_away() -> None:
    ground = Ground({"agent_memory_mine": marked(ELSEWHERE)})

    with pytest.raises(NotOwned):
        await guarded_collections(as_any(Called()), ground.reach()).apply(
            "agent_memory_mine__2", SetAlias("agent_memory_mine", "agent_memory_mine__2")
        )


async def test_a_server_fetches_only_what_was_asked_for_in_the_same_use() -> None:
    store = Called()
    guarded = guarded_snapshots(as_any(store), Ground().reach())
    with pytest.raises(NotOwned, match="is not a requested file"):
        await guarded.recover("agent_memory_mine__2", "http://qdrant/file", sha256=None)

    location = await guarded.own_location("agent_memory_mine__1", "agent_memory_mine__1-1.snapshot")
    await guarded.recover("agent_memory_mine__2", location, sha256=None)

    assert store.calls == ["own_location", "recover"]


async def test_a_placeholder_is_made_for_who_asks_or_for_whom_its_collection_was() -> None:
    made: list[Tenant | None] = []

    class Store(Called):
        async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
            made.append(owner)

    guarded = guarded_snapshots(as_any(Store()), Ground().reach())
    await guarded.create_placeholder("agent_memory_mine__1")
    await guarded.create_placeholder("agent_memory_mine__1", Tenant("cluster-1", "gamma"))

    assert made == [Tenant("cluster-1", "beta"), Tenant("cluster-1", "gamma")]


def seen_as(physical: str, *, namespace: str = "agents", is_aliased: bool = False) -> Observation:
    found = desired_of()
    assert found.marker is not None
    owned = replace(found, marker=replace(found.marker, namespace=namespace))
    return observed_of(owned, physical=physical, is_aliased=is_aliased)


LIVE = seen_as("docs", is_aliased=True)


@pytest.mark.parametrize(
    ("observed", "is_seen"),
    [
        (LIVE, True),
        (seen_as("docs", namespace="beta"), True),
        (seen_as("docs"), False),
        (seen_as(FOREIGN, namespace="beta"), False),
        (seen_as("agent_memory_mine__1"), True),
        (seen_as("agent_memory_mine"), True),
    ],
    ids=["behind the alias", "lost its alias", "another's", "another's slug", "of the slug", "plain"],
)
async def test_what_a_status_names_is_seen_where_the_alias_the_slug_or_the_marker_says_the_same(
    observed: Observation, is_seen: bool
) -> None:
    for has_marks in (True, False):
        store, reach = Called(observed=observed), Ground(has_marks=has_marks).reach()

        seen = await guarded_collections(as_any(store), reach).observe("agent_memory_mine", observed.physical)

        assert (seen is not None) is is_seen


async def test_what_the_alias_leads_to_may_be_adopted_while_nobody_has_marked_it() -> None:
    store, reach = Called(observed=LIVE), Ground({"docs": UNMARKED}).reach()
    guarded = guarded_collections(as_any(store), reach)
    with pytest.raises(NotOwned):
        await guarded.count("docs")

    await guarded.observe("agent_memory_mine", "agent_memory_mine__1")

    await guarded.count("docs")


async def test_a_name_that_is_none_is_not_asked_for() -> None:
    asked: list[str] = []

    class Store(Called):
        async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> None:
            asked.append(likely)

    await guarded_collections(as_any(Store()), Ground().reach()).observe("agent_memory_mine", "..")

    assert asked == ["agent_memory_mine__1"]


async def test_more_indexes_need_room_unless_their_collection_is_new() -> None:
    """A server that runs out of memory maps aborts with every agent: an upgrade that adds an index to all waits."""
    asked: list[int] = []

    @asynccontextmanager
    async def making(need: MapDemand) -> AsyncIterator[None]:
        asked.append(need.maps)
        if len(asked) > 2:
            raise ServerFullRetryable("full")
        yield

    class Store:
        applied: ClassVar[list[str]] = []

        async def apply(self, physical: str, change: object) -> None:
            self.applied.append(type(change).__name__)

    reach = replace(Ground(lies={OLD: marked(OURS)}).reach(), reserve_capacity=making)
    store = guarded_collections(cast(CollectionStore, Store()), reach)
    two = CreateIndexes((("loggedAt", "integer"), ("tags", "keyword")))

    await store.apply(NEW, CreateCollection(NEW, desired_of()))
    await store.apply(NEW, two)
    await store.apply(OLD, two)
    assert asked[1:] == [2 * 24]

    with pytest.raises(ServerFullRetryable):
        await store.apply(OLD, two)
    assert Store.applied == ["CreateCollection", "CreateIndexes", "CreateIndexes"]
