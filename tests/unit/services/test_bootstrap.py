"""An agent without a collection: an empty one, none while one is restored for it, or the one that its spec names."""

from typing import Any

import pytest

from agentmemory_operator.domain.manifests import parse_agent_memory, parse_restore
from agentmemory_operator.errors import RestoreUnderWay, SpecInvalid
from agentmemory_operator.ports import Json
from agentmemory_operator.services.bootstrap import bootstrap_of, check_creation
from agentmemory_operator.services.objects import AGENT_MEMORY, Key, ObjectTable
from tests.support.fakes import FakeCluster, memory_document

BEGINS = {"bootstrap": {"fromSnapshot": {"name": "before"}}}
KEY = Key(AGENT_MEMORY, "agents", "probe")


class Site:
    """A cluster with one agent that has no collection."""

    def __init__(self, **spec: Any) -> None:
        self.table, self.cluster = ObjectTable(), FakeCluster()
        self.memory = parse_agent_memory(memory_document(**spec))

    def restore(self, name: str, status: Json, *, into: str = "probe", **metadata: Any) -> None:
        spec = {"target": {"name": into}, "source": {"snapshotRef": {"name": "before"}}}
        named = {"name": name, "namespace": "agents", "uid": name} | metadata
        self.table.put({"kind": "MemoryRestore", "metadata": named, "spec": spec, "status": status})

    async def check(self) -> None:
        await check_creation(KEY, self.memory, table=self.table, cluster=self.cluster)


def ended(status: str) -> Json:
    """Return the status of a restore that has ended."""
    return {"conditions": [{"type": "Succeeded", "status": status, "reason": "Because", "message": "it was spoilt"}]}


async def test_an_agent_that_asks_for_nothing_gets_an_empty_collection() -> None:
    site = Site()

    await site.check()

    assert site.cluster.created == {}


async def test_while_a_restore_makes_its_collection_no_other_is_made() -> None:
    site = Site()
    site.restore("undo", {"physical": "agent_memory_probe__2"})

    with pytest.raises(RestoreUnderWay, match="MemoryRestore undo"):
        await site.check()


@pytest.mark.parametrize(
    ("status", "more"),
    [
        ({}, {}),
        (ended("True") | {"physical": "p"}, {}),
        (ended("False") | {"physical": "p"}, {}),
        ({"physical": "p"}, {"deletionTimestamp": "2026-11-22T08:00:00Z"}),
    ],
    ids=["not begun", "applied", "failed", "deleted"],
)
async def test_a_restore_that_makes_nothing_holds_nothing_up(status: Json, more: Json) -> None:
    site = Site()
    site.restore("undo", status, **more)
    site.restore("another-s", {"physical": "p"}, into="other")

    await site.check()


async def test_one_that_begins_with_a_snapshot_has_its_restore_made_once() -> None:
    site = Site(**BEGINS)

    for _ in range(2):
        with pytest.raises(RestoreUnderWay, match="probe-bootstrap-uid-prob"):
            await site.check()

    ((kind, name),) = site.cluster.created
    assert (kind, name) == ("MemoryRestore", "probe-bootstrap-uid-prob")
    made = parse_restore(site.cluster.created[kind, name])
    assert made.spec.target.name == "probe"
    assert made.spec.source.snapshot_ref is not None
    assert made.spec.source.snapshot_ref.name == "before"


async def test_a_snapshot_that_cannot_be_restored_is_told_and_nothing_empty_is_made() -> None:
    site = Site(**BEGINS)
    site.restore("probe-bootstrap-uid-prob", ended("False"))

    with pytest.raises(SpecInvalid, match="it was spoilt") as caught:
        await site.check()

    assert caught.value.reason == "BootstrapFailed"
    assert site.cluster.created == {}


async def test_once_it_was_restored_the_snapshot_is_not_asked_for_again() -> None:
    site = Site(**BEGINS)
    site.restore("probe-bootstrap-uid-prob", ended("True"))

    await site.check()

    assert site.cluster.created == {}


def test_an_agent_that_is_made_anew_begins_anew() -> None:
    first = parse_agent_memory(memory_document(**BEGINS))
    second = parse_agent_memory(memory_document(metadata={"uid": "another"}, **BEGINS))

    assert bootstrap_of(first)["metadata"]["name"] != bootstrap_of(second)["metadata"]["name"]
