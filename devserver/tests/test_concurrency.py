"""Concurrent callers, and many collections."""

import asyncio
import concurrent.futures
import os
import pathlib

import pytest

from qdrant_devserver.cluster.state import open_state
from qdrant_devserver.features import features_of
from qdrant_devserver.points.updates import apply_update, read_upsert
from qdrant_devserver.storage.configuration import create_configuration
from qdrant_devserver.storage.shards import MAX_OPEN_SHARDS, Shards
from tests.support.web.qdrant_nodes import DevServer, StartServer

FEATURES = features_of("1.18.3")
BODY = {"vectors": {"size": 2, "distance": "Dot"}}
INDEXES = ("keyword", "integer", "float", "datetime", "bool", "text", "uuid", "geo")

pytestmark = pytest.mark.usefixtures("emptied")


def test_one_of_fifty_conditional_writers_wins(server: DevServer) -> None:
    server.call("PUT", "/collections/w", BODY)
    server.call("PUT", "/collections/w/points?wait=true", {"points": [{"id": 1, "vector": [1.0, 0.0]}]})
    free = {"must": [{"has_id": [1]}, {"is_empty": {"key": "owner"}}]}

    def claim(writer: int) -> str:
        body = {"payload": {"owner": f"w{writer}"}, "filter": free}
        server.call("POST", "/collections/w/points/payload?wait=true&ordering=strong", body)
        owner: str = server.call("GET", "/collections/w/points/1")["payload"]["owner"]
        return owner

    with concurrent.futures.ThreadPoolExecutor(16) as writers:
        owners = set(writers.map(claim, range(50)))

    assert len(owners) == 1


def test_least_recently_used_collections_close(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        state = open_state(tmp_path, FEATURES)
        state.shards = Shards(cap=3)
        collections = [state.catalogue.create(f"c{n}", create_configuration(BODY, FEATURES)) for n in range(6)]
        for number, collection in enumerate(collections):
            points = {"points": [{"id": number, "vector": [1.0, 0.0]}]}
            await apply_update(state.shards, collection, read_upsert(points, collection))
            assert len(state.shards) == min(number + 1, 3)
        assert [collection.shard is not None for collection in collections] == [False] * 3 + [True] * 3
        # Reading the statistics of a closed collection does not open it; reading its points does.
        assert state.shards.summary(collections[0]).points == 1
        assert collections[0].shard is None
        assert [record.id for record in state.shards.open(collections[0]).retrieve([0], False, False)] == [0]
        await state.close()

    asyncio.run(scenario())


def test_failed_background_task_is_logged(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError("odd")

    async def scenario() -> None:
        state = open_state(tmp_path, FEATURES)
        with pytest.raises(OSError, match="odd"):
            await state.start(fail())
        await state.close()

    with caplog.at_level("INFO"):
        asyncio.run(scenario())

    assert "a background task failed: odd" in caplog.text


def test_writers_of_other_collections_do_not_wait(server: DevServer) -> None:
    for name in ("a", "b"):
        server.call("PUT", f"/collections/{name}", {"vectors": {"size": 256, "distance": "Dot"}})
        server.call("PUT", f"/collections/{name}/points?wait=true", {"points": [{"id": 1, "vector": [0.5] * 256}]})
    many = {"points": [{"id": n, "vector": [0.5] * 256} for n in range(6000)]}
    with concurrent.futures.ThreadPoolExecutor(1) as bulk:
        loading = bulk.submit(server.call, "PUT", "/collections/a/points?wait=true", many)
        other_writes = 0
        while not loading.done():
            server.call("PUT", "/collections/b/points?wait=true", {"points": [{"id": 1, "vector": [0.5] * 256}]})
            other_writes += 1

    assert other_writes >= 3


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_thousand_collections_stay_within_limits(start_server: StartServer) -> None:
    running = start_server()
    for number in range(1000):
        create(running, number)
    for number in range(0, 1000, 5):
        point = {"id": number, "vector": [1.0, 0.0]}
        running.call("PUT", f"/collections/a{number}/points?wait=true", {"points": [point]})
    process = pathlib.Path(f"/proc/{running.process.pid}")
    threads, files = len(os.listdir(process / "task")), len(os.listdir(process / "fd"))

    assert threads < 2 * MAX_OPEN_SHARDS + 20
    assert files < 8 * MAX_OPEN_SHARDS
    for number in (0, 500, 995):
        assert running.call("GET", f"/collections/a{number}")["points_count"] == 1


def create(running: DevServer, number: int) -> None:
    running.call("PUT", f"/collections/c{number}", BODY)
    action = {"create_alias": {"collection_name": f"c{number}", "alias_name": f"a{number}"}}
    running.call("POST", "/collections/aliases", {"actions": [action]})
    for kind in INDEXES:
        running.call("PUT", f"/collections/a{number}/index", {"field_name": kind, "field_schema": kind})
