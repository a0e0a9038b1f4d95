"""The operator is killed at every call of a verification: the next start deletes the scratch data and completes it."""

import contextlib
import itertools
import pathlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import AgentMemoryError, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot
from agentmemory_operator.snapshots.rules.copy_verdict import SnapshotRecord
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.naming import SCRATCH_PREFIX
from qdrant_devserver.server import create_app
from tests.support.engine.agents import World, open_world
from tests.support.engine.interleaved_store import Moment
from tests.support.fault_injection import plant, remove_faults
from tests.support.job.job_world import open_server
from tests.support.web.http_server import serve

pytestmark = pytest.mark.faults

MAX_CALLS = 60


@dataclass
class Process:
    """Process that dies before or after one chosen call of any of its stores; every later call fails."""

    at: int
    moment: Moment
    calls: int = 0

    def over(self, server: Server) -> Server:
        stores = (server.collections, server.snapshots, server.points)
        collections, snapshots, points = (_Dying(store, self) for store in stores)
        return replace(server, collections=collections, snapshots=snapshots, points=points)


@dataclass
class _Dying:
    store: Any
    process: Process
    unmeasured: frozenset[str] = field(default_factory=lambda: frozenset({"download", "close"}))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        return method if name in self.unmeasured else lambda *args, **more: self._call(method, *args, **more)

    async def _call(self, method: Any, *args: Any, **more: Any) -> Any:
        number, self.process.calls = self.process.calls, self.process.calls + 1
        if number > self.process.at or (number == self.process.at and self.process.moment == "before"):
            raise StoreUnavailable("the process died")
        answer = await method(*args, **more)
        if number == self.process.at:
            raise OutcomeUnknown("the process died")
        return answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("qdrant")


@pytest.fixture(scope="module")
def own_qdrant(folder: pathlib.Path) -> Iterator[str]:
    with serve(create_app(folder)) as url:
        yield url


@pytest.fixture
async def agent(own_qdrant: str) -> AsyncIterator[tuple[World, Server]]:
    async with open_world(own_qdrant) as world, open_server(own_qdrant) as server:
        for number in range(5):
            await world.add(f"memory {number}")
        yield world, server


def new_process() -> Verification:
    async def cluster_id() -> str:
        return "cluster"

    return Verification(ScratchCollections(cluster_id))


async def snapshot(world: World, server: Server) -> ComparedSnapshot:
    physical = f"{world.agent.alias}__1"
    file = await server.snapshots.create(physical)
    recorded = SnapshotRecord(started_ms=world.clock.now_ms(), before=5, after=5)
    return ComparedSnapshot(
        uid="u", physical=physical, name=file.name, sha256=file.sha256, recorded=recorded, live=physical
    )


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_verification_is_completed(agent: tuple[World, Server], moment: Moment) -> None:
    world, server = agent
    subject = await snapshot(world, server)
    has_left_scratch = False

    for at in itertools.count():
        process = Process(at, moment)
        with contextlib.suppress(AgentMemoryError):
            await new_process().verify(subject, "Full", process.over(server))
        if process.calls <= at:
            break
        assert at < MAX_CALLS
        found = await server.snapshots.collections()
        has_left_scratch = has_left_scratch or any(name.startswith(SCRATCH_PREFIX) for name in found)

        following = new_process()
        await following.scratch.sweep(server)
        assert await server.snapshots.collections() == [subject.physical], f"killed {moment} call {at}"
        verdict = await following.verify(subject, "Full", server)
        assert verdict.reason == "Verified", f"killed {moment} call {at}: {verdict.message}"

    assert has_left_scratch
    assert at > 10


@pytest.mark.parametrize("fault", ["never-ends", "disk-full"])
async def test_failed_recovery_is_retried_then_reported(
    agent: tuple[World, Server], own_qdrant: str, folder: pathlib.Path, fault: str
) -> None:
    world, server = agent
    subject, verification = await snapshot(world, server), new_process()
    plant(folder, recover=fault)
    # Long enough for a busy server to start the recovery, which never ends.
    async with open_server(own_qdrant, deadline_s=2.0) as impatient:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await verification.verify(subject, "Full", impatient)
        verdict = await verification.verify(subject, "Full", impatient)
    remove_faults(folder)

    assert (verdict.state.status, verdict.reason) == (None, "NotRestorable")
    assert await server.snapshots.collections() == [subject.physical]
    assert (await verification.verify(subject, "Full", server)).reason == "Verified"
