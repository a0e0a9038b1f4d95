"""What passes do about a server's room: told once, quiet while little moves, and new agents refused."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.runtime.object_table import key_of
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import Stage

CONNECTION = key_of(connection_document())


@pytest.fixture
def stage() -> Stage:
    """A stage whose server is read at each look."""
    stage = Stage()
    capacity = stage.passes.connections.capacity
    capacity.read_ttl_s = capacity.min_read_period_s = -1.0
    stage.put(connection_document())
    return stage


def near(stage: Stage) -> tuple[str, str]:
    return next((status, reason) for kind, status, reason in stage.short(CONNECTION) if kind == "NearCapacity")


async def told(stage: Stage, used: int, *, limit: int = 10_000) -> tuple[str, str]:
    """Return NearCapacity after a probe of a server that uses so many maps."""
    stage.store.process_figures = replace(stage.store.process_figures, open_maps=used, max_maps=limit)
    await stage.run(CONNECTION)
    return near(stage)


async def test_a_connection_says_how_near_its_server_is_to_its_end(stage: Stage) -> None:
    seen = [await told(stage, used) for used in (6_000, 7_500, 8_500, 7_950, 7_000, 6_000)]

    full, little, room = ("True", "ServerFull"), ("True", "LittleRoomLeft"), ("False", "RoomLeft")
    assert seen == [room, little, full, full, little, room]
    assert stage.status(CONNECTION)["capacity"]["memoryMaps"] == {"used": 6_000, "limit": 10_000}


async def test_it_warns_when_it_comes_nearer_and_not_when_it_gets_better(stage: Stage) -> None:
    for used in (6_000, 7_500, 8_500, 7_500, 6_000):
        await told(stage, used)

    assert [event.reason for event in stage.cluster.events] == ["LittleRoomLeft", "ServerFull"]


async def test_a_number_that_moves_a_little_writes_nothing(stage: Stage) -> None:
    await told(stage, 5_000)
    writes = stage.cluster.writes
    for used in (5_099, 4_901, 5_010):
        await told(stage, used)
    assert stage.cluster.writes == writes

    await told(stage, 5_100)

    assert stage.cluster.writes == writes + 1


async def test_what_is_said_of_the_room_asks_for_no_passes_of_the_objects(stage: Stage) -> None:
    stage.put(memory_document())
    await told(stage, 5_000)
    stage.requested.clear()

    for used in (6_000, 7_500, 8_500, 2_000):
        await told(stage, used)

    assert stage.requested == []


async def test_what_somebody_else_wrote_there_is_corrected(stage: Stage) -> None:
    await told(stage, 5_000)
    document = stage.table.get(CONNECTION)
    assert document is not None
    document["status"] = document["status"] | {"capacity": {"memoryMaps": {"used": 1, "limit": 10_000}}}

    await told(stage, 5_000)

    assert stage.status(CONNECTION)["capacity"]["memoryMaps"]["used"] == 5_000


async def test_a_new_agent_is_refused_past_the_share_and_made_once_there_is_room(stage: Stage) -> None:
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


async def test_a_refused_agent_writes_nothing_again_while_the_numbers_move(stage: Stage) -> None:
    key = stage.put(memory_document(deletionPolicy="Retain"))
    await told(stage, 7_900)
    await stage.run(key)
    writes, events = stage.cluster.writes, len(stage.cluster.events)

    for used in (7_950, 8_400):
        stage.store.process_figures = Process(open_maps=used, max_maps=10_000)
        await stage.run(key)

    assert (stage.cluster.writes, len(stage.cluster.events)) == (writes, events)


async def test_an_agent_that_has_a_collection_goes_on_however_full_the_server_is(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.process_figures = Process(open_maps=9_999, max_maps=10_000)

    await stage.run(key)

    assert stage.short(key)[0] == ("Ready", "True", "Serving")
