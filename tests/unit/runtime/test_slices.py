"""Long work leaves the loop to others, and to one slice of one work at a time."""

import asyncio
import time
from collections.abc import Generator

import pytest

from agentmemory_operator.runtime import slices
from agentmemory_operator.runtime.slices import map_with_pauses, run_in_slices, run_without_pause


def counting(steps: int, seen: list[str], name: str) -> Generator[None, None, str]:
    for _ in range(steps):
        seen.append(name)
        # So that each step is a slice.
        time.sleep(0.002)
        yield
    return name


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.001)


async def test_others_have_a_turn_between_the_slices_however_many_works_there_are() -> None:
    seen: list[str] = []
    works = [asyncio.create_task(run_in_slices(counting(5, seen, str(number)))) for number in range(8)]
    turns = 0
    while not all(work.done() for work in works):
        before = len(seen)
        await asyncio.sleep(0)
        turns += 1
        # The first slices are free, so that short work is done at once; then the first of all has the lane.
        assert len(seen) - before <= (8 + 1 if turns == 1 else 1)

    assert [await work for work in works] == [str(number) for number in range(8)]
    assert sorted(seen) == sorted(str(number) for number in range(8) for _ in range(5))


async def test_no_work_waits_until_another_is_done() -> None:
    seen: list[str] = []
    await asyncio.gather(run_in_slices(counting(20, seen, "long")), run_in_slices(counting(3, seen, "short")))

    assert "short" not in seen[12:]


async def test_what_goes_wrong_is_raised_and_others_go_on() -> None:
    def broken() -> Generator[None, None, None]:
        time.sleep(0.002)
        yield
        raise ValueError("no")

    seen: list[str] = []
    failed, done = await asyncio.gather(
        run_in_slices(broken()), run_in_slices(counting(3, seen, "a")), return_exceptions=True
    )

    assert (str(failed), done) == ("no", "a")


def test_one_by_one_gives_each_result_in_order() -> None:
    assert run_without_pause(map_with_pauses(lambda place, item: (place, item), "ab")) == [(0, "a"), (1, "b")]
