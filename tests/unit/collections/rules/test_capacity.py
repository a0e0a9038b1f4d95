"""Memory maps that a collection needs, and the capacity of a server process."""

from typing import Any

import pytest

from agentmemory_operator.collections.rules.capacity import (
    DEFAULT_NEED,
    MEMORY_MAPS,
    Level,
    Load,
    MapDemand,
    Process,
    build_condition,
    capacity_status,
    find_shortage,
    level_of,
    loads_of,
    need_of,
    read_level,
)
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.spec.kinds.conditions import merge_conditions
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.table import Optimizers
from tests.support.spec.golden import read_table

GOLDEN = read_table("capacity.yaml")


def shape(segments: int | None, indexes: int, **more: Any) -> Collection:
    named = tuple((f"field{number}", "keyword") for number in range(indexes))
    return Collection(
        size=384, distance="Cosine", optimizers=Optimizers(default_segment_number=segments), indexes=named, **more
    )


def maps(used: int, *, limit: int = 1000) -> tuple[Load, ...]:
    return loads_of(Process(open_maps=used, max_maps=limit))


@pytest.mark.parametrize("row", GOLDEN["maps"], ids=lambda row: f"{row['segments']}x{row['indexes']}")
def test_need_matches_measurements(row: dict[str, int]) -> None:
    takes = need_of(shape(row["segments"], row["indexes"])).maps

    assert row["seen"] <= takes <= row["seen"] * 1.06


def test_default_need_is_the_default_layout() -> None:
    assert need_of(shape(2, len(RETRIEVAL_INDEXES))).maps == DEFAULT_NEED.maps


def test_automatic_segments_count_as_maximum() -> None:
    assert need_of(shape(0, 11)).maps == need_of(shape(None, 11)).maps == need_of(shape(8, 11)).maps


@pytest.mark.parametrize(
    ("shards", "factor", "peers", "here"), [(3, 1, 3, 1), (3, 2, 3, 2), (4, 2, 3, 3), (None, 1, 3, 1)]
)
def test_node_holds_its_share_of_replicas(shards: int | None, factor: int, peers: int, here: int) -> None:
    spread = shape(2, 11, shard_number=shards, replication_factor=factor)

    assert need_of(spread, peers=peers).maps == here * need_of(shape(2, 11)).maps


@pytest.mark.parametrize("case", GOLDEN["decisions"], ids=lambda case: case["name"])
def test_golden_decisions(case: dict[str, Any]) -> None:
    process = Process(
        open_maps=case["maps"],
        max_maps=case.get("max_maps", 1000),
        open_files=case.get("files"),
        max_files=case.get("max_files"),
        collections=case.get("collections"),
    )
    others = [MapDemand(making) for making in case.get("making", [])]

    short = find_shortage(loads_of(process, case.get("spec")), MapDemand(case["need"]), others, share=case["share"])

    assert (short is None) is case["fits"], short


def test_refusal_states_cost_limit_and_remedy() -> None:
    short = find_shortage(maps(60_000, limit=65_530), need_of(shape(2, 11)))

    assert short is not None
    for word in ("65,530 memory maps", "282", "11 payload indexes", "80%", "vm.max_map_count", "fewer payload indexes"):
        assert word in short


def test_refusal_text_is_stable() -> None:
    need = need_of(shape(2, 11))

    assert find_shortage(maps(60_000, limit=65_530), need) == find_shortage(maps(60_017, limit=65_530), need)


@pytest.mark.parametrize(
    ("used", "before", "level"),
    [
        (699, None, Level.ROOM),
        (700, None, Level.NEAR),
        (800, None, Level.FULL),
        (1_200, None, Level.FULL),
        (795, Level.FULL, Level.FULL),
        (789, Level.FULL, Level.NEAR),
        (695, Level.NEAR, Level.NEAR),
        (689, Level.NEAR, Level.ROOM),
    ],
)
def test_level_falls_with_hysteresis(used: int, before: Level | None, level: Level) -> None:
    assert level_of(maps(used), before) is level


def test_missing_figures_give_no_level() -> None:
    """Open files alone can show a full server, but not a free one."""
    assert level_of(()) is None
    assert level_of(loads_of(Process(open_files=1, max_files=1000))) is None
    assert level_of(loads_of(Process(open_files=900, max_files=1000))) is Level.FULL


def test_missing_limit_is_not_guessed() -> None:
    assert loads_of(Process(open_maps=50_000)) == ()


@pytest.mark.parametrize(("used", "stays"), [(509, True), (491, True), (510, False), (490, False)])
def test_status_changes_in_steps_of_one_percent(used: int, stays: bool) -> None:
    old = capacity_status(maps(500), None)

    assert (capacity_status(maps(used), old) == old) is stays


def test_new_limit_is_written_at_once() -> None:
    old = capacity_status(maps(500), None)

    new = capacity_status(maps(500, limit=1001), old)

    assert new is not None
    assert new.memory_maps is not None
    assert new.memory_maps.limit == 1001


@pytest.mark.parametrize(("used", "level"), [(1, Level.ROOM), (750, Level.NEAR), (900, Level.FULL)])
def test_level_is_read_from_condition(used: int, level: Level) -> None:
    state = build_condition(level, capacity_status(maps(used), None))
    (condition,) = merge_conditions([], [state], generation=1, now="2026-01-01T00:00:00Z")

    assert read_level(condition) is level
    assert MEMORY_MAPS in condition["message"]
    assert ("vm.max_map_count" in condition["message"]) is (level is not Level.ROOM)
