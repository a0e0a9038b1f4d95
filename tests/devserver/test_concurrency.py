"""Many callers, many collections."""

import asyncio
import concurrent.futures
import os
import pathlib
import time

import pytest

from agentmemory_operator.devserver.configuration import create_configuration
from agentmemory_operator.devserver.features import features_of
from agentmemory_operator.devserver.shards import OPEN_SHARDS, Shards
from agentmemory_operator.devserver.state import open_state
from agentmemory_operator.devserver.updates import apply_update, read_upsert
from tests.devserver.conftest import Server, StartServer

FEATURES = features_of("1.18.3")
BODY = {"vectors": {"size": 2, "distance": "Dot"}}
INDEXES = ("keyword", "integer", "float", "datetime", "bool", "text", "uuid", "geo")

pytestmark = pytest.mark.usefixtures("emptied")


def test_one_of_fifty_conditional_writers_wins(server: Server) -> None:
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


def test_of_more_collections_than_may_be_open_the_least_recently_used_close(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        state = open_state(tmp_path, FEATURES)
        state.shards = Shards(cap=3)
        collections = [state.catalogue.create(f"c{n}", create_configuration(BODY, FEATURES)) for n in range(6)]
        for number, collection in enumerate(collections):
            points = {"points": [{"id": number, "vector": [1.0, 0.0]}]}
            await apply_update(state.shards, collection, read_upsert(points, collection))
            assert len(state.shards) == min(number + 1, 3)
        assert [collection.shard is not None for collection in collections] == [False] * 3 + [True] * 3
        # Asking what is known of a closed one does not open it; asking for its points does.
        assert state.shards.summary(collections[0]).points == 1
        assert collections[0].shard is None
        assert [record.id for record in state.shards.open(collections[0]).retrieve([0], False, False)] == [0]
        await state.close()

    asyncio.run(scenario())


def test_writers_of_one_collection_do_not_wait_for_those_of_another(server: Server) -> None:
    for name in ("a", "b"):
        server.call("PUT", f"/collections/{name}", {"vectors": {"size": 256, "distance": "Dot"}})
        server.call("PUT", f"/collections/{name}/points?wait=true", {"points": [{"id": 1, "vector": [0.5] * 256}]})
    many = {"points": [{"id": n, "vector": [0.5] * 256} for n in range(6000)]}
    with concurrent.futures.ThreadPoolExecutor(1) as bulk:
        loading = bulk.submit(server.call, "PUT", "/collections/a/points?wait=true", many)
        others = 0
        while not loading.done():
            server.call("PUT", "/collections/b/points?wait=true", {"points": [{"id": 1, "vector": [0.5] * 256}]})
            others += 1

    assert others >= 3


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_thousand_collections_fit(start_server: StartServer) -> None:
    running = start_server()
    began = time.monotonic()
    for number in range(1000):
        create(running, number)
    each_ms = time.monotonic() - began
    for number in range(0, 1000, 5):
        point = {"id": number, "vector": [1.0, 0.0]}
        running.call("PUT", f"/collections/a{number}/points?wait=true", {"points": [point]})
    process = pathlib.Path(f"/proc/{running.process.pid}")
    threads, files = len(os.listdir(process / "task")), len(os.listdir(process / "fd"))

    print(f"create with alias and 8 indexes: {each_ms:.1f} ms each; {threads} threads, {files} open files")
    assert each_ms < 100
    assert threads < 2 * OPEN_SHARDS + 20
    assert files < 8 * OPEN_SHARDS
    for number in (0, 500, 995):
        assert running.call("GET", f"/collections/a{number}")["points_count"] == 1


def create(running: Server, number: int) -> None:
    running.call("PUT", f"/collections/c{number}", BODY)
    action = {"create_alias": {"collection_name": f"c{number}", "alias_name": f"a{number}"}}
    running.call("POST", "/collections/aliases", {"actions": [action]})
    for kind in INDEXES:
        running.call("PUT", f"/collections/a{number}/index", {"field_name": kind, "field_schema": kind})
