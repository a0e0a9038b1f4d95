"""A rebuild with a new embedding whose provider fails, on a real engine."""

from collections import Counter
from collections.abc import Sequence

from agentmemory_operator.errors import EmbedderUnavailable, TransientError
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.rebuilds.copy import MAX_CONCURRENT_REQUESTS
from agentmemory_operator.runtime.work_queue import MAX_RETRY_S
from tests.support.engine.agents import FakeEmbedder
from tests.support.engine.fakes import FakeClock
from tests.support.job.rebuild_world import FullWorld, do_nothing

POINTS, BATCH = 40, 2
HOUR_MS = 3_600_000


class Failing(FakeEmbedder):
    """Fails for three of ten calls, and for an hour after eight successful calls."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(size=4)
        self.clock, self.failed = clock, 0
        self.back_ms: int | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if self.calls == 8 and self.back_ms is None:
            self.back_ms = self.clock.now_ms() + HOUR_MS
        is_away = self.back_ms is not None and self.clock.now_ms() < self.back_ms
        if is_away or (self.calls + self.failed) % 10 < 3:
            self.failed += 1
            raise EmbedderUnavailable("away")
        return await super().embed(texts)


async def test_hour_long_outage_causes_no_repeated_work(
    qdrant_url: str,
) -> None:
    """The provider is polled at the retry interval, and no text is embedded twice."""
    world = FullWorld(qdrant_url, verify=do_nothing)
    await world.begin(embedding={"provider": "openai", "model": "m", "dimensions": 4, "batchSize": BATCH})
    embedder = world.embedders["m"] = Failing(world.clock)
    for number in range(POINTS):
        world.put(number, content=f"content {number}", rev=1)
    start_ms, attempts = world.clock.now_ms(), 0

    while world.rebuild_status.get("state") != "Done":
        try:
            await world.rebuilds.run(world.memory)
        except TransientError:
            attempts += 1
            assert world.rebuild_status["state"] == "Waiting"
            assert world.aliases() == {world.alias: world.physical}
            world.clock.move(ms=round(MAX_RETRY_S * 1000))
            world.put(POINTS + attempts, content=f"content {POINTS + attempts}", rev=1)

    assert world.clock.now_ms() - start_ms > HOUR_MS
    assert embedder.failed <= MAX_CONCURRENT_REQUESTS["openai"] * attempts
    # Points written right before the move are checked again after it, see rebuilds/drain.py.
    twice = {text for text, times in Counter(embedder.texts).items() if times > 1}
    assert twice <= {f"content {POINTS + attempts}"}
    assert {row["content"] for row in world.rows().values()} == set(embedder.texts)
    await world.close()
