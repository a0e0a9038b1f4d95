"""A rebuild with another embedding. It copies sealed memories unopened; the API computes their vectors later."""

from tests.support.engine.agents import FakeEmbedder
from tests.support.job.rebuild_world import POINTS, FullWorld


async def test_sealed_memories_are_copied_unembedded(qdrant_url: str) -> None:
    world = FullWorld(qdrant_url)
    await world.begin(embedding={"provider": "openai", "model": "m", "dimensions": 4})
    embedder = world.embedders["m"] = FakeEmbedder(size=4)
    for number in range(POINTS):
        world.put(number, content=f"content {number}", rev=1)
    sealed = {"zone": "PERSONAL", "sealed": "0123456789abcdef0123456789abcdef.AAAA", "rev": 1}
    for number in range(POINTS, POINTS + 3):
        world.put(number, **sealed)

    await world.rebuild(passes=20)

    assert world.rebuild_status["state"] == "Done", world.rebuild_status
    rows = world.rows()
    assert {number: rows[number]["sealed"] for number in range(POINTS, POINTS + 3)} == dict.fromkeys(
        range(POINTS, POINTS + 3), sealed["sealed"]
    )
    assert set(embedder.texts) == {f"content {number}" for number in range(POINTS)}
    body = {"ids": [0, POINTS], "with_vector": True}
    points = world.http.post(f"/collections/{world.alias}/points", json=body).json()["result"]
    assert {point["id"]: bool(point["vector"]) for point in points} == {0: True, POINTS: False}
    await world.close()
