"""Marks of checked memories: cleared at once, or by a running process together."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories import due_marks
from agentmemory_operator.memories.due_marks import DueMarks
from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import agent_of, settings_of


class Store:
    """Records the operations of each batch. The first `failures` calls fail."""

    def __init__(self, failures: int = 0) -> None:
        self.batches: list[list[tuple[list[str], int]]] = []
        self.failures = failures

    async def batch(self, collection: str, operations: Sequence[Json], **how: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        cleared = [operation["set_payload"]["filter"]["must"] for operation in operations]
        assert all(operation["set_payload"]["payload"] == {"windowDue": False} for operation in operations)
        self.batches.append([(ids["has_id"], rev["match"]["value"]) for ids, rev in cleared])


class SlowStore(Store):
    """Does not respond until released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_called, self.is_released = asyncio.Event(), asyncio.Event()

    async def batch(self, collection: str, operations: Sequence[Json], **how: Any) -> None:
        self.is_called.set()
        await self.is_released.wait()
        await super().batch(collection, operations, **how)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def agent(store: Store) -> Agent:
    return agent_of(settings_of("bot"), store)  # type: ignore[arg-type]


async def start(marks: DueMarks) -> asyncio.Task[None]:
    task = asyncio.create_task(marks.run())
    await asyncio.sleep(0)
    return task


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_marks_are_cleared_at_once_by_rev(store: Store, agent: Agent) -> None:
    await DueMarks().clear(agent, [{"id": "a", "rev": 1}, {"id": "b", "rev": 2}, {"id": "c", "rev": 1}])

    assert store.batches == [[(["a", "c"], 1), (["b"], 2)]]


async def test_running_process_clears_marks_together(store: Store, agent: Agent) -> None:
    marks = DueMarks()
    task = await start(marks)

    for id_ in ("a", "b", "c"):
        await marks.clear(agent, [{"id": id_, "rev": 1}])
    assert store.batches == []
    await stop(task)

    assert store.batches == [[(["a", "b", "c"], 1)]]


async def test_latest_agent_clears_marks(store: Store, agent: Agent) -> None:
    """The agent given first may write to the collection from before a move of the alias."""
    earlier, marks = Store(), DueMarks()
    task = await start(marks)

    await marks.clear(replace(agent, store=earlier), [{"id": "a", "rev": 1}])  # type: ignore[arg-type]
    await marks.clear(agent, [{"id": "b", "rev": 1}])
    await stop(task)

    assert (earlier.batches, store.batches) == ([], [[(["a", "b"], 1)]])


async def test_marks_of_a_replaced_collection_are_left_to_the_sweep(store: Store, agent: Agent) -> None:
    """The new collection may have the same rows, marked as due, with other neighbours."""
    marks = DueMarks()
    task = await start(marks)

    await marks.clear(agent, [{"id": "a", "rev": 1}])
    await marks.clear(replace(agent, epoch=replace(agent.epoch, number=2)), [{"id": "b", "rev": 1}])
    await stop(task)

    assert store.batches == [[(["b"], 1)]]


async def test_slow_agent_does_not_delay_others(store: Store, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_marks, "PERIOD_S", 0.0)
    slow, marks = SlowStore(), DueMarks()
    task = await start(marks)

    await marks.clear(replace(agent, physical="slow", store=slow), [{"id": "a", "rev": 1}])  # type: ignore[arg-type]
    await marks.clear(agent, [{"id": "b", "rev": 1}])
    async with asyncio.timeout(10):
        while not store.batches:
            await asyncio.sleep(0)
    assert (slow.batches, store.batches) == ([], [[(["b"], 1)]])
    slow.is_released.set()
    await stop(task)


async def test_marks_in_progress_are_cleared_at_the_end(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_marks, "PERIOD_S", 0.0)
    slow, marks = SlowStore(), DueMarks()
    task = await start(marks)

    await marks.clear(replace(agent, store=slow), [{"id": "a", "rev": 1}])  # type: ignore[arg-type]
    await slow.is_called.wait()
    slow.is_released.set()
    await stop(task)

    assert slow.batches == [[(["a"], 1)]]


async def test_failure_leaves_marks_to_the_sweep(store: Store, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_marks, "PERIOD_S", 0.0)
    store.failures, marks = 1, DueMarks()
    task = await start(marks)

    await marks.clear(agent, [{"id": "a", "rev": 1}])
    while store.failures:
        await asyncio.sleep(0)
    await marks.clear(agent, [{"id": "b", "rev": 1}])
    while not store.batches:
        await asyncio.sleep(0)
    await stop(task)

    assert store.batches == [[(["b"], 1)]]


async def test_number_of_waiting_marks_is_limited(store: Store, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_marks, "MAX_WAITING", 2)
    marks = DueMarks()
    task = await start(marks)

    for id_ in ("a", "b", "c"):
        await marks.clear(agent, [{"id": id_, "rev": 1}])
    await stop(task)

    assert store.batches == [[(["a", "b"], 1)]]


async def test_process_that_stopped_clears_at_once(store: Store, agent: Agent) -> None:
    marks = DueMarks()
    await stop(await start(marks))

    await marks.clear(agent, [{"id": "a", "rev": 1}])

    assert store.batches == [[(["a"], 1)]]
