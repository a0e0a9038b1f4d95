"""Watch events: the passes that they request, and the settings that the API serves."""

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
    """Queue that only records its calls."""

    def __init__(self) -> None:
        self.requested: list[Key] = []
        self.forgotten: list[Key] = []

    def request(self, key: Key, *, after_s: float = 0.0) -> None:
        self.requested.append(key)

    def forget(self, key: Key) -> None:
        self.forgotten.append(key)


@dataclass(slots=True)
class Operator:
    """Feed of an operator, with the calls that it makes."""

    table: ObjectTable = field(default_factory=ObjectTable)
    queue: Requests = field(default_factory=Requests)
    deleted: list[Key] = field(default_factory=list)

    def take(self, event: str, document: dict[str, Any]) -> list[Key]:
        """Process one event; return the keys for which it requested passes."""
        self.queue.requested.clear()
        self.feed.take(event, document)
        return list(self.queue.requested)

    @property
    def feed(self) -> OperatorFeed:
        def ignored(_: object) -> None:
            """Ignore the call."""

        return OperatorFeed(self.table, self.queue, self.deleted.append, on_job_event=ignored, on_deleted=ignored)


def key(name: str) -> Key:
    return Key(AGENT_MEMORY, "agents", name)


def test_new_and_changed_objects_request_passes() -> None:
    operator = Operator()

    assert operator.take("ADDED", memory_document("a")) == [key("a")]
    assert operator.take("MODIFIED", memory_document("a", metadata={"generation": 2})) == [key("a")]


def test_unchanged_spec_requests_no_pass() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))

    assert operator.take("MODIFIED", memory_document("a") | {"status": {"agent": "a"}}) == []


def test_deleted_object_is_forgotten() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))

    assert operator.take("DELETED", memory_document("a")) == []
    assert (operator.queue.forgotten, operator.deleted, operator.table.get(key("a"))) == ([key("a")], [key("a")], None)


def test_deleted_owner_wakes_other_claimants() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("old", agent="bot"))
    operator.take("ADDED", memory_document("new", agent="bot", metadata=LATER))

    assert operator.take("DELETED", memory_document("old", agent="bot")) == [key("new")]


@pytest.mark.parametrize("event", ["ADDED", "DELETED"])
def test_connection_events_wake_its_users(event: str) -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))
    operator.take("ADDED", memory_document("b", connectionRef={"name": "other"}))

    assert key("a") in operator.take(event, connection_document())
    assert key("b") not in operator.queue.requested


def test_object_absent_from_list_is_dropped() -> None:
    operator = Operator()
    operator.take("ADDED", memory_document("a"))
    operator.take("ADDED", memory_document("b"))
    known = operator.feed.read_uids(AGENT_MEMORY)

    operator.feed.drop_absent(known, [memory_document("b")])

    assert operator.table.keys(AGENT_MEMORY) == [key("b")]


@pytest.mark.parametrize("listed", [[], [memory_document("a", metadata={"uid": "first"})]])
def test_object_newer_than_list_stays(listed: list[dict[str, Any]]) -> None:
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
    """Feed of an API process and the directory that it maintains."""

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

    def subjects(self, slug: str = "a") -> list[str]:
        """Return the subjects of an agent with their verbs and scopes."""
        subjects = self.directory.find_settings(slug).subjects
        return [f"{subject.name}: {','.join(sorted(subject.verbs | subject.scopes))}" for subject in subjects]


def test_settings_follow_events() -> None:
    api = Api()

    api.feed.apply_event("ADDED", memory_document("a"))
    api.feed.apply_event("MODIFIED", memory_document("a", metadata={"generation": 2}))

    assert api.agents() == [("a", 2)]


def test_invalid_object_keeps_last_settings(caplog: pytest.LogCaptureFixture) -> None:
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
    ("spec", "expected"),
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
def test_invalid_object_updates_access(
    spec: dict[str, Any], expected: list[str], metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE, scoring={"limit": 7}))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a", metadata={"generation": 2} | metadata, **spec))

    assert api.subjects() == expected
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
def test_invalid_access_rejects_all_callers(access: object, caplog: pytest.LogCaptureFixture) -> None:
    """The valid half of an invalid list may grant access that the other half was meant to revoke."""
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE, scoring={"limit": 7}))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a", access=access, metadata={"generation": 2}))

    assert api.subjects() == []
    assert (api.agents(), api.directory.find_settings("a").ranking.limit) == ([("a", 1)], 7)
    assert "rejects every caller" in caplog.text


@pytest.mark.parametrize("spec", [None, [], "x", 7, [{"access": ALL_THREE}]])
def test_malformed_spec_rejects_all_callers(spec: object, caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE))

    with caplog.at_level(logging.WARNING):
        api.feed.apply_event("MODIFIED", memory_document("a") | {"spec": spec})

    assert (api.agents(), api.subjects()) == ([("a", 1)], [])
    assert "rejects every caller" in caplog.text


def test_corrected_access_applies_despite_invalid_spec() -> None:
    api = Api()
    for access in (ALL_THREE, {"subjects": [subject("boss", "raed")]}, {"subjects": [subject("boss", "read")]}):
        api.feed.apply_event("MODIFIED", memory_document("a", access=access, **(TYPO if api.agents() else {})))

    assert api.subjects() == ["boss: read"]


def test_new_invalid_object_is_not_served() -> None:
    api = Api()

    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE, **TYPO))

    assert api.agents() == []


@pytest.mark.parametrize("again", [TYPO, {"agent": "b"}, {"connectionRef": {"name": "other"}}])
def test_recreated_object_inherits_nothing(again: dict[str, Any]) -> None:
    """The object was deleted and recreated in a gap of the watch: the next list contains only the new object."""
    api = Api()
    api.feed.apply_list(AGENT_MEMORY, [memory_document("a", access=ALL_THREE)])

    new = memory_document("a", metadata=LATER | {"uid": "another"}, **again)
    api.feed.apply_list(AGENT_MEMORY, [new])

    assert [api.subjects(slug) for slug, _ in api.agents()] == ([] if again is TYPO else [[]])
    assert api.forgotten == ["a"]
    api.feed.apply_event("DELETED", new)
    assert api.agents() == []


def test_changed_slug_is_no_longer_served() -> None:
    """Only a folder of manifests allows a changed slug: in a cluster the slug is immutable."""
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a", access=ALL_THREE))

    api.feed.apply_event("MODIFIED", memory_document("a", agent="b", access={"subjects": []}))
    assert api.agents() == [("b", 1)]

    api.feed.apply_event("DELETED", memory_document("a", agent="b"))
    assert api.agents() == []


def test_deleted_object_is_no_longer_served() -> None:
    api = Api()
    api.feed.apply_event("ADDED", memory_document("a"))

    api.feed.apply_event("DELETED", memory_document("a"))

    assert api.agents() == []


def test_older_object_is_served_in_any_order() -> None:
    api = Api()

    api.feed.apply_event("ADDED", memory_document("new", agent="bot", metadata=LATER | {"generation": 9}))
    api.feed.apply_event("ADDED", memory_document("old", agent="bot"))

    assert api.agents() == [("bot", 1)]


def test_connection_adds_no_agent() -> None:
    api = Api()

    api.feed.apply_event("ADDED", connection_document())

    assert api.agents() == []
    assert api.table.get(key_of(connection_document())) is not None


def test_list_drops_absent_objects_of_its_kind() -> None:
    api = Api()
    for document in (memory_document("a"), memory_document("b"), connection_document()):
        api.feed.apply_event("ADDED", document)

    api.feed.apply_list(AGENT_MEMORY, [memory_document("b", metadata={"generation": 2}), memory_document("c")])

    assert api.agents() == [("b", 2), ("c", 1)]
    assert api.table.keys(QDRANT_CONNECTION) == [key_of(connection_document())]
