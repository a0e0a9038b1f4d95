"""A rebuild that embeds anew while its provider fails, and is away for an hour, over a real engine."""

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
    """Fails for three of ten calls, and from the eighth that it answers on for an hour."""

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


async def test_a_provider_that_is_away_for_an_hour_is_asked_now_and_then_and_nothing_is_embedded_twice(
    qdrant_url: str,
) -> None:
    world = FullWorld(qdrant_url, verify=do_nothing)
    await world.begin(embedding={"provider": "openai", "model": "m", "dimensions": 4, "batchSize": BATCH})
    embedder = world.embedders["m"] = Failing(world.clock)
    for number in range(POINTS):
        world.put(number, content=f"content {number}", rev=1)
    begun_ms, tries = world.clock.now_ms(), 0

    while world.rebuild_status.get("state") != "Done":
        try:
            await world.rebuilds.run(world.memory)
        except TransientError:
            tries += 1
            assert world.rebuild_status["state"] == "Waiting"
            assert world.aliases() == {world.alias: world.physical}
            world.clock.move(ms=round(MAX_RETRY_S * 1000))
            world.put(POINTS + tries, content=f"content {POINTS + tries}", rev=1)

    assert world.clock.now_ms() - begun_ms > HOUR_MS
    assert embedder.failed <= MAX_CONCURRENT_REQUESTS["openai"] * tries
    # What was written right before the move is looked at once more after it, see rebuilds/drain.py.
    twice = {text for text, times in Counter(embedder.texts).items() if times > 1}
    assert twice <= {f"content {POINTS + tries}"}
    assert {row["content"] for row in world.rows().values()} == set(embedder.texts)
    await world.close()
