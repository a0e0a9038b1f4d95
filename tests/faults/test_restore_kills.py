"""The operator killed at every call of a restore and of its rollback: the next one ends what it began."""

from collections.abc import AsyncIterator

import pytest

from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.job.restore_world import POINTS, RestoreWorld, open_restore

pytestmark = pytest.mark.faults


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url, since=5) as made:
        yield made


class TestKills:
    async def test_an_operator_killed_at_any_step_is_followed_by_one_that_ends_it(self, world: RestoreWorld) -> None:
        number, reached_end = 0, False
        while not reached_end:
            number += 1
            world.crash_at = number
            key = world.restore(f"r{number}")
            before = world.aliases()[world.alias]
            try:
                await world.run(key)
                reached_end = True
            except ProcessKilled:
                # Whatever the moment, clients are served by one whole collection or the other.
                assert world.count() >= POINTS
            world.crash_at, world.restores = 0, world.passes()

            await world.run(key)

            assert world.condition(key, "Succeeded") == "True/Restored", (number, world.status(key))
            assert world.count() == POINTS
            live = world.aliases()[world.alias]
            assert world.status(key)["previousCollection"]["physical"] == before
            assert world.collections() == sorted({world.physical, before, live})
            if before != world.physical:
                world.http.delete(f"/collections/{before}")
            world.calls = 0
        assert number > 30

    async def test_a_rollback_killed_at_any_step_is_ended_by_the_next_operator(self, world: RestoreWorld) -> None:
        number, reached_end = 0, False
        while not reached_end:
            number += 1
            key = world.restore(f"r{number}")
            await world.run(key)
            before = world.status(key)["previousCollection"]["physical"]
            world.annotate(key, {"agentmemory.dev/rollback": "yes"})
            world.calls, world.crash_at = 0, number
            try:
                await world.run(key)
                reached_end = True
            except ProcessKilled:
                assert world.count() >= POINTS
            world.crash_at, world.restores = 0, world.passes()

            await world.run(key)

            assert world.condition(key, "RolledBack") == "True/RolledBack"
            assert world.aliases() == {world.alias: before}
        assert number > 8
