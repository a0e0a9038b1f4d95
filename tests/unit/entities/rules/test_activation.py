"""Spreading activation over a graph of names, and the memories it finds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.entities.rules.activation import (
    MAX_ACTIVATED,
    MAX_FOUND_MEMORIES,
    find_by_query,
    find_seeds,
    rank_memories,
    spread_activation,
)
from agentmemory_operator.entities.rules.graph import ScopeGraph, build_graph
from agentmemory_operator.entities.rules.sheet import NO_SHEET, EntitySheet
from agentmemory_operator.runtime.tasks import run_without_pause
from agentmemory_operator.spec.effective.entities import Spreading


def row(number: int, *names: str, role: str = "mentioned") -> dict[str, Any]:
    return {"id": f"m{number}", "entities": [{"name": name, "kind": "phrase", "role": role} for name in names]}


def graph(*rows: dict[str, Any], sheet: EntitySheet = NO_SHEET) -> ScopeGraph:
    return run_without_pause(build_graph(rows, sheet))


@pytest.mark.parametrize(("times", "passed"), [(1, 0.16), (3, 0.48), (5, 0.8), (9, 0.8)])
def test_activation_falls_along_links(times: int, passed: float) -> None:
    names_graph = graph(*(row(number, "A A", "B B") for number in range(times)))

    assert spread_activation(names_graph, ["a a"]) == pytest.approx({"a a": 1.0, "b b": passed})


@pytest.mark.parametrize(("times", "passed"), [(1, 0.32), (5, 1.6)])
def test_typed_relation_doubles_activation_both_ways(times: int, passed: float) -> None:
    sheet = NO_SHEET.with_relation("A A", "uses", "B B", times=times)

    for seed, other in (("a a", "b b"), ("b b", "a a")):
        assert spread_activation(graph(sheet=sheet), [seed]) == pytest.approx({seed: 1.0, other: passed})


def test_stops_after_two_links_or_below_a_tenth() -> None:
    strong = [row(5 * hop + n, f"N{hop} X", f"N{hop + 1} X") for hop in range(3) for n in range(5)]

    assert spread_activation(graph(*strong), ["n0 x"]) == pytest.approx({"n0 x": 1.0, "n1 x": 0.8, "n2 x": 0.64})
    weak = graph(row(0, "A A", "B B"), row(1, "B B", "C C"))
    assert spread_activation(weak, ["a a"]) == pytest.approx({"a a": 1.0, "b b": 0.16})


@pytest.mark.parametrize(
    ("figures", "reached"),
    [
        (Spreading(), {"a a": 1, "b b": 1.6, "c c": 1.28}),
        (Spreading(decay=0.5), {"a a": 1, "b b": 1.0, "c c": 0.5}),
        (Spreading(typed_boost=1), {"a a": 1, "b b": 0.8, "c c": 0.64}),
        (Spreading(max_depth=0), {"a a": 1}),
        (Spreading(max_depth=1), {"a a": 1, "b b": 1.6}),
        (Spreading(max_depth=3), {"a a": 1, "b b": 1.6, "c c": 1.28, "d d": 0.2048}),
        (Spreading(min_activation=1), {"a a": 1, "b b": 1.6, "c c": 1.28}),
        (Spreading(min_activation=1, typed_boost=1), {"a a": 1}),
        (Spreading(max_depth=3, min_activation=0.21), {"a a": 1, "b b": 1.6, "c c": 1.28}),
    ],
)
def test_settings_bound_the_spread(figures: Spreading, reached: dict[str, float]) -> None:
    sheet = NO_SHEET.with_relation("A A", "uses", "B B", times=5)
    rows = [*(row(number, "B B", "C C") for number in range(5)), row(9, "C C", "D D")]

    assert spread_activation(graph(*rows, sheet=sheet), ["a a"], figures) == pytest.approx(reached)


def test_subjects_and_authors_link_nothing() -> None:
    rows = [row(n, "acme", role="about") for n in range(3)]
    rows[0]["entities"] += row(0, "A A")["entities"]
    rows[1]["entities"] += row(0, "B B")["entities"]

    assert spread_activation(graph(*rows), ["a a"]) == {"a a": 1.0}
    assert rank_memories(graph(*rows), {"acme": 1.0}) == [("m0", 1.0), ("m1", 1.0), ("m2", 1.0)]


def test_memories_rank_by_sum_of_names_then_newest() -> None:
    names_graph = graph(row(0, "B B"), row(1, "A A"), row(2, "A A", "B B"), row(3, "A A"))

    assert rank_memories(names_graph, {"a a": 1.0, "b b": 0.5}) == [("m2", 1.5), ("m1", 1.0), ("m3", 1.0), ("m0", 0.5)]


def test_results_are_bounded() -> None:
    crowd = graph(*(row(number, "A A", *(f"N{number}x{other} X" for other in range(20))) for number in range(300)))

    reached = spread_activation(crowd, ["a a"])

    assert len(reached) == MAX_ACTIVATED
    assert len(rank_memories(crowd, reached)) == MAX_FOUND_MEMORIES


def test_query_names_match_any_spelling() -> None:
    lists = read_entity_lists()
    sheet = NO_SHEET.with_alias("the boss", "Anna Schmidt").with_alias("B.H.L.", "Blue Heron Labs")
    names_graph = graph(row(0, "Anna Schmidt", "Next.js"), row(1, "Blue Heron Labs"), row(2, "Redis"), sheet=sheet)

    def seeds(text: str) -> list[str]:
        return find_seeds(names_graph, text, lists)

    assert seeds("what does THE BOSS use?") == ["anna schmidt"]
    assert seeds("nextjs or next.js at B.H.L.") == ["next.js", "blue heron labs"]
    assert seeds("Carl Novak, Anna, schmidt") == []
    assert seeds("ANNA  SCHMIDT") == ["anna schmidt"]
    assert seeds("") == []


def test_scopes_spread_separately() -> None:
    one, other = graph(row(0, "Anna Schmidt", "B B")), graph({**row(1, "B B"), "id": "z1"})

    found = find_by_query([one, other], "Anna Schmidt", read_entity_lists())

    assert found == pytest.approx({"m0": 1.16})


FIGURES = st.builds(
    Spreading,
    decay=st.floats(0.01, 1),
    typed_boost=st.floats(1, 10),
    max_depth=st.integers(0, 5),
    min_activation=st.floats(0, 1),
)
NAMES = st.sampled_from([f"{letter} {letter}" for letter in "ABCDEF"])


@given(
    st.lists(st.lists(NAMES, max_size=4), max_size=12),
    st.lists(st.tuples(NAMES, st.sampled_from(["uses", "works_on"]), NAMES), max_size=8),
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    FIGURES,
)
def test_activation_stays_within_its_bounds(
    memories: Any, relations: Any, seeds: list[str], figures: Spreading
) -> None:
    sheet = NO_SHEET
    for source, relation, target in relations:
        sheet = sheet.with_relation(source, relation, target)
    names_graph = graph(*(row(number, *names) for number, names in enumerate(memories)), sheet=sheet)
    known = [name.casefold() for name in seeds if name.casefold() in names_graph.nodes]

    reached = spread_activation(names_graph, known, figures)

    assert all(reached[name] == 1.0 for name in known)
    max_activation = max(1, figures.typed_boost * figures.decay) ** figures.max_depth
    assert all(value == 1 or figures.min_activation <= value <= max_activation + 1e-9 for value in reached.values())
    assert all(value > 0 for _, value in rank_memories(names_graph, reached))
