"""Selection of the scored memories, by the number of eligible ones."""

import json
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.search.rules.candidate_classes import (
    BY_HORIZON,
    BY_IDLENESS,
    BY_IDLENESS_AND_ACCESSES,
    BY_IDLENESS_AND_IMPORTANCE,
    BY_TIME,
    BY_TIME_AND_USE,
    BY_USE,
    MemoryClass,
)
from agentmemory_operator.search.rules.candidates import plan_candidates, score_threshold, similarity_of
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Model, Priority
from agentmemory_operator.spec.expression.typing import CheckedExpression, check_expression
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import Effort
from tests.support.engine.agents import EVERYTHING


def expression(text: str) -> CheckedExpression:
    return check_expression(text, EVERYTHING.types, "Cosine")


NOW_MS = 1_795_000_000_000
FILTER = visible_filter(Selection(user_id="u"), NOW_MS)


@pytest.mark.parametrize(
    ("effort", "eligible", "top_k", "candidates", "lists", "total", "is_exact"),
    [
        ("Fast", 2000, 10, None, 1, 2000, True),
        ("Fast", 2001, 10, None, 5, 3000, False),
        ("Fast", 100_000, 10, None, 5, 600, False),
        ("Balanced", 3000, 10, None, 1, 3000, True),
        ("Balanced", 3001, 10, None, 5, 7500, False),
        ("Balanced", 100_000, 10, None, 5, 1500, False),
        ("Exact", 10, 10, None, 1, 3000, True),
        ("Exact", 3000, 10, None, 1, 3000, True),
        ("Exact", 3001, 10, None, 5, 15_000, False),
        ("Exact", 10_000, 10, None, 5, 6000, False),
        ("Exact", 20_000, 10, None, 5, 3000, False),
        ("Exact", 100_000, 10, None, 5, 3000, False),
        ("Exact", 100_000, 5000, None, 5, 25_000, False),
        ("Exact", 4000, 10_000, None, 1, 10_000, True),
        ("Exact", 50, 10, 30, 1, 30, False),
        ("Fast", 50, 40, 30, 1, 40, False),
        ("Balanced", 30, 10, 30, 1, 30, True),
    ],
)
def test_large_sets_are_scored_by_five_lists(
    effort: Effort, eligible: int, top_k: int, candidates: int | None, *, lists: int, total: int, is_exact: bool
) -> None:
    ranking = replace(EVERYTHING, candidates=candidates, effort=effort)

    plan = plan_candidates(ranking, FILTER, eligible=eligible, top_k=top_k, now_ms=NOW_MS)

    assert (len(plan.filters), plan.total, plan.is_exact) == (lists, total, is_exact)


MATCH_ONLY = Weights(1, 0, 0)


@pytest.mark.parametrize(
    ("effort", "eligible", "extra_lists", "nearest", "by_words", "compares_words"),
    [
        ("Fast", 300, 1, 300, 300, False),
        ("Fast", 301, 1, 100, 200, False),
        ("Balanced", 1500, 1, 1500, 1500, True),
        ("Balanced", 1501, 1, 200, 200, True),
        ("Balanced", 10**5, 2, 200, 200, True),
        ("Exact", 3000, 1, 3000, 3000, True),
        ("Exact", 20_000, 1, 1500, 1500, True),
        ("Balanced", 1501, 0, 3000, 3000, True),
    ],
)
def test_words_need_shorter_lists(
    effort: Effort, eligible: int, extra_lists: int, *, nearest: int, by_words: int, compares_words: bool
) -> None:
    ranking = replace(EVERYTHING, weights=MATCH_ONLY, effort=effort)

    plan = plan_candidates(ranking, FILTER, eligible=eligible, top_k=10, now_ms=NOW_MS, extra_lists=extra_lists)

    assert (plan.limit, plan.word_limit, plan.compares_words) == (nearest, by_words, compares_words)
    assert plan.is_exact == (nearest >= eligible)


@pytest.mark.parametrize(
    ("weights", "candidates", "lists", "limit"), [(EVERYTHING.weights, None, 5, 250), (MATCH_ONLY, 400, 1, 400)]
)
def test_further_lists_and_given_numbers_share_alike(
    weights: Weights, candidates: int | None, lists: int, limit: int
) -> None:
    ranking = replace(EVERYTHING, weights=weights, candidates=candidates, effort="Balanced")

    plan = plan_candidates(ranking, FILTER, eligible=10**5, top_k=10, now_ms=NOW_MS, extra_lists=1)

    assert (len(plan.filters), plan.limit, plan.word_limit, plan.compares_words) == (lists, limit, limit, True)


@pytest.mark.parametrize(
    "ranking",
    [
        replace(EVERYTHING, weights=MATCH_ONLY, types=(MemoryType("fact", None, boost=3.0),)),
        replace(EVERYTHING, weights=MATCH_ONLY, confidence_share=0.5),
        replace(EVERYTHING, model=expression("similarity + keyword + confidence")),
        replace(EVERYTHING, model=expression('similarity + keyword + tag("pinned")')),
    ],
    ids=["boost", "confidence share", "confidence", "tag"],
)
def test_words_need_long_lists_if_the_score_depends_on_more(ranking: Ranking) -> None:
    ranking = replace(ranking, effort="Fast")

    plan = plan_candidates(ranking, FILTER, eligible=10**5, top_k=10, now_ms=NOW_MS, extra_lists=1)

    assert (len(plan.filters), plan.limit, plan.word_limit, plan.compares_words) == (1, 300, 300, True)


def test_word_lists_have_room_for_all_results() -> None:
    ranking = replace(EVERYTHING, weights=MATCH_ONLY, effort="Fast", max_query_limit=900)

    plan = plan_candidates(ranking, FILTER, eligible=10**5, top_k=150, fetched=700, now_ms=NOW_MS, extra_lists=1)

    assert (plan.limit, plan.word_limit) == (450, 450)


def test_proof_compares_the_words_of_every_candidate() -> None:
    plan = plan_candidates(
        replace(EVERYTHING, weights=MATCH_ONLY, effort="Fast"),
        FILTER,
        eligible=10**5,
        top_k=10,
        now_ms=NOW_MS,
        extra_lists=1,
    )

    assert plan.with_full_scans().compares_words


@pytest.mark.parametrize(
    ("eligible", "top_k", "most", "lists", "total", "is_exact"),
    [
        (10**5, 10, 1000, 5, 1000, False),
        (10**5, 500, 1000, 1, 1000, False),
        (1000, 10, 1000, 1, 1000, True),
        (2999, 10, 1000, 5, 1000, False),
        (10**5, 10, 10**6, 5, 1500, False),
    ],
)
def test_lists_share_the_query_limit(
    eligible: int, top_k: int, most: int, *, lists: int, total: int, is_exact: bool
) -> None:
    ranking = replace(EVERYTHING, max_query_limit=most)

    plan = plan_candidates(ranking, FILTER, eligible=eligible, top_k=top_k, now_ms=NOW_MS)

    assert (len(plan.filters), plan.total, plan.is_exact) == (lists, total, is_exact)


@pytest.mark.parametrize(
    ("eligible", "top_k", "most", "lists", "limit"),
    [(10**5, 20, 500, 5, 100), (10**5, 101, 500, 1, 500), (10**5, 20, None, 5, 700), (10**6, 20, None, 5, 700)],
)
def test_fetched_results_lengthen_the_lists(
    eligible: int, top_k: int, most: int | None, *, lists: int, limit: int
) -> None:
    ranking = replace(EVERYTHING, max_query_limit=most)

    plan = plan_candidates(ranking, FILTER, eligible=eligible, top_k=top_k, fetched=700, now_ms=NOW_MS)

    assert (len(plan.filters), plan.limit) == (lists, limit)


@pytest.mark.parametrize(
    ("weights", "lists"), [(Weights(1, 0, 0), 1), (Weights(0.6, 0.4, 0), 2), (Weights(0.6, 0, 0.4), 2)]
)
def test_signal_without_weight_has_no_list(weights: Weights, lists: int) -> None:
    plan = plan_candidates(replace(EVERYTHING, weights=weights), FILTER, eligible=10**5, top_k=10, now_ms=NOW_MS)

    assert len(plan.filters) == lists


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (Confidence(), BY_IDLENESS_AND_ACCESSES),
        (Importance(), BY_IDLENESS_AND_IMPORTANCE),
        (Priority(), BY_HORIZON),
        (expression("similarity * decay(idleDays, 30)"), BY_IDLENESS),
        (expression("similarity + importance - 0.01 * idleDays"), BY_IDLENESS_AND_IMPORTANCE),
        (expression("similarity * decay(ageDays, 30)"), BY_TIME),
        (expression("similarity * decay(ageDays, 30) + 0.1 * ln(1 + accessCount)"), BY_TIME_AND_USE),
        (expression("similarity + importance"), BY_USE),
        (expression("similarity"), ()),
    ],
)
def test_model_determines_the_lists(model: Model, classes: tuple[MemoryClass, ...]) -> None:
    plan = plan_candidates(replace(EVERYTHING, model=model), FILTER, eligible=10**5, top_k=10, now_ms=NOW_MS)

    assert plan.classes[1:] == classes


def test_type_with_own_horizon_has_a_list() -> None:
    ranking = replace(EVERYTHING, model=Priority(), types=(*EVERYTHING.types, MemoryType("semantic", 365)))

    plan = plan_candidates(ranking, FILTER, eligible=10**5, top_k=10, now_ms=NOW_MS)

    assert plan.classes[1:] == (*BY_HORIZON, MemoryClass(type_names=("semantic",)))


def plan_query(ranking: Ranking, eligible: int, distance: str = "Cosine") -> dict[str, Any]:
    plan = plan_candidates(ranking, FILTER, eligible=eligible, top_k=10, now_ms=NOW_MS)
    return plan.query([1.0, 0.0], distance=distance)


def test_every_list_applies_the_filter() -> None:
    lists = plan_query(EVERYTHING, 10**5)["prefetch"]

    assert all(json.dumps(FILTER["must"])[:-1] in json.dumps(list_["filter"]) for list_ in lists)


def test_search_ef_is_passed_to_the_index() -> None:
    lists = plan_query(replace(EVERYTHING, search_ef=200), 10**5)["prefetch"]

    assert [list_["params"]["hnsw_ef"] for list_ in lists] == [200] * 5


@pytest.mark.parametrize(
    ("rescore", "oversampling", "in_lists", "at_the_end"),
    [
        (True, 1.0, {"quantization": {"rescore": False}}, {"exact": True}),
        (True, 2.0, {"quantization": {"rescore": True, "oversampling": 2.0}}, {"exact": True}),
        (False, 1.0, {"quantization": {"rescore": False}}, {"quantization": {"rescore": False}}),
        (False, 4.0, {"quantization": {"rescore": False}}, {"quantization": {"rescore": False}}),
    ],
)
def test_union_of_lists_is_rescored_unless_disabled(
    rescore: bool, oversampling: float, in_lists: object, at_the_end: object
) -> None:
    query = plan_query(replace(EVERYTHING, rescore=rescore, oversampling=oversampling), 10**5)

    assert [list_["params"] for list_ in query["prefetch"]] == [in_lists] * 5
    assert query["params"] == at_the_end


@pytest.mark.parametrize(
    ("rescore", "oversampling", "quantization"),
    [
        (True, 1.0, {"rescore": True}),
        (True, 4.0, {"rescore": True, "oversampling": 4.0}),
        (False, 1.0, {"rescore": False}),
    ],
)
def test_single_list_follows_the_rescore_setting(rescore: bool, oversampling: float, quantization: object) -> None:
    ranking = replace(EVERYTHING, candidates=30, rescore=rescore, oversampling=oversampling)

    assert plan_query(ranking, 10**5)["params"] == {"quantization": quantization}


def test_small_set_is_searched_exactly() -> None:
    assert plan_query(replace(EVERYTHING, rescore=False), 10)["params"] == {"exact": True}


@pytest.mark.parametrize(
    ("distance", "min_similarity", "gate"),
    [
        ("Cosine", 0.1, 0.1),
        ("Cosine", -1, None),
        ("Dot", -1, None),
        ("Dot", -0.5, -0.5),
        ("Euclid", 0.5, 1),
        ("Euclid", 0, None),
        ("Euclid", -1, None),
    ],
)
def test_min_similarity_becomes_score_threshold(distance: str, min_similarity: float, gate: float | None) -> None:
    assert score_threshold(distance, min_similarity) == gate


@pytest.mark.parametrize(("distance", "similarity"), [("Cosine", 3), ("Dot", 3), ("Euclid", 0.25)])
def test_similarity_by_distance(distance: str, similarity: float) -> None:
    assert similarity_of(distance, 3) == similarity
