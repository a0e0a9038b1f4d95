"""Recall of the probe searches of a rebuild, and the drop that withholds its move."""

from typing import Any

import pytest

from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall, recall_from_json, recall_to_json
from agentmemory_operator.rebuilds.rules.recall_probes import (
    ProbeComparison,
    ProbeResults,
    approval_value,
    choose_probes,
    compute_recall,
    describe_recall,
    find_blocking_drop,
    withheld_message,
)

IDS = [f"m{number}" for number in range(30)]


def ranked(ids: list[str], *, first: float = 1.0) -> list[tuple[str, float]]:
    return [(id_, first - number / 100) for number, id_ in enumerate(ids)]


def probe_results(exact: list[str], approximate: list[str] | None = None) -> ProbeResults:
    return ProbeResults(exact=ranked(exact), approximate=ranked(exact if approximate is None else approximate))


def recall(
    source: ProbeResults, target: ProbeResults, *, unchanged: dict[str, str] | None = None, **how: bool
) -> ProbeRecall:
    how = {"is_embedded": False, "is_comparable": False} | how
    texts = {id_: f"text of {id_}" for id_ in IDS} if unchanged is None else unchanged
    return compute_recall([ProbeComparison(id="m0", source=source, target=target)], texts, **how)


def test_equal_results_have_recall_one() -> None:
    found = recall(probe_results(IDS[:20]), probe_results(IDS[:20]))

    assert found == ProbeRecall(probes=1, neighbours=1.0, index_before=1.0, index_after=1.0)
    assert find_blocking_drop(found, max_percent=0) is None


def test_each_missing_neighbour_costs_a_tenth() -> None:
    found = recall(probe_results(IDS[:20]), probe_results([*IDS[2:10], *IDS[20:30]]))

    assert found.neighbours == 0.8


def test_changed_points_are_left_out() -> None:
    unchanged = {id_: id_ for id_ in IDS if id_ != "m3"}
    source, target = probe_results(IDS[:20]), probe_results([*IDS[:3], *IDS[4:21]])

    assert recall(source, target, unchanged=unchanged).neighbours == 1.0
    assert recall(source, target).neighbours == 0.9


def test_ties_for_the_last_place_are_equal() -> None:
    exact = [*ranked(IDS[:9]), *((id_, 0.5) for id_ in IDS[9:20])]
    other = [*ranked(IDS[:9]), *((id_, 0.5) for id_ in reversed(IDS[9:20]))]
    source = ProbeResults(exact=exact, approximate=other)
    target = ProbeResults(exact=other, approximate=exact)

    found = recall(source, target, is_comparable=True)

    assert (found.neighbours, found.index_before, found.index_after) == (1.0, 1.0, 1.0)
    assert recall(source, target, is_comparable=False).neighbours == 0.9


def test_fewer_than_ten_memories_are_counted() -> None:
    assert recall(probe_results(["m0", "m1"]), probe_results(["m0"])).neighbours == 0.5


def test_index_recall_uses_its_own_collection() -> None:
    exact = ranked(IDS[10:30])

    found = recall(probe_results(IDS[:20]), ProbeResults(exact=exact, approximate=exact[5:]))

    assert (found.neighbours, found.index_before, found.index_after) == (0.0, 1.0, 0.5)


@pytest.mark.parametrize(("target", "after"), [([*IDS[1:10], "m0"], 1.0), ([*IDS[1:11], "m0"], 0.0), (IDS[1:21], 0.0)])
def test_reembedded_memory_must_be_in_top_ten(target: list[str], after: float) -> None:
    found = recall(probe_results(IDS[:20]), probe_results(target), is_embedded=True)

    assert (found.found_before, found.found_after) == (1.0, after)


def test_any_memory_with_equal_text_counts() -> None:
    texts = {id_: "the same" if id_ in ("m0", "m5") else id_ for id_ in IDS}

    assert (
        recall(probe_results(IDS[:20]), probe_results(IDS[1:21]), is_embedded=True, unchanged=texts).found_after == 1.0
    )


def test_constant_model_finds_nothing() -> None:
    tied = [(id_, 0.5) for id_ in reversed(IDS[:15])]

    found = recall(probe_results(IDS[:20]), ProbeResults(exact=tied, approximate=tied), is_embedded=True)

    assert found.found_after == 0.0


@pytest.mark.parametrize(
    ("found", "max_percent", "what"),
    [
        (ProbeRecall(probes=100, neighbours=0.95, index_before=1.0, index_after=1.0), 5, None),
        (ProbeRecall(probes=100, neighbours=0.94, index_before=1.0, index_after=1.0), 5, "of the nearest 10 memories"),
        (
            ProbeRecall(probes=100, neighbours=1.0, index_before=0.99, index_after=0.93),
            5,
            "of the nearest 10 by the index",
        ),
        (ProbeRecall(probes=100, neighbours=1.0, index_before=0.80, index_after=0.99), 0, None),
        (ProbeRecall(probes=100, neighbours=0.2, found_before=1.0, found_after=0.97), 5, None),
        (
            ProbeRecall(probes=100, neighbours=0.2, found_before=1.0, found_after=0.9),
            5,
            "of memories by their own text",
        ),
        (ProbeRecall(probes=100, neighbours=0.0, found_before=0.1, found_after=0.0), 100, None),
        (ProbeRecall(probes=0), 0, None),
    ],
)
def test_drop_beyond_limit_withholds_the_move(found: ProbeRecall, max_percent: float, what: str | None) -> None:
    drop = find_blocking_drop(found, max_percent=max_percent)

    assert (drop.figure if drop else None) == what


def test_withheld_message_has_figures_and_remedy() -> None:
    found = ProbeRecall(
        probes=100, neighbours=0.2, found_before=0.98, found_after=0.9, index_before=1.0, index_after=1.0
    )
    drop = find_blocking_drop(found, max_percent=5)
    assert drop

    message = withheld_message(drop, found, max_percent=5, approval=approval_value("0123456789ab"))

    expected = ("98.0 %", "90.0 %", "8.0 percentage points", "agentmemory.dev/approve-plan=0123456789ab-recall")
    assert [part for part in expected if part not in message] == []


def test_figures_round_trip() -> None:
    found = ProbeRecall(probes=7, neighbours=0.5, found_before=1.0, found_after=0.9)

    assert recall_from_json(recall_to_json(found)) == found
    assert "index" not in str(recall_to_json(found))
    assert recall_from_json(None) is None


def test_figures_are_shown_in_percent() -> None:
    assert describe_recall(ProbeRecall(probes=0)).startswith("no probe searches: no points to search for")
    found = ProbeRecall(probes=3, neighbours=0.5, found_before=1.0, found_after=0.9, index_before=1.0, index_after=1.0)
    assert "found by their own text 100.0 % -> 90.0 %" in describe_recall(found)


def point(id_: str, **changes: Any) -> dict[str, Any]:
    payload = {"userId": "ada", "content": "bees"} | changes
    kept = {key: value for key, value in payload.items() if value is not None and key != "vector"}
    return {"id": id_, "payload": kept, "vector": changes.get("vector", [1.0])}


@pytest.mark.parametrize(
    ("changes", "is_probe"),
    [
        ({}, True),
        ({"userId": None}, False),
        ({"vector": None}, False),
        ({"deletedAt": 5}, False),
        ({"pending": True}, False),
        ({"supersededById": "b"}, False),
        ({"expiresAt": 5}, False),
        ({"content": " "}, False),
    ],
)
def test_only_visible_memories_become_probes(changes: dict[str, Any], is_probe: bool) -> None:
    assert bool(choose_probes([point("a", **changes)], {"a"}, needs_content=True)) is is_probe


def test_copied_vectors_need_no_text() -> None:
    wordless = point("a", content=None)

    assert choose_probes([wordless], {"a"}, needs_content=False) == [wordless]
    assert choose_probes([wordless], {"b"}, needs_content=False) == []
