"""What probe searches of a rebuild come to, and when they hold its move."""

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
    held_message,
)

IDS = [f"m{number}" for number in range(30)]


def ranked(ids: list[str], *, first: float = 1.0) -> list[tuple[str, float]]:
    return [(id_, first - number / 100) for number, id_ in enumerate(ids)]


def answer(exact: list[str], approximate: list[str] | None = None) -> ProbeResults:
    return ProbeResults(exact=ranked(exact), approximate=ranked(exact if approximate is None else approximate))


def recall(
    source: ProbeResults, target: ProbeResults, *, unchanged: dict[str, str] | None = None, **how: bool
) -> ProbeRecall:
    how = {"is_embedded": False, "is_comparable": False} | how
    texts = {id_: f"text of {id_}" for id_ in IDS} if unchanged is None else unchanged
    return compute_recall([ProbeComparison(id="m0", source=source, target=target)], texts, **how)


def test_equal_answers_are_a_recall_of_one() -> None:
    found = recall(answer(IDS[:20]), answer(IDS[:20]))

    assert found == ProbeRecall(probes=1, neighbours=1.0, index_before=1.0, index_after=1.0)
    assert find_blocking_drop(found, max_percent=0) is None


def test_each_of_the_ten_nearest_that_is_missing_is_a_tenth() -> None:
    found = recall(answer(IDS[:20]), answer([*IDS[2:10], *IDS[20:30]]))

    assert found.neighbours == 0.8


def test_what_was_written_meanwhile_is_left_out_and_the_next_moves_up() -> None:
    unchanged = {id_: id_ for id_ in IDS if id_ != "m3"}
    source, target = answer(IDS[:20]), answer([*IDS[:3], *IDS[4:21]])

    assert recall(source, target, unchanged=unchanged).neighbours == 1.0
    assert recall(source, target).neighbours == 0.9


def test_of_equals_for_the_last_place_any_will_do() -> None:
    exact = [*ranked(IDS[:9]), *((id_, 0.5) for id_ in IDS[9:20])]
    other = [*ranked(IDS[:9]), *((id_, 0.5) for id_ in reversed(IDS[9:20]))]
    source = ProbeResults(exact=exact, approximate=other)
    target = ProbeResults(exact=other, approximate=exact)

    found = recall(source, target, is_comparable=True)

    assert (found.neighbours, found.index_before, found.index_after) == (1.0, 1.0, 1.0)
    assert recall(source, target, is_comparable=False).neighbours == 0.9


def test_a_user_with_few_memories_counts_by_what_there_is() -> None:
    assert recall(answer(["m0", "m1"]), answer(["m0"])).neighbours == 0.5


def test_an_index_is_measured_against_its_own_collection() -> None:
    exact = ranked(IDS[10:30])

    found = recall(answer(IDS[:20]), ProbeResults(exact=exact, approximate=exact[5:]))

    assert (found.neighbours, found.index_before, found.index_after) == (0.0, 1.0, 0.5)


@pytest.mark.parametrize(("target", "after"), [([*IDS[1:10], "m0"], 1.0), ([*IDS[1:11], "m0"], 0.0), (IDS[1:21], 0.0)])
def test_embedded_anew_a_memory_is_found_among_the_nearest_ten_or_not(target: list[str], after: float) -> None:
    found = recall(answer(IDS[:20]), answer(target), is_embedded=True)

    assert (found.found_before, found.found_after) == (1.0, after)


def test_of_memories_with_one_text_any_is_found() -> None:
    texts = {id_: "the same" if id_ in ("m0", "m5") else id_ for id_ in IDS}

    assert recall(answer(IDS[:20]), answer(IDS[1:21]), is_embedded=True, unchanged=texts).found_after == 1.0


def test_a_model_that_tells_nothing_apart_finds_nothing() -> None:
    tied = [(id_, 0.5) for id_ in reversed(IDS[:15])]

    found = recall(answer(IDS[:20]), ProbeResults(exact=tied, approximate=tied), is_embedded=True)

    assert found.found_after == 0.0


@pytest.mark.parametrize(
    ("found", "most_percent", "what"),
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
def test_a_drop_beyond_what_the_object_allows_holds_the_move(
    found: ProbeRecall, most_percent: float, what: str | None
) -> None:
    drop = find_blocking_drop(found, max_percent=most_percent)

    assert (drop.figure if drop else None) == what


def test_a_hold_names_both_figures_and_the_way_out() -> None:
    found = ProbeRecall(
        probes=100, neighbours=0.2, found_before=0.98, found_after=0.9, index_before=1.0, index_after=1.0
    )
    drop = find_blocking_drop(found, max_percent=5)
    assert drop

    message = held_message(drop, found, max_percent=5, approval=approval_value("0123456789ab"))

    told = ("98.0 %", "90.0 %", "8.0 percentage points", "agentmemory.dev/approve-plan=0123456789ab-recall")
    assert [part for part in told if part not in message] == []


def test_figures_come_back_from_the_record_as_they_were() -> None:
    found = ProbeRecall(probes=7, neighbours=0.5, found_before=1.0, found_after=0.9)

    assert recall_from_json(recall_to_json(found)) == found
    assert "index" not in str(recall_to_json(found))
    assert recall_from_json(None) is None


def test_figures_are_told_in_percent() -> None:
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
def test_only_what_a_search_of_its_user_returns_is_searched_for(changes: dict[str, Any], is_probe: bool) -> None:
    assert bool(choose_probes([point("a", **changes)], {"a"}, needs_content=True)) is is_probe


def test_copied_vectors_are_searched_for_without_a_text_too() -> None:
    wordless = point("a", content=None)

    assert choose_probes([wordless], {"a"}, needs_content=False) == [wordless]
    assert choose_probes([wordless], {"b"}, needs_content=False) == []
