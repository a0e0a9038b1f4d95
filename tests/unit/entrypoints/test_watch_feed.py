"""Events of a source reach the API: snapshots and restores too, without which it is ready."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmemory_operator.agents.agent_objects import JOB_KINDS
from agentmemory_operator.agents.feed import ApiFeed
from agentmemory_operator.entrypoints.operator.watch_feed import JOBS_RETRY_S, follow_folder, follow_jobs, sources
from agentmemory_operator.runtime import tasks
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT
from tests.support.engine.agents import settings_of
from tests.support.spec.documents import memory_document
from tests.support.web.shown_objects import ShownObjects, snapshot_of

FIRST, SECOND = snapshot_of("bot", "a"), snapshot_of("bot", "b")


class FollowedCluster:
    """A cluster with one snapshot, to which another is added.

    Attributes:
        first: The list that it delivers first.
    """

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.first = [FIRST]

    async def follow(self, kind: str, **arguments: Any) -> AsyncIterator[tuple[str, Any]]:
        self.arguments = {"kind": kind} | arguments
        yield "LIST", self.first
        yield "ADDED", SECOND


class ApiOfFolder:
    """The parts of an API process that a source feeds.

    Attributes:
        synced: Sources that readiness was told of.
    """

    def __init__(self) -> None:
        self.shown, self.synced = ShownObjects(has_jobs=False), []
        directory: Any = SimpleNamespace(put=lambda claim: None)
        self.feed = ApiFeed(self.shown.table, directory, objects=self.shown.objects)
        self.readiness: Any = SimpleNamespace(record_synced=self.synced.append)

    def names(self) -> list[str] | None:
        found = self.shown.objects.list_jobs(settings_of("bot"), MEMORY_SNAPSHOT)
        return None if found is None else sorted(document["metadata"]["name"] for document in found)


async def test_snapshots_are_followed_beside_readiness() -> None:
    api, cluster = ApiOfFolder(), FollowedCluster()

    await follow_jobs(api, cast(Any, cluster), MEMORY_SNAPSHOT, "")

    assert api.names() == ["a", "b"]
    assert cluster.arguments == {"kind": MEMORY_SNAPSHOT, "namespace": "", "retry_s": JOBS_RETRY_S}
    assert api.synced == []
    assert not {kind for kind, _ in sources()} & {*JOB_KINDS}


async def test_other_tasks_run_while_a_list_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0)
    api, cluster = ApiOfFolder(), FollowedCluster()
    cluster.first = [snapshot_of("bot", f"s{number}") for number in range(9)]
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.append(len(api.shown.table.keys(MEMORY_SNAPSHOT)))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await follow_jobs(api, cast(Any, cluster), MEMORY_SNAPSHOT, "")
    looking.cancel()

    assert {2, 5, 9} <= {*seen}


@pytest.mark.parametrize(("has_operator", "names"), [(True, ["a"]), (False, None)])
async def test_a_folder_has_snapshots_beside_an_operator(has_operator: bool, names: list[str] | None) -> None:
    """Without one the folder has no statuses, and lacks the objects that an operator has created."""
    api, taken = ApiOfFolder(), []

    class Folder:
        async def follow(self) -> AsyncIterator[list[tuple[str, Any]]]:
            yield [("ADDED", memory_document("bot")), ("ADDED", FIRST)]

    operator = SimpleNamespace(feed=SimpleNamespace(take=lambda *event: taken.append(event)))
    await follow_folder(cast(Any, Folder()), cast(Any, api), cast(Any, operator) if has_operator else None)

    assert api.names() == names
    assert api.synced == sources()
    assert len(taken) == (2 if has_operator else 0)
