"""Collections of a server that a namespace may use: `connections/collection_authorizer.py`, checked by every call."""

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
class ServerState:
    """State of a server for the authorizer of namespace beta."""

    metadata_by_name: dict[str, Json] = field(default_factory=dict)
    has_marks: bool = True
    is_settled: bool = True
    reads: int = 0
    recovered: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)

    def reach(self) -> CollectionAuthorizer:
        marks = OwnershipReader(self.read, self.cluster_id, self.target) if self.has_marks else None
        return CollectionAuthorizer(
            namespace="beta",
            namespace_of=CLAIMS.get,
            are_claims_complete=lambda: self.is_settled,
            ownership=marks,
            recovered=self.recovered,
        )

    async def read(self, name: str) -> Json | None:
        self.reads += 1
        return self.metadata_by_name.get(self.aliases.get(name, name))

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
    ("name", "metadata", "is_allowed"),
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
async def test_name_and_marker_grant_access(name: str, metadata: Json | None, is_allowed: bool) -> None:
    state = ServerState({} if metadata is None else {name: metadata})

    assert await may_use(state.reach(), name) is is_allowed


# Relation of each name to namespace beta: owner of its slug, or not a valid name.
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
# Target of the alias of that name, None if it is no alias.
TARGETS = {None: "own", OLD: "own", "docs": "none", FOREIGN: "another's", "agent_memory_nobody__1": "unclaimed"}
FLAGS = list(itertools.product([False, True], repeat=5))


def expected_decision(slug: str, owner: str, target: str, flags: tuple[bool, ...]) -> tuple[int, str]:
    """Return row and decision of the table in `connections/collection_authorizer.py`, where the first match wins."""
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


async def test_every_combination_matches_the_table() -> None:
    matched_rows: Counter[int] = Counter()
    for (name, slug), (metadata, owner), target, flags in itertools.product(
        SLUGS.items(), METADATA.values(), TARGETS, FLAGS
    ):
        is_granted, is_recovered, is_linked, is_complete, has_marks = flags
        state = ServerState(has_marks=has_marks, is_settled=is_complete, recovered={name} if is_recovered else set())
        state.aliases = {} if target is None else {name: target}
        state.metadata_by_name = {} if metadata is None else {target or name: metadata}
        reach = state.reach()
        if is_granted:
            reach.grant(name)
        if is_linked:
            reach.note_alias_target(name)

        row, expected = expected_decision(slug, owner, TARGETS[target], flags)

        assert await outcome(reach, name) == expected, (row, name, metadata, target, flags)
        # A name claimed by another namespace is never allowed: no grant, alias, marker or recovery changes that.
        assert slug != "another's" or expected == "NotOwned"
        matched_rows[row] += 1
    assert set(matched_rows) == set(range(1, 13))


@pytest.mark.parametrize("when", ["before it is used again", "while the metadata is read"])
async def test_later_claim_revokes_access(when: str) -> None:
    claims = dict(CLAIMS)
    state = ServerState({"agent_memory_nobody__1": marked(OURS)})

    async def read(name: str) -> Json | None:
        if when == "while the metadata is read":
            claims["nobody"] = "alpha"
        return state.metadata_by_name.get(name)

    marks = OwnershipReader(read, state.cluster_id)
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
async def test_alias_does_not_open_a_foreign_collection(physical: str, has_marks: bool) -> None:
    unmarked = replace(observed_as(physical, is_aliased=True), collection=replace(desired_of(), marker=None))
    store = Called(observed=unmarked)
    state = ServerState({physical: UNMARKED}, has_marks=has_marks, aliases={"agent_memory_mine": physical})
    reach = state.reach()

    with pytest.raises(NotOwned, match=f"'agent_memory_mine' points to '{physical}'.*delete the alias"):
        await guarded_collections(as_any(store), reach).observe("agent_memory_mine", OLD)
    for guarding, name in ((guarded_points, "scroll"), (guarded_snapshots, "files"), (guarded_collections, "count")):
        with pytest.raises(NotOwned):
            await getattr(guarding(as_any(store), reach), name)(physical, *[{}][: name == "scroll"])
        if has_marks:
            with pytest.raises(NotOwned):
                await getattr(guarding(as_any(store), reach), name)("agent_memory_mine", *[{}][: name == "scroll"])

    assert store.calls == ["observe"]


async def test_names_alone_decide_without_markers() -> None:
    """The caller checks the markers, so no metadata is read."""
    state = ServerState({"agent_memory_mine__1": marked(ELSEWHERE), FOREIGN: marked(OURS)}, has_marks=False)
    reach = state.reach()

    assert await may_use(reach, "agent_memory_mine__1")
    assert not await may_use(reach, FOREIGN)
    assert not await may_use(reach, "docs")
    assert state.reads == 0
    assert await reach.tenant() is None


async def test_name_is_checked_once_per_use() -> None:
    """A recovered snapshot contains the marker of its old owner."""
    state = ServerState()
    reach = state.reach()
    await reach.check("agent_memory_mine__1")
    # The recovered metadata contains the old owner.
    state.metadata_by_name["agent_memory_mine__1"] = marked(THEIRS)

    await reach.check("agent_memory_mine__1")

    assert state.reads == 1
    assert not await may_use(state.reach(), "agent_memory_mine__1")


async def test_recovered_collection_is_owned_until_deleted() -> None:
    store, state = Called(), ServerState()
    for _ in range(2):
        reach = state.reach()
        await guarded_snapshots(as_any(store), reach).upload("agent_memory_mine__2", nothing(), sha256=None)
        state.metadata_by_name["agent_memory_mine__2"] = marked(THEIRS)
    assert state.recovered == {"agent_memory_mine__2"}

    await guarded_collections(as_any(store), reach).delete("agent_memory_mine__2")

    assert state.recovered == set()


async def test_unclaimed_slug_waits_for_complete_claims() -> None:
    name = "agent_memory_nobody__1"
    for metadata_by_name in ({}, {name: UNMARKED}, {name: marked(THEIRS)}):
        with pytest.raises(StoreUnavailable, match="the namespace of agent nobody is not known yet"):
            await ServerState(metadata_by_name, is_settled=False).reach().check(name)

    await ServerState({name: marked(OURS)}, is_settled=False).reach().check(name)
    for known in (FOREIGN, "docs", ".."):
        assert not await may_use(ServerState(is_settled=False).reach(), known)


async def test_granted_collection_is_allowed() -> None:
    reach = ServerState({"agentmemory_scratch__0__1": marked(THEIRS)}).reach()
    reach.grant("agentmemory_scratch__0__1")

    await reach.check("agentmemory_scratch__0__1")


@pytest.mark.parametrize("name", ["..", "a/b", "../agent_memory_victim__1-1.snapshot", "agent_memory_mine__1", "", "x"])
def test_file_must_have_the_collections_name(name: str) -> None:
    with pytest.raises(NotOwned) as error:
        ServerState().reach().check_file("agent_memory_mine__1", name)

    assert error.value.reason == "SnapshotNotOwned"


async def test_refusal_does_not_name_the_owner() -> None:
    with pytest.raises(NotOwned, match=r"'agent_memory_victim__1' is not a collection .* Delete the object") as error:
        await ServerState().reach().check(FOREIGN)

    assert error.value.owner is None
    assert "alpha" not in str(error.value)


def as_any(store: object) -> Any:
    return store


async def nothing() -> AsyncIterator[bytes]:
    yield b""


@dataclass
class Called:
    """A store that only records its calls."""

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
# Checked by name only: the caller checks the owner.
CHECKED_BY_CALLER = {"observe", "metadata"}


async def call_method(method: Any, name: str, protocol: type) -> None:
    """Call a method with FOREIGN as collection and a value for each required argument."""
    parameters = list(inspect.signature(getattr(protocol, name)).parameters.values())[2:]
    required = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    given: Json = {"change": SetAlias(FOREIGN, FOREIGN), "name": f"{FOREIGN}-1.snapshot", "content": nothing()}
    args = [
        given.get(parameter.name, FOREIGN) for parameter in required if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    more = {
        parameter.name: given.get(parameter.name) for parameter in required if parameter.kind is parameter.KEYWORD_ONLY
    }
    opened = method(FOREIGN, *args, **more)
    if hasattr(opened, "__aenter__"):
        async with opened:
            return
    await opened


@pytest.mark.parametrize(("protocol", "guarding", "name"), CALLS, ids=[f"{p.__name__}.{n}" for p, _, n in CALLS])
async def test_every_call_checks_its_collection(protocol: type, guarding: Guarding, name: str) -> None:
    """Methods added later are covered too: they are guarded, or listed in NAMELESS_METHODS."""
    for has_marks in (True, False):
        store = Called()
        guarded = guarding(store, ServerState({FOREIGN: marked(THEIRS)}, has_marks=has_marks).reach())
        if name in NAMELESS_METHODS:
            parameters = inspect.signature(getattr(protocol, name)).parameters
            assert not [name for name in parameters if "collection" in name or "physical" in name], name
            await getattr(guarded, name)()
            assert store.calls == [name]
            continue

        with pytest.raises(NotOwned):
            await call_method(getattr(guarded, name), name, protocol)

        assert store.calls == []


async def test_foreign_alias_is_not_moved() -> None:
    store = Called()
    guarded = guarded_collections(as_any(store), ServerState().reach())

    with pytest.raises(NotOwned):
        await guarded.apply("agent_memory_mine__2", SetAlias("agent_memory_victim", "agent_memory_mine__2"))
    await guarded.apply("agent_memory_mine__2", SetAlias("agent_memory_mine", "agent_memory_mine__2"))

    assert store.calls == ["apply"]


async def test_alias_to_a_foreign_cluster_is_not_moved() -> None:
    state = ServerState({"agent_memory_mine": marked(ELSEWHERE)})

    with pytest.raises(NotOwned):
        await guarded_collections(as_any(Called()), state.reach()).apply(
            "agent_memory_mine__2", SetAlias("agent_memory_mine", "agent_memory_mine__2")
        )


async def test_only_requested_files_are_recovered() -> None:
    store = Called()
    guarded = guarded_snapshots(as_any(store), ServerState().reach())
    with pytest.raises(NotOwned, match="is not a requested file"):
        await guarded.recover("agent_memory_mine__2", "http://qdrant/file", sha256=None)

    location = await guarded.own_location("agent_memory_mine__1", "agent_memory_mine__1-1.snapshot")
    await guarded.recover("agent_memory_mine__2", location, sha256=None)

    assert store.calls == ["own_location", "recover"]


async def test_placeholder_has_an_owner() -> None:
    owners: list[Tenant | None] = []

    class Store(Called):
        async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
            owners.append(owner)

    guarded = guarded_snapshots(as_any(Store()), ServerState().reach())
    await guarded.create_placeholder("agent_memory_mine__1")
    await guarded.create_placeholder("agent_memory_mine__1", Tenant("cluster-1", "gamma"))

    assert owners == [Tenant("cluster-1", "beta"), Tenant("cluster-1", "gamma")]


def observed_as(physical: str, *, namespace: str = "agents", is_aliased: bool = False) -> Observation:
    found = desired_of()
    assert found.marker is not None
    owned = replace(found, marker=replace(found.marker, namespace=namespace))
    return observed_of(owned, physical=physical, is_aliased=is_aliased)


LIVE = observed_as("docs", is_aliased=True)


@pytest.mark.parametrize(
    ("observed", "is_observed"),
    [
        (LIVE, True),
        (observed_as("docs", namespace="beta"), True),
        (observed_as("docs"), False),
        (observed_as(FOREIGN, namespace="beta"), False),
        (observed_as("agent_memory_mine__1"), True),
        (observed_as("agent_memory_mine"), True),
    ],
    ids=["behind the alias", "lost its alias", "another's", "another's slug", "of the slug", "plain"],
)
async def test_observe_requires_alias_slug_or_marker(observed: Observation, is_observed: bool) -> None:
    for has_marks in (True, False):
        store, reach = Called(observed=observed), ServerState(has_marks=has_marks).reach()

        found = await guarded_collections(as_any(store), reach).observe("agent_memory_mine", observed.physical)

        assert (found is not None) is is_observed


async def test_unmarked_alias_target_may_be_adopted() -> None:
    store, reach = Called(observed=LIVE), ServerState({"docs": UNMARKED}).reach()
    guarded = guarded_collections(as_any(store), reach)
    with pytest.raises(NotOwned):
        await guarded.count("docs")

    await guarded.observe("agent_memory_mine", "agent_memory_mine__1")

    await guarded.count("docs")


async def test_invalid_name_is_not_observed() -> None:
    likely_names: list[str] = []

    class Store(Called):
        async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> None:
            likely_names.append(likely)

    await guarded_collections(as_any(Store()), ServerState().reach()).observe("agent_memory_mine", "..")

    assert likely_names == ["agent_memory_mine__1"]


async def test_index_on_a_live_collection_needs_capacity() -> None:
    """A server without free memory maps aborts for all agents, for example when an upgrade adds an index everywhere."""
    demanded_maps: list[int] = []

    @asynccontextmanager
    async def reserve(need: MapDemand) -> AsyncIterator[None]:
        demanded_maps.append(need.maps)
        if len(demanded_maps) > 2:
            raise ServerFullRetryable("full")
        yield

    class Store:
        applied: ClassVar[list[str]] = []

        async def apply(self, physical: str, change: object) -> None:
            self.applied.append(type(change).__name__)

    reach = replace(ServerState(metadata_by_name={OLD: marked(OURS)}).reach(), reserve_capacity=reserve)
    store = guarded_collections(cast(CollectionStore, Store()), reach)
    two = CreateIndexes((("loggedAt", "integer"), ("tags", "keyword")))

    await store.apply(NEW, CreateCollection(NEW, desired_of()))
    await store.apply(NEW, two)
    await store.apply(OLD, two)
    assert demanded_maps[1:] == [2 * 24]

    with pytest.raises(ServerFullRetryable):
        await store.apply(OLD, two)
    assert Store.applied == ["CreateCollection", "CreateIndexes", "CreateIndexes"]
