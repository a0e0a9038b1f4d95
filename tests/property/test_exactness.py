"""Search results marked as exact: short lists over small random sets, compared with scores of every memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.search.rules.candidate_classes import ALL_MEMORIES as EVERY_CLASS
from agentmemory_operator.search.rules.candidate_classes import (
    BY_HORIZON,
    BY_IDLENESS_AND_ACCESSES,
    BY_IDLENESS_AND_IMPORTANCE,
    BY_TIME,
    BY_TIME_AND_USE,
    BY_USE,
    MemoryClass,
)
from agentmemory_operator.search.rules.candidates import plan_candidates
from agentmemory_operator.search.rules.exactness import ListEnd, UnlistedMemories, is_proven_complete
from agentmemory_operator.search.rules.score_trees import EXCLUDED_SCORE, build_score_tree
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Model, Priority
from agentmemory_operator.spec.expression.typing import check_expression
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput, values_of
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import Fusion
from tests.support.engine.agents import EVERYTHING

NOW_MS = 1_795_000_000_000
TYPES = (MemoryType("fact", 365), MemoryType("episodic", 14, boost=1.2), MemoryType("semantic", None))
EXPRESSION = check_expression(
    "similarity * (0.5 + decay(ageDays, 30)) + 0.2 * importance + 0.3 * keyword", TYPES, "Cosine"
)
MODELS: list[Model | None] = [None, None, Confidence(), Priority(), Importance(), EXPRESSION]
LISTS = [
    (),
    BY_TIME,
    BY_USE,
    BY_TIME_AND_USE,
    BY_IDLENESS_AND_ACCESSES,
    BY_IDLENESS_AND_IMPORTANCE,
    (*BY_HORIZON, MemoryClass(type_names=("semantic",))),
]
HALF_LIVES = [0.002, 0.02, 0.1, 0.2, 0.4, 0.9, 1.5, 3.0]


@dataclass(frozen=True)
class Memory:
    """Memory with its payload for filters. The payload lacks an importance of None."""

    scored: ScoreInput
    payload: Mapping[str, Any]


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    type_ = draw(st.sampled_from([*(type_.name for type_ in TYPES), "gone"]))
    half_life = next((t.half_life_days for t in TYPES if t.name == type_), None) or 50
    created_at = NOW_MS - int(draw(st.sampled_from(HALF_LIVES)) * half_life * DAY_MS)
    importance = draw(st.sampled_from([None, 0.0, 0.4, 0.5, 0.6, 0.75, 1.0]))
    payload = {"type": type_, "createdAt": created_at, "accessCount": draw(st.sampled_from([0, 2, 3, 5, 200]))}
    last = draw(st.sampled_from([None, 0, 1, 4, 18, 25, 200]))
    last_ms = None if last is None else max(created_at, NOW_MS - last * DAY_MS)
    payload |= {} if last_ms is None else {"lastAccessedAt": last_ms}
    payload |= {} if importance is None else {"importance": importance}
    scored = ScoreInput(
        type=type_,
        similarity=draw(st.integers(-20, 100)) / 100,
        keyword=draw(st.sampled_from([0.0, 0.0, 0.2, 0.5, 0.9])),
        created_at=created_at,
        access_count=payload["accessCount"],
        last_accessed_at=last_ms,
        importance=0.5 if importance is None else importance,
    )
    return Memory(scored, payload)


@st.composite
def rankings(draw: st.DrawFn) -> Ranking:
    return replace(
        EVERYTHING,
        types=TYPES,
        model=draw(st.sampled_from(MODELS)),
        weights=draw(st.sampled_from([Weights(0.5, 0.3, 0.2), Weights(0.9, 0.05, 0.05), Weights(0.2, 0.2, 0.6)])),
        min_similarity=draw(st.sampled_from([-1.0, 0.1, 0.5])),
    )


def holds(condition: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
    """Return whether the engine's condition holds, for the conditions that classes use."""
    if "must" in condition or "should" in condition:
        should = condition.get("should", ())
        return all(holds(part, payload) for part in condition.get("must", ())) and (
            not should or any(holds(part, payload) for part in should)
        )
    if "is_empty" in condition:
        return condition["is_empty"]["key"] not in payload
    if condition["key"] not in payload:
        return False
    value = payload[condition["key"]]
    return value in condition["match"]["any"] if "match" in condition else bool(value >= condition["range"]["gte"])


def list_nearest(
    stored: Sequence[Memory], class_: MemoryClass, *, limit: int, min_similarity: float
) -> tuple[list[Memory], ListEnd]:
    """Return the nearest memories of a class, and the end of their list."""
    condition = class_.condition(TYPES, NOW_MS)
    near = [m for m in stored if m.scored.similarity >= min_similarity and holds(condition, m.payload)]
    near.sort(key=lambda memory: -memory.scored.similarity)
    return near[:limit], ListEnd(class_, near[limit].scored.similarity if len(near) > limit else None)


def score_of(memory: Memory, ranking: Ranking, fusion: Fusion | None) -> float:
    scored = memory.scored if fusion else replace(memory.scored, keyword=0.0)
    if fusion and fusion.method == "Score":
        weight = fusion.keyword_weight
        scored = replace(scored, similarity=(1 - weight) * scored.similarity + weight * scored.keyword)
    return build_score_tree(ranking).evaluate(values_of(scored, now_ms=NOW_MS))


@given(
    st.lists(memories(), max_size=30),
    rankings(),
    st.sampled_from(LISTS),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([-10.0, 0.3, 0.6]),
    st.sampled_from([None, None, Fusion(keyword_weight=0.4), Fusion(method="None")]),
)
def test_exact_results_miss_no_better_memory(
    stored: list[Memory],
    ranking: Ranking,
    classes: tuple[MemoryClass, ...],
    limit: int,
    top_k: int,
    threshold: float,
    fusion: Fusion | None,
) -> None:
    lists = [
        list_nearest(stored, class_, limit=limit, min_similarity=ranking.min_similarity)
        for class_ in (EVERY_CLASS, *classes)
    ]
    found = [memory for near, _ in lists for memory in near]
    worded = sorted((m for m in stored if m.scored.keyword and fusion), key=lambda memory: -memory.scored.keyword)
    found += worded[:limit]
    ends = [end for _, end in lists]
    by_words = worded[limit].scored.keyword if len(worded) > limit else None
    unseen = UnlistedMemories(ranking=ranking, distance="Cosine", ends=ends, by_words=by_words, fusion=fusion)
    scores = sorted({id(m): score_of(m, ranking, fusion) for m in found}.values(), reverse=True)[:top_k]

    if is_proven_complete(unseen, scores, top_k=top_k, threshold=threshold):
        may = [m for m in stored if m.scored.similarity >= ranking.min_similarity or (fusion and m.scored.keyword)]
        best = sorted((score_of(memory, ranking, fusion) for memory in may), reverse=True)[:top_k]
        assert [s for s in best if s >= threshold and s > EXCLUDED_SCORE] == [
            s for s in scores if s >= threshold and s > EXCLUDED_SCORE
        ]


def weighted(**more: Any) -> UnlistedMemories:
    plan = plan_candidates(EVERYTHING, {"must": []}, eligible=10**5, top_k=10, now_ms=NOW_MS)
    ends = [ListEnd(class_, 0.5) for class_ in plan.classes]
    return UnlistedMemories(**{"ranking": EVERYTHING, "distance": "Cosine", "ends": ends} | more)


def test_older_memory_has_bounded_score() -> None:
    """Similarity .5 weighs .5; a recency of .9 weighs .3; a utility of up to 1 weighs .2."""
    unseen = weighted(ends=[ListEnd(EVERY_CLASS, 0.5), ListEnd(BY_TIME[0], None)])

    assert not unseen.may_reach(0.25 + 0.9 * 0.3 + 0.2 + 1e-5)
    assert unseen.may_reach(0.25 + 0.9 * 0.3 + 0.2 - 1e-5)


@pytest.mark.parametrize("similarity", [0.0, 0.5, 0.9])
def test_incomplete_list_misses_nothing(similarity: float) -> None:
    assert not weighted(ends=[ListEnd(EVERY_CLASS, None), ListEnd(BY_TIME[0], similarity)]).may_reach(-100)


def test_rrf_ranks_prove_nothing() -> None:
    assert weighted(fusion=Fusion(method="RRF"), by_words=0.1).may_reach(100)


def test_only_requested_types_count() -> None:
    """The ageing of a type that the object no longer lists is unknown: its recency is .5 at any age."""
    ranking = replace(EVERYTHING, types=TYPES)
    ends = [ListEnd(EVERY_CLASS, 0.5)]

    assert weighted(ranking=ranking, ends=ends, types=("fact",)).may_reach(0.7)
    assert not weighted(ranking=ranking, ends=ends, types=("gone",)).may_reach(0.7)
