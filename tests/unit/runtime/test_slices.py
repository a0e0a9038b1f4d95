"""Long work runs in slices: it yields to the event loop and to other work."""

import asyncio
import time
from collections.abc import Generator

import pytest

from agentmemory_operator.runtime import tasks
from agentmemory_operator.runtime.tasks import map_with_pauses, run_in_slices, run_without_pause


def counting(steps: int, steps_done: list[str], name: str) -> Generator[None, None, str]:
    for _ in range(steps):
        steps_done.append(name)
        # Each step takes longer than a slice, so it ends one.
        time.sleep(0.002)
        yield
    return name


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0.001)


async def test_loop_runs_between_slices() -> None:
    steps_done: list[str] = []
    works = [asyncio.create_task(run_in_slices(counting(5, steps_done, str(number)))) for number in range(8)]
    turns = 0
    while not all(work.done() for work in works):
        before = len(steps_done)
        await asyncio.sleep(0)
        turns += 1
        # The first slice of each generator runs at once, so that short work completes. Then they run one at a time.
        assert len(steps_done) - before <= (8 + 1 if turns == 1 else 1)

    assert [await work for work in works] == [str(number) for number in range(8)]
    assert sorted(steps_done) == sorted(str(number) for number in range(8) for _ in range(5))


async def test_long_work_does_not_block_short_work() -> None:
    steps_done: list[str] = []
    await asyncio.gather(
        run_in_slices(counting(20, steps_done, "long")), run_in_slices(counting(3, steps_done, "short"))
    )

    assert "short" not in steps_done[12:]


async def test_error_does_not_stop_other_work() -> None:
    def broken() -> Generator[None, None, None]:
        time.sleep(0.002)
        yield
        raise ValueError("no")

    steps_done: list[str] = []
    failed, done = await asyncio.gather(
        run_in_slices(broken()), run_in_slices(counting(3, steps_done, "a")), return_exceptions=True
    )

    assert (str(failed), done) == ("no", "a")


def test_results_keep_their_order() -> None:
    assert run_without_pause(map_with_pauses(lambda place, item: (place, item), "ab")) == [(0, "a"), (1, "b")]
