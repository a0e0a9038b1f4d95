"""What a source's events set in motion."""

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.agents.feed import ApiFeed
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable, key_of
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import cluster_id, connection_document, memory_document

LATER = {"creationTimestamp": "2026-02-01T00:00:00Z"}


class Requests(WorkQueue[Key]):
    """A queue that only notes what it is asked."""

    def __init__(self) -> None:
        self.requested: list[Key] = []
        self.forgotten: list[Key] = []

    def request(self, key: Key, *, after_s: float = 0.0) -> None:
        self.requested.append(key)

    def forget(self, key: Key) -> None:
        self.forgotten.append(key)


@dataclass(slots=True)
class Operator:
    """A feed and what it set in motion."""

    table: ObjectTable = field(default_factory=ObjectTable)
    queue: Requests = field(default_factory=Requests)
    gone: list[Key] = field(default_factory=list)

    def take(self, event: str, document: dict[str, Any]) -> list[Key]:
        """Take one event; return the keys it asked passes for."""
        self.queue.requested.clear()
        self.feed.take(event, document)
        return list(self.queue.requested)

    @property
    def feed(self) -> OperatorFeed:
        def ignored(_: object) -> None:
            """Take no notice."""

        return OperatorFeed(self.table, self.queue, self.gone.append, on_job_event=ignored, on_deleted=ignored)


def key(name: str) -> Key:
    return Key(AGENT_MEMORY, "agents", name)


def test_a_new_object_and_a_changed_one_ask_for_a_pass() -> None:
    operator = Operator()

    assert operator.take("ADDED", memory_document("a")) == [key("a")]
    assert operator.take("MODIFIED", memory_document("a", metadata={"generation": 2})) == [key("a")]


def test_an_event_that_brings_nothing_new_asks_for_none() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))

    assert operator.take("MODIFIED", memory_document("a") | {"status": {"agent": "a"}}) == []


def test_a_deleted_object_is_forgotten_everywhere() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))

    assert operator.take("DELETED", memory_document("a")) == []
    assert (operator.queue.forgotten, operator.gone, operator.table.get(key("a"))) == ([key("a")], [key("a")], None)


def test_a_deleted_owner_wakes_the_other_claims_on_its_slug() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("old", agent="bot"))
    operator.take("ADDED", memory_document("new", agent="bot", metadata=LATER))

    assert operator.take("DELETED", memory_document("old", agent="bot")) == [key("new")]


@pytest.mark.parametrize("event", ["ADDED", "DELETED"])
def test_a_connection_that_comes_or_goes_wakes_its_users(event: str) -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))
    operator.take("ADDED", memory_document("b", connectionRef={"name": "other"}))

    assert key("a") in operator.take(event, connection_document())
    assert key("b") not in operator.queue.requested


def test_an_object_that_a_list_does_not_hold_is_dropped() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))
    operator.take("ADDED", memory_document("b"))
    known = operator.feed.read_uids(AGENT_MEMORY)

    operator.feed.drop_absent(known, [memory_document("b")])

    assert operator.table.keys(AGENT_MEMORY) == [key("b")]


@pytest.mark.parametrize("listed", [[], [memory_document("a", metadata={"uid": "first"})]])
def test_an_object_that_came_or_was_made_again_after_the_list_stays(listed: list[dict[str, Any]]) -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a", metadata={"uid": "first"}))
    known = operator.feed.read_uids(AGENT_MEMORY)
    operator.take("ADDED", memory_document("a", metadata={"uid": "second"}))
    operator.take("ADDED", memory_document("b"))

    operator.feed.drop_absent(known, listed)

    assert operator.table.keys(AGENT_MEMORY) == [key("a"), key("b")]


async def _no_store(settings: AgentSettings) -> PointStore:
    raise NotFound("no store here")


async def _no_embedder(source: EmbeddingSource, settings: AgentSettings) -> Embedder:
    raise NotFound("no embedder here")


@dataclass(slots=True)
class Api:
    """A feed and the directory that it keeps."""

    directory: AgentDirectory = field(
        default_factory=lambda: AgentDirectory(_no_store, _no_embedder, cluster_id=cluster_id, clock=FakeClock())
    )
    table: ObjectTable = field(default_factory=ObjectTable)
    forgotten: list[str] = field(default_factory=list)
    feed: ApiFeed = field(init=False)

    def __post_init__(self) -> None:
        self.feed = ApiFeed(self.table, self.directory, self.forgotten.append)

    def agents(self) -> list[tuple[str, int]]:
        """Return slug and generation of every agent."""
        return [(settings.slug, settings.generation) for settings in self.directory.list_settings()]

    def let_in(self, slug: str = "a") -> list[str]:
        """Return who may do anything with an agent, and what."""
        subjects = self.directory.find_settings(slug).subjects
        return [f"{subject.name}: {','.join(sorted(subject.verbs | subject.scopes))}" for subject in subjects]


def test_an_object_s_settings_are_served_as_they_come() -> None:
    api = Api()

    api.feed.apply_event("ADDED", memory_document("a"))
    api.feed.apply_event("MODIFIED", memory_document("a", metadata={"generation": 2}))

    assert api.agents() == [("a", 2)]


def test_an_object_that_is_not_valid_keeps_its_last_settings(caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a"))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a", metadata={"generation": 2}, index={"hnsw": {"m": 1}}))

    assert api.agents() == [("a", 1)]
    assert "spec.index.hnsw.m" in caplog.text


def subject(name: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "namespace": "agents", "name": name, "verbs": [*verbs]} | more


ALL_THREE = {"subjects": [subject("boss", "admin", "read"), subject("bot", "write", scopes=["global"])]}
TYPO: dict[str, Any] = {"index": {"hnsw": {"m": 1}}}


@pytest.mark.parametrize(
    ("spec", "let_in"),
    [
        ({"access": ALL_THREE} | TYPO, ["boss: admin,read", "bot: global,write"]),
        ({"access": {"subjects": [subject("boss", "read")]}} | TYPO, ["boss: read"]),
        ({"access": {"subjects": [subject("new", "read")]}} | TYPO, ["new: read"]),
        ({"access": {"subjects": [subject("bot", "write")]}} | TYPO, ["bot: write"]),
        ({"access": {"subjects": []}} | TYPO, []),
        ({"access": {}} | TYPO, []),
        ({"access": None} | TYPO, []),
        (TYPO, []),
        ({"access": ALL_THREE, "suspend": "yes"}, ["boss: admin,read", "bot: global,write"]),
        ({"agent": "b", "access": {"subjects": [subject("boss", "read")]}} | TYPO, ["boss: read"]),
        ({"connectionRef": {"name": "other"}, "access": {"subjects": []}} | TYPO, []),
    ],
)
@pytest.mark.parametrize("metadata", [{}, {"deletionTimestamp": "2026-02-01T00:00:00Z", "finalizers": ["x"]}])
def test_who_may_call_is_read_of_an_object_that_is_not_valid_too(
    spec: dict[str, Any], let_in: list[str], metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE, scoring={"limit": 7}))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a", metadata={"generation": 2} | metadata, **spec))

    assert api.let_in() == let_in
    assert (api.agents(), api.directory.find_settings("a").ranking.limit) == ([("a", 1)], 7)
    assert "and the current spec.access" in caplog.text


@pytest.mark.parametrize(
    "access",
    [
        "nobody",
        [subject("boss", "read")],
        {"subjects": [subject("boss", "read"), subject("bot", "wriet")]},
        {"subjects": [subject("boss", "read"), "bot"]},
        {"subjects": [subject("boss", "read", until="2026-01-01")]},
        {"subjects": [subject("boss", "read"), subject("boss", "write")]},
        {"subjects": {"boss": "read"}},
        ALL_THREE | {"mode": "Deny"},
    ],
)
def test_who_may_call_is_nobody_where_that_cannot_be_read(access: object, caplog: pytest.LogCaptureFixture) -> None:
    """Half of what somebody wrote may be the half that lets in, or the half that the other was to take back."""
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE, scoring={"limit": 7}))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a", access=access, metadata={"generation": 2}))

    assert api.let_in() == []
    assert (api.agents(), api.directory.find_settings("a").ranking.limit) == ([("a", 1)], 7)
    assert "rejects every caller" in caplog.text


@pytest.mark.parametrize("spec", [None, [], "x", 7, [{"access": ALL_THREE}]])
def test_a_spec_that_is_no_object_lets_nobody_in(spec: object, caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a") | {"spec": spec})

    assert (api.agents(), api.let_in()) == ([("a", 1)], [])
    assert "rejects every caller" in caplog.text


def test_who_was_let_in_again_is_let_in_before_the_rest_is_correct() -> None:
    api = Api()
    for access in (ALL_THREE, {"subjects": [subject("boss", "raed")]}, {"subjects": [subject("boss", "read")]}):
        api.feed.apply_event("MODIFIED", memory_document("a", access=access, **(TYPO if api.agents() else {})))

    assert api.let_in() == ["boss: read"]


def test_a_new_object_that_is_not_valid_is_not_served() -> None:
    api = Api()

    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE, **TYPO))

    assert api.agents() == []


@pytest.mark.parametrize("again", [TYPO, {"agent": "b"}, {"connectionRef": {"name": "other"}}])
def test_another_object_by_the_same_name_takes_nothing_over(again: dict[str, Any]) -> None:
    """Deleted and made again in a gap of the watch: the list that follows has the new one alone."""
    api = Api()
    api.feed.apply_list(AGENT_MEMORY, [memory_document("a", access=ALL_THREE)])

    new = memory_document("a", metadata=LATER | {"uid": "another"}, **again)
    api.feed.apply_list(AGENT_MEMORY, [new])

    assert [api.let_in(slug) for slug, _ in api.agents()] == ([] if again is TYPO else [[]])
    assert api.forgotten == ["a"]
    api.feed.apply_event("DELETED", new)
    assert api.agents() == []


def test_a_slug_that_an_object_gave_up_is_served_no_more() -> None:
    """As a folder of manifests lets it: in a cluster the slug is for good."""
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE))

    api.feed.apply_event("MODIFIED", memory_document("a", agent="b", access={"subjects": []}))
    assert api.agents() == [("b", 1)]

    api.feed.apply_event("DELETED", memory_document("a", agent="b"))
    assert api.agents() == []


def test_a_deleted_object_is_served_no_more() -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a"))

    api.feed.apply_event("DELETED", memory_document("a"))

    assert api.agents() == []


def test_the_older_of_two_claims_is_served_whatever_comes_first() -> None:
    api = Api()

    api.feed.apply_event("ADDED", memory_document("new", agent="bot", metadata=LATER | {"generation": 9}))
    api.feed.apply_event("ADDED", memory_document("old", agent="bot"))

    assert api.agents() == [("bot", 1)]


def test_a_connection_is_kept_and_serves_nothing() -> None:
    api = Api()

    api.feed.apply_event("ADDED", connection_document())

    assert api.agents() == []
    assert api.table.get(key_of(connection_document())) is not None


def test_a_list_drops_what_it_does_not_hold_and_only_of_its_kind() -> None:
    api = Api()
    for document in (memory_document("a"), memory_document("b"), connection_document()):
        api.feed.apply_event("ADDED", document)

    api.feed.apply_list(AGENT_MEMORY, [memory_document("b", metadata={"generation": 2}), memory_document("c")])

    assert api.agents() == [("b", 2), ("c", 1)]
    assert api.table.keys(QDRANT_CONNECTION) == [key_of(connection_document())]
