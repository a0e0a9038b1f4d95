"""Readiness of a process, and the age of its data."""

import asyncio
from typing import Any

import pytest

from agentmemory_operator.agents import readiness as module
from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.agents.readiness import NO_QDRANT, UNPROBED, UNREAD, Readiness
from agentmemory_operator.collections.rules.claims import AgentClaim
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.spec.effective.settings import AgentSettings
from tests.support.engine.agents import settings_of
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import cluster_id

KINDS = ("A", "B")


class Store:
    """Store that raises a given error; None for a healthy one."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked: list[str] = []

    async def describe(self, collection: str) -> dict[str, Any]:
        self.asked.append(collection)
        if self.error:
            raise self.error
        return {}


class Slow(Store):
    async def describe(self, collection: str) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}


def readiness_of(*stores: Store, missing: bool = False) -> Readiness:
    """Return the readiness over one agent for each store, each with its own connection."""

    async def nothing(*_: Any) -> Any:
        raise AssertionError("nothing is opened")

    directory = AgentDirectory(nothing, nothing, cluster_id=cluster_id, clock=FakeClock())
    by_connection = {}
    for number, store in enumerate(stores):
        settings = settings_of(f"agent-{number}")
        object.__setattr__(settings, "connection", f"connection-{number}")
        by_connection[settings.connection] = store
        directory.put(AgentClaim(uid=f"u{number}", created="2026-01-01T00:00:00Z", settings=settings))

    async def store_for(settings: AgentSettings) -> Any:
        if missing:
            raise StoreUnavailable("there is no such connection")
        return by_connection[settings.connection]

    return Readiness(KINDS, directory, store_for)


async def probe_obstacle(readiness: Readiness) -> str | None:
    for kind in KINDS:
        readiness.record_synced(kind)
    await readiness.probe()
    return readiness.find_obstacle()


def away() -> Store:
    return Store(StoreUnavailable("away"))


async def test_ready_after_sync_and_first_probe() -> None:
    readiness = readiness_of(Store(None))
    reasons = [readiness.find_obstacle()]
    readiness.record_synced("A")
    reasons.append(readiness.find_obstacle())
    readiness.record_synced("B")
    reasons.append(readiness.find_obstacle())
    await readiness.probe()

    assert [*reasons, readiness.find_obstacle()] == [UNREAD, UNREAD, UNPROBED, None]


async def test_agents_are_unread_until_the_last_source_is_synced() -> None:
    readiness = readiness_of(away())
    unread = [readiness.find_unread()]
    for kind in KINDS:
        readiness.record_synced(kind)
        unread.append(readiness.find_unread())
    await readiness.probe()

    assert [*unread, readiness.find_unread()] == [UNREAD, UNREAD, None, None]
    assert readiness.find_obstacle() == NO_QDRANT


@pytest.mark.parametrize(
    ("stores", "reason"),
    [
        ([], None),
        ([Store(NotFound("not there yet"))], None),
        ([Store(StoreRejected(403, "forbidden"))], None),
        ([away()], NO_QDRANT),
        ([away(), away()], NO_QDRANT),
        ([away(), Store(None)], None),
    ],
    ids=["no agent", "no collection yet", "a wrong key", "away", "all away", "one of two away"],
)
async def test_not_ready_while_all_servers_are_down(stores: list[Store], reason: str | None) -> None:
    assert await probe_obstacle(readiness_of(*stores)) == reason


async def test_missing_connection_counts_as_down() -> None:
    assert await probe_obstacle(readiness_of(Store(None), missing=True)) == NO_QDRANT


async def test_unresponsive_server_counts_as_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_PERIOD_S", 0.05)

    assert await probe_obstacle(readiness_of(Slow(None))) == NO_QDRANT


async def test_ready_again_once_server_responds() -> None:
    store = away()
    readiness = readiness_of(store)
    assert await probe_obstacle(readiness) == NO_QDRANT

    store.error = None
    await readiness.probe()

    assert readiness.find_obstacle() is None


async def test_shared_connection_is_probed_once() -> None:
    store = Store(None)
    readiness = readiness_of(store, store)
    for settings in readiness._directory.list_settings():
        object.__setattr__(settings, "connection", "connection-0")

    await probe_obstacle(readiness)

    assert len(store.asked) == 1


async def test_probing_starts_after_sync() -> None:
    store = Store(None)
    readiness = readiness_of(store)
    running = asyncio.create_task(readiness.run())
    await asyncio.sleep(0)
    assert store.asked == []

    for kind in KINDS:
        readiness.record_synced(kind)
    async with asyncio.timeout(20):
        while readiness.find_obstacle():
            await asyncio.sleep(0)
    running.cancel()


def test_age_is_that_of_the_stalest_kind() -> None:
    now_s = 100.0
    directory = AgentDirectory(*[None] * 2, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    readiness = Readiness(KINDS, directory, None, now_s=lambda: now_s)  # type: ignore[arg-type]
    assert readiness.age_s() == 0
    readiness.record_activity("A")
    now_s = 130.0
    readiness.record_activity("B")
    now_s = 170.0

    assert readiness.age_s() == 70


async def test_not_ready_without_cluster_id() -> None:
    known = False

    async def store_for(settings: AgentSettings) -> Any:
        raise AssertionError("nothing is opened")

    directory = AgentDirectory(store_for, store_for, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    readiness = Readiness(KINDS, directory, store_for, is_identified=lambda: known)
    for kind in KINDS:
        readiness.record_synced(kind)
    await readiness.probe()
    assert "the cluster ID is not known" in (readiness.find_obstacle() or "")

    known = True

    assert readiness.find_obstacle() is None


async def test_stuck_start_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_POLL_S", 0.0)
    times = iter(range(0, 1000, 50))
    directory = AgentDirectory(*[None] * 2, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    readiness = Readiness(KINDS, directory, None, now_s=lambda: float(next(times)))  # type: ignore[arg-type]
    readiness.record_failure("A", "cannot read A: no CRDs")
    readiness.record_synced("A")
    readiness.record_failure("B", "cannot read B: a right is missing")

    with pytest.raises(AgentMemoryError, match="gave up after 120 s: cannot read B: a right is missing"):
        await readiness.check_start()

    assert "a right" not in (readiness.find_obstacle() or "")


async def test_completed_start_never_fails() -> None:
    directory = AgentDirectory(*[None] * 2, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    readiness = Readiness(KINDS, directory, None)  # type: ignore[arg-type]
    for kind in KINDS:
        readiness.record_synced(kind)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(readiness.check_start(0.0), 0.05)
