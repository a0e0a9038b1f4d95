"""The operator is killed at every call of a restore and of its rollback: the next one completes it."""

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
    async def test_next_operator_completes_killed_restore(self, world: RestoreWorld) -> None:
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
                # At every moment, clients are served by one complete collection.
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

    async def test_next_operator_completes_killed_rollback(self, world: RestoreWorld) -> None:
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
