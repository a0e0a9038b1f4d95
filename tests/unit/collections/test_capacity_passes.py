"""Server capacity in passes: NearCapacity, few writes, refusal of new agents."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.runtime.object_table import key_of
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import Stage

CONNECTION = key_of(connection_document())


@pytest.fixture
def stage() -> Stage:
    """Return a stage that reads the server's figures in each pass."""
    stage = Stage()
    capacity = stage.passes.connections.capacity
    capacity.read_ttl_s = capacity.min_read_period_s = -1.0
    stage.put(connection_document())
    return stage


def near_capacity(stage: Stage) -> tuple[str, str]:
    return next((status, reason) for kind, status, reason in stage.short(CONNECTION) if kind == "NearCapacity")


async def probe(stage: Stage, used: int, *, limit: int = 10_000) -> tuple[str, str]:
    """Run a connection pass with `used` memory maps and return NearCapacity."""
    stage.store.process_figures = replace(stage.store.process_figures, open_maps=used, max_maps=limit)
    await stage.run(CONNECTION)
    return near_capacity(stage)


async def test_near_capacity_follows_usage(stage: Stage) -> None:
    conditions = [await probe(stage, used) for used in (6_000, 7_500, 8_500, 7_950, 7_000, 6_000)]

    full, little, room = ("True", "ServerFull"), ("True", "LittleRoomLeft"), ("False", "RoomLeft")
    assert conditions == [room, little, full, full, little, room]
    assert stage.status(CONNECTION)["capacity"]["memoryMaps"] == {"used": 6_000, "limit": 10_000}


async def test_only_rising_levels_post_events(stage: Stage) -> None:
    for used in (6_000, 7_500, 8_500, 7_500, 6_000):
        await probe(stage, used)

    assert [event.reason for event in stage.cluster.events] == ["LittleRoomLeft", "ServerFull"]


async def test_small_changes_write_nothing(stage: Stage) -> None:
    await probe(stage, 5_000)
    writes = stage.cluster.writes
    for used in (5_099, 4_901, 5_010):
        await probe(stage, used)
    assert stage.cluster.writes == writes

    await probe(stage, 5_100)

    assert stage.cluster.writes == writes + 1


async def test_capacity_changes_request_no_object_passes(stage: Stage) -> None:
    stage.put(memory_document())
    await probe(stage, 5_000)
    stage.requested.clear()

    for used in (6_000, 7_500, 8_500, 2_000):
        await probe(stage, used)

    assert stage.requested == []


async def test_foreign_capacity_status_is_overwritten(stage: Stage) -> None:
    await probe(stage, 5_000)
    document = stage.table.get(CONNECTION)
    assert document is not None
    document["status"] = document["status"] | {"capacity": {"memoryMaps": {"used": 1, "limit": 10_000}}}

    await probe(stage, 5_000)

    assert stage.status(CONNECTION)["capacity"]["memoryMaps"]["used"] == 5_000


async def test_new_agent_waits_until_server_has_room(stage: Stage) -> None:
    stage.store.process_figures = Process(open_maps=7_800, max_maps=10_000)
    key = stage.put(memory_document())
    await stage.run(CONNECTION)

    await stage.run(key)

    assert ("Stalled", "True", "ServerFull") in stage.short(key)
    assert not stage.store.collections
    message = stage.status(key)["conditions"][0]["message"]
    assert "vm.max_map_count" in message
    assert "fewer payload indexes" in message

    stage.store.process_figures = Process(open_maps=7_800, max_maps=100_000)
    await stage.run(key)

    assert stage.short(key)[0] == ("Ready", "True", "Serving")


async def test_refused_agent_writes_status_once(stage: Stage) -> None:
    key = stage.put(memory_document(deletionPolicy="Retain"))
    await probe(stage, 7_900)
    await stage.run(key)
    writes, events = stage.cluster.writes, len(stage.cluster.events)

    for used in (7_950, 8_400):
        stage.store.process_figures = Process(open_maps=used, max_maps=10_000)
        await stage.run(key)

    assert (stage.cluster.writes, len(stage.cluster.events)) == (writes, events)


async def test_existing_agent_serves_on_full_server(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.process_figures = Process(open_maps=9_999, max_maps=10_000)

    await stage.run(key)

    assert stage.short(key)[0] == ("Ready", "True", "Serving")
