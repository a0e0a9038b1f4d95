"""Operators are killed with -9 during restores, rollbacks, in-place restores and deletions of a restore.

The state changes only with a write, so a kill after each call is enough: at every second step.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

import httpx
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.agents.directory import open_collection
from agentmemory_operator.collections.rules.epochs import CLOSED_KEY
from agentmemory_operator.lifecycle.erase import Eraser
from agentmemory_operator.lifecycle.forget import ForgetRequest, ForgetUseCase
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.faults.test_operator_kills import MAX_STEPS, PERIODS, SETTLED_S, ended_by_kill, operating
from tests.support.cluster.operators import ForkedOperator, OperatorForks
from tests.support.cluster.workspace import SIZE, Workspace, conditions_of, marker_of
from tests.support.patience import wait_until

pytestmark = pytest.mark.faults

KIND = "MemoryRestore"
SNAPSHOT = "before"
SOURCE = {"snapshotRef": {"name": SNAPSHOT}}
KEPT, ERASED = "kept", "erased"
# Memories of the remaining user: in the snapshot, and including later writes.
BEFORE, SINCE = 3, 5
# Deletions are tried after every third call.
SPARSE = 6


class Reader(threading.Thread):
    """Client that counts a user's memories behind the alias continuously, and records invalid results."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(daemon=True)
        self._workspace = workspace
        self._is_done = threading.Event()
        self.reads = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with httpx.Client(base_url=self._workspace.qdrant_url, timeout=30) as client:
            while not self._is_done.wait(0.02):
                self._read(client)

    def _read(self, client: httpx.Client) -> None:
        answer = client.post(f"/collections/{self._workspace.alias}/points/count", json=count_query(KEPT))
        self.reads += 1
        if answer.status_code != 200 or answer.json()["result"]["count"] not in (BEFORE, SINCE):
            self.wrong.append(f"HTTP {answer.status_code}: {answer.text}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self.join()


class Agent:
    """Agent with a snapshot, a user who was forgotten since, and memories that were written since."""

    def __init__(self, workspace: Workspace, nursery: OperatorForks) -> None:
        self.workspace, self.nursery = workspace, nursery

    def prepare(self) -> None:
        """Create the agent, its snapshot and the later changes; an operator runs."""
        # A restore waits once for as long as a call to Qdrant may take.
        self.workspace.connect(timeoutSeconds=3)
        self.workspace.create()
        self.workspace.wait_ready(seconds=20)
        self.store(KEPT, range(BEFORE))
        self.store(ERASED, range(100, 102))
        self.workspace.create_snapshot(SNAPSHOT, verify="None")
        self.workspace.wait_condition("Succeeded", "True/SnapshotTaken", name=SNAPSHOT, of="MemorySnapshot", seconds=20)
        asyncio.run(self._forget())
        self.write_since()

    def write_since(self) -> None:
        """Write the memories that the snapshot lacks."""
        self.store(KEPT, range(BEFORE, SINCE))

    def store(self, user: str, ids: range) -> None:
        payload = {"userId": user, "type": "fact", "content": "c", "rev": 1, "updatedAt": int(time.time() * 1000)}
        points = [{"id": number, "vector": [1.0] * SIZE, "payload": payload} for number in ids]
        path = f"/collections/{self.workspace.alias}/points"
        self.workspace.qdrant.put(path, params={"wait": "true"}, json={"points": points}).raise_for_status()

    async def _cluster_id(self) -> str:
        return str(marker_of(self.workspace)["clusterId"])

    async def _forget(self) -> None:
        """Forget the erased user by the API's use case."""
        settings, clock = effective_settings(parse_agent_memory(self.workspace.must_get())), SystemClock()
        points = QdrantPoints(self.workspace.qdrant_url)
        try:
            agent = await open_collection(points, settings, CallerVectors(SIZE), clock, cluster_id=self._cluster_id)
            erasing = Eraser(clock)
            await ForgetUseCase(clock, erasing).forget(
                agent, ForgetRequest(scope=ErasureScope(user_id=ERASED, is_whole=True))
            )
        finally:
            await points.close()

    @property
    def live(self) -> str:
        """Target of the alias."""
        return self.workspace.aliases()[self.workspace.alias]

    def count(self, user: str, collection: str) -> int:
        answer = self.workspace.qdrant.post(f"/collections/{collection}/points/count", json=count_query(user))
        return int(answer.raise_for_status().json()["result"]["count"])

    def restore(self, name: str, **spec: object) -> None:
        self.workspace.create_restore(name, SOURCE, **spec)

    def request_rollback(self, name: str) -> None:
        self.workspace.annotate(name, of=KIND, rollback="yes")

    def is_gone(self, name: str) -> bool:
        return self.workspace.get(name, KIND) is None

    def is_restored(self, name: str) -> bool:
        """Return whether a restore is applied and has no finalizer."""
        return self.has(name, "Succeeded", "True/Restored") and not self.workspace.must_get(name, KIND)["metadata"].get(
            "finalizers"
        )

    def has(self, name: str, kind: str, expected: str) -> bool:
        found = self.workspace.get(name, KIND)
        return found is not None and conditions_of(found).get(kind) == expected

    def die_at(self, step: int, act: Callable[[], None], is_done: Callable[[], bool]) -> bool:
        """Perform an action with an operator that kills itself at a step; return whether it reached that step."""
        operator = self.nursery.start(victim=self.workspace.slug, crash_at=step, periods=PERIODS)
        act()
        wait_until(lambda: operator.returncode is not None or is_done(), seconds=30, what=f"step {step}")
        time.sleep(0 if operator.returncode is not None else SETTLED_S)
        return ended_by_kill(operator)

    def wait(self, operator: ForkedOperator, is_done: Callable[[], bool], *, what: str, seconds: float = 30) -> None:
        """Wait until the operator has completed the killed operation."""
        try:
            wait_until(is_done, seconds=seconds, what=what)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; the log ends: {operator.log[-1500:]}") from exc

    def check(self, live: str, kept: set[str], *, step: int) -> None:
        """Check that exactly these collections exist, none with an erased user."""
        assert self.live == live, f"after a kill at step {step}"
        found = self.workspace.qdrant.get("/collections").json()["result"]["collections"]
        names = {item["name"] for item in found if item["name"].startswith((self.workspace.alias, "agentmemory_scr"))}
        assert names == {live, *kept}, f"after a kill at step {step}"
        assert {name: self.count(ERASED, name) for name in names} == dict.fromkeys(names, 0)

    def drop(self, restore: str, collection: str) -> None:
        """Delete a completed restore and the collection that is kept for it."""
        self.workspace.delete(restore, KIND)
        wait_until(partial(self.is_gone, restore), seconds=10, what=f"the end of {restore}")
        if collection not in (self.workspace.physical, self.live):
            self.workspace.qdrant.delete(f"/collections/{collection}").raise_for_status()


def count_query(user: str) -> dict[str, object]:
    return {"exact": True, "filter": {"must": [{"key": "userId", "match": {"value": user}}]}}


@pytest.fixture
def agent(workspace: Workspace, nursery: OperatorForks) -> Agent:
    made = Agent(workspace, nursery)
    with operating(nursery):
        made.prepare()
    return made


@contextlib.contextmanager
def check_served(agent: Agent) -> Iterator[None]:
    """Check that clients were always served by one complete collection."""
    with Reader(agent.workspace) as reader:
        yield
    assert reader.wrong == []
    assert reader.reads > 50


def test_killed_swap_is_completed(agent: Agent) -> None:
    with check_served(agent):
        for step in range(2, MAX_STEPS, 2):
            name, previous = f"r{step}", agent.live
            agent.write_since()
            was_killed = agent.die_at(step, partial(agent.restore, name), partial(agent.is_restored, name))
            with operating(agent.nursery) as operator:
                agent.wait(operator, partial(agent.is_restored, name), what=f"the restore killed at {step}")
            agent.check(agent.live, {agent.workspace.physical, previous}, step=step)
            assert (agent.count(KEPT, agent.live), agent.count(KEPT, previous)) == (BEFORE, SINCE)
            assert agent.workspace.status(name, KIND)["previousCollection"]["physical"] == previous
            agent.drop(name, previous)
            if not was_killed:
                break

    assert step > 2 * 20


def test_killed_rollback_is_completed(agent: Agent) -> None:
    original = agent.workspace.physical
    with check_served(agent):
        for step in range(2, MAX_STEPS, 2):
            name = f"r{step}"
            with operating(agent.nursery) as operator:
                agent.restore(name)
                agent.wait(operator, partial(agent.is_restored, name), what=name)
            restored, is_back = agent.live, partial(agent.has, name, "RolledBack", "True/RolledBack")
            was_killed = agent.die_at(step, partial(agent.request_rollback, name), is_back)
            with operating(agent.nursery) as operator:
                agent.wait(operator, is_back, what=f"the way back killed at {step}")
            agent.check(original, {restored}, step=step)
            assert (agent.count(KEPT, original), agent.count(KEPT, restored)) == (SINCE, BEFORE)
            agent.drop(name, restored)
            if not was_killed:
                break

    assert step > 2 * 5


def test_deleted_restore_leaves_nothing_partial(agent: Agent) -> None:
    original, outcomes = agent.workspace.physical, set()
    with check_served(agent):
        for step in range(2, MAX_STEPS, SPARSE):
            name, before = f"r{step}", agent.live
            agent.write_since()
            was_killed = agent.die_at(step, partial(agent.restore, name), partial(agent.is_restored, name))
            if not was_killed:
                break
            agent.workspace.delete(name, KIND)
            with operating(agent.nursery) as operator:
                agent.wait(operator, partial(agent.is_gone, name), what=f"the end of what was killed at {step}")
            is_moved = agent.live != before
            outcomes.add(is_moved)
            agent.check(agent.live, {original, before}, step=step)
            assert agent.count(KEPT, agent.live) == (BEFORE if is_moved else SINCE)
            agent.drop(name, before)

    assert outcomes == {False, True}


def test_in_place_restore_survives_kills(agent: Agent) -> None:
    """The restore waits for a safety snapshot, so one restore is killed several times."""
    chance, deaths, name = random.Random(3), 0, "in-place"
    is_restored = partial(agent.is_restored, name)
    agent.restore(name, mode="InPlace")
    with check_served(agent):
        while agent.die_at(chance.randint(2, 24), lambda: None, is_restored):
            deaths += 1
        with operating(agent.nursery) as operator:
            agent.wait(operator, is_restored, what=name)

    assert deaths > 3
    agent.check(agent.workspace.physical, set(), step=0)
    assert agent.count(KEPT, agent.live) == BEFORE
    assert CLOSED_KEY not in agent.workspace.config()["metadata"]
