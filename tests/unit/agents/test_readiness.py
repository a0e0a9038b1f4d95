"""Whether a process is ready, and how old what it serves from is."""

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
    """Answers as told: None is well."""

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


def standing_of(*stores: Store, missing: bool = False) -> Readiness:
    """Return the standing over one agent for each store, each with a connection of its own."""

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


async def told(standing: Readiness) -> str | None:
    for kind in KINDS:
        standing.record_synced(kind)
    await standing.probe()
    return standing.find_obstacle()


def away() -> Store:
    return Store(StoreUnavailable("away"))


async def test_it_is_ready_once_every_kind_was_read_and_a_qdrant_answered() -> None:
    standing = standing_of(Store(None))
    reasons = [standing.find_obstacle()]
    standing.record_synced("A")
    reasons.append(standing.find_obstacle())
    standing.record_synced("B")
    reasons.append(standing.find_obstacle())
    await standing.probe()

    assert [*reasons, standing.find_obstacle()] == [UNREAD, UNREAD, UNPROBED, None]


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
async def test_it_is_not_ready_while_every_qdrant_is_away(stores: list[Store], reason: str | None) -> None:
    assert await told(standing_of(*stores)) == reason


async def test_a_connection_that_is_missing_is_like_a_qdrant_that_is_away() -> None:
    assert await told(standing_of(Store(None), missing=True)) == NO_QDRANT


async def test_a_qdrant_that_says_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_PERIOD_S", 0.05)

    assert await told(standing_of(Slow(None))) == NO_QDRANT


async def test_it_is_ready_again_when_qdrant_is_back() -> None:
    store = away()
    standing = standing_of(store)
    assert await told(standing) == NO_QDRANT

    store.error = None
    await standing.probe()

    assert standing.find_obstacle() is None


async def test_agents_of_one_connection_are_asked_for_once() -> None:
    store = Store(None)
    standing = standing_of(store, store)
    for settings in standing._directory.list_settings():
        object.__setattr__(settings, "connection", "connection-0")

    await told(standing)

    assert len(store.asked) == 1


async def test_it_asks_by_itself_once_everything_was_read() -> None:
    store = Store(None)
    standing = standing_of(store)
    running = asyncio.create_task(standing.run())
    await asyncio.sleep(0)
    assert store.asked == []

    for kind in KINDS:
        standing.record_synced(kind)
    async with asyncio.timeout(20):
        while standing.find_obstacle():
            await asyncio.sleep(0)
    running.cancel()


def test_the_age_is_that_of_the_kind_heard_of_longest_ago() -> None:
    now_s = 100.0
    directory = AgentDirectory(*[None] * 2, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    standing = Readiness(KINDS, directory, None, now_s=lambda: now_s)  # type: ignore[arg-type]
    assert standing.age_s() == 0
    standing.record_activity("A")
    now_s = 130.0
    standing.record_activity("B")
    now_s = 170.0

    assert standing.age_s() == 70


async def test_a_process_that_does_not_know_its_cluster_is_not_ready() -> None:
    known = False

    async def store_for(settings: AgentSettings) -> Any:
        raise AssertionError("nothing is opened")

    directory = AgentDirectory(store_for, store_for, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    standing = Readiness(KINDS, directory, store_for, is_identified=lambda: known)
    for kind in KINDS:
        standing.record_synced(kind)
    await standing.probe()
    assert "the cluster ID is not known" in (standing.find_obstacle() or "")

    known = True

    assert standing.find_obstacle() is None


async def test_a_start_that_gets_no_further_ends_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_POLL_S", 0.0)
    times = iter(range(0, 1000, 50))
    directory = AgentDirectory(*[None] * 2, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    standing = Readiness(KINDS, directory, None, now_s=lambda: float(next(times)))  # type: ignore[arg-type]
    standing.record_failure("A", "cannot read A: no CRDs")
    standing.record_synced("A")
    standing.record_failure("B", "cannot read B: a right is missing")

    with pytest.raises(AgentMemoryError, match="gave up after 120 s: cannot read B: a right is missing"):
        await standing.check_start()

    assert "a right" not in (standing.find_obstacle() or "")


async def test_a_start_that_got_through_is_never_given_up() -> None:
    directory = AgentDirectory(*[None] * 2, cluster_id=cluster_id, clock=FakeClock())  # type: ignore[arg-type]
    standing = Readiness(KINDS, directory, None)  # type: ignore[arg-type]
    for kind in KINDS:
        standing.record_synced(kind)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(standing.check_start(0.0), 0.05)
