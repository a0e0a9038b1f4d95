"""`python -m bench.candidates`: recall, proof of exactness, and cost of the candidate lists.

The lists follow the product's plan, and are computed with numpy by comparing every vector. The product's own expression
trees rank the candidates, and all memories for comparison. Misses of a server's index are therefore not included. A
server is used only with `--engine`.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmemory_operator.search.rules.candidate_classes import MemoryClass
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from agentmemory_operator.search.rules.exactness import ListEnd, UnlistedMemories, is_proven_complete
from agentmemory_operator.search.rules.score_trees import build_score_tree
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.tree import Values
from agentmemory_operator.spec.expression.typing import check_expression
from agentmemory_operator.spec.expression.variables import (
    ACCESS_COUNT,
    AGE_DAYS,
    CONFIDENCE,
    DAY_MS,
    IDLE_DAYS,
    IMPORTANCE,
    KEYWORD,
    SIMILARITY,
)
from agentmemory_operator.spec.presets import CORTEX, Weights
from bench.costs import Engine, engine_for
from bench.datasets import OLDEST_DAYS, TYPES, Dataset, Floats, make_dataset
from bench.stacks import ranking_of
from bench.tables import machine, render

TOP_K = 10
SIZES = (10, 100, 1_000, 3_000, 10_000, 100_000)
RECENT_DAYS = 90
EXPRESSION = "similarity * (0.5 + 0.5 * decay(idleDays, 30)) + 0.2 * importance"
TOLERANCE = 1e-9
HEAD = ("model", "ages", "memories", "lists", "scored", "best 10 found", "proven exact", "nearest alone")
COST_HEAD = ("engine ms", "nearest alone, ms")

Numbers = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UserMemories:
    """The memories of one user. Every array has one element for each memory."""

    vectors: Floats
    type: Rows
    numbers: dict[str, Numbers]

    def first(self, size: int) -> "UserMemories":
        numbers = {name: values[:size] for name, values in self.numbers.items()}
        return UserMemories(self.vectors[:size], self.type[:size], numbers)

    def values(self, row: int, similarity: float) -> Values:
        numbers = {name: float(values[row]) for name, values in self.numbers.items()}
        return Values(TYPES[self.type[row]], numbers | {SIMILARITY: similarity, KEYWORD: 0.0})


@dataclass(frozen=True, slots=True)
class LinearScore:
    """Score of each memory as a linear function of its similarity: intercept and slope."""

    base: Numbers
    slope: Numbers


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one question.

    Attributes:
        found: Share of the exact best 10 that the product's candidate lists contain, 0..1.
        nearest: The same share for one list of as many nearest memories.
        is_proven: True if the product's rules prove that the lists contain the exact best.
        scored: Number of distinct candidates.
    """

    found: float
    nearest: float
    is_proven: bool
    scored: int


def build_user_memories(data: Dataset, *, oldest_days: float) -> UserMemories:
    """Return the memories with ages scaled to `oldest_days`.

    A memory with accesses is idle for a random share of its age, any other for all of it.
    """
    generator = np.random.default_rng(3)
    age = data.age_ms / DAY_MS * (oldest_days / OLDEST_DAYS)
    idle = np.where(data.access_count > 0, age * generator.random(len(data)), age)
    numbers = {
        AGE_DAYS: age,
        IDLE_DAYS: idle,
        IMPORTANCE: data.importance,
        ACCESS_COUNT: data.access_count.astype(np.float64),
        CONFIDENCE: np.round(0.5 + 0.5 * generator.random(len(data)), 2),
    }
    return UserMemories(data.vectors, data.type, numbers)


def models() -> Iterator[tuple[str, Ranking]]:
    """Yield the measured rankings with their names."""
    plain = ranking_of("bench")
    for weights in ((0.5, 0.3, 0.2), (0.8, 0.1, 0.1), (0.34, 0.33, 0.33), (0.2, 0.6, 0.2), (0.2, 0.2, 0.6)):
        name = "Weighted " + " / ".join(f"{weight:.2f}".removeprefix("0") for weight in weights)
        yield name, replace(plain, weights=Weights(*weights))
    for model in (Confidence(), Priority(), Importance()):
        yield type(model).__name__, replace(plain, model=model)
    yield "Expression", replace(plain, model=check_expression(EXPRESSION, CORTEX.types, "Cosine"))


def line_of(crowd: UserMemories, ranking: Ranking) -> LinearScore:
    tree = build_score_tree(ranking)
    ends = [
        [tree.evaluate(crowd.values(row, similarity)) for similarity in (0.0, 1.0)] for row in range(len(crowd.type))
    ]
    base, top = np.array(ends).T
    return LinearScore(base, top - base)


def measure(crowd: UserMemories, ranking: Ranking, line: LinearScore, question: Floats) -> Figures:
    """Apply the product's plan to one question and return the results."""
    size = len(crowd.type)
    plan = plan_candidates(ranking, {"must": []}, eligible=size, top_k=TOP_K, now_ms=0)
    similarity = (crowd.vectors @ question).astype(np.float64)
    order = np.argsort(-similarity)
    order = order[similarity[order] >= ranking.min_similarity]
    scores = line.base[:size] + line.slope[:size] * similarity
    ends, listed = _lists(crowd, ranking, plan, order=order, similarity=similarity)
    best = np.sort(scores[listed])[::-1][:TOP_K]
    unlisted = UnlistedMemories(ranking=ranking, distance="Cosine", ends=ends)
    return Figures(
        found=_share(scores, order, listed),
        nearest=_share(scores, order, order[: plan.total]),
        is_proven=is_proven_complete(unlisted, best.tolist(), top_k=TOP_K, threshold=ranking.score_threshold),
        scored=len(listed),
    )


def _lists(
    crowd: UserMemories, ranking: Ranking, plan: CandidatePlan, *, order: Rows, similarity: Numbers
) -> tuple[list[ListEnd], Rows]:
    ends, lists = [], []
    for class_ in plan.classes:
        members = order[_is_member(crowd, ranking, class_)[order]]
        lists.append(members[: plan.limit])
        ends.append(ListEnd(class_, float(similarity[members[plan.limit]]) if len(members) > plan.limit else None))
    return ends, np.unique(np.concatenate(lists))


def _is_member(crowd: UserMemories, ranking: Ranking, class_: MemoryClass) -> NDArray[np.bool_]:
    member = np.zeros(len(crowd.type), dtype=np.bool_)
    for type_ in ranking.types:
        box = class_.box(type_)
        if box is not None:
            within = crowd.type == TYPES.index(type_.name)
            for name, interval in box.items():
                within &= (crowd.numbers[name] >= interval.low) & (crowd.numbers[name] <= interval.high)
            member |= within
    return member


def _share(scores: Numbers, order: Rows, listed: Rows) -> float:
    best = np.sort(scores[order])[::-1][:TOP_K]
    good = int((scores[listed] >= best[-1] - TOLERANCE).sum()) if len(best) else 0
    return min(good / len(best), 1.0) if len(best) else 1.0


def row_of(name: str, ages: str, crowd: UserMemories, figures: Sequence[Figures], lists: int) -> tuple[str, ...]:
    def mean(values: list[Any]) -> float:
        return float(np.mean(values))

    return (
        name,
        ages,
        f"{len(crowd.type):,}",
        str(lists),
        f"{mean([figure.scored for figure in figures]):,.0f}",
        f"{mean([figure.found for figure in figures]):.3f}",
        f"{mean([figure.is_proven for figure in figures]):.2f}",
        f"{mean([figure.nearest for figure in figures]):.3f}",
    )


def cost_cells(engine: Engine | None, ranking: Ranking, size: int, questions: Sequence[Floats]) -> tuple[str, ...]:
    if engine is None:
        return ()
    cost = engine.cost(ranking, size, questions)
    return f"{cost.plan:.1f}", f"{cost.nearest:.1f}"


def main() -> None:
    options = parse_args()
    started_s = time.perf_counter()
    data = make_dataset("bench", size=max(options.sizes), users=1, now_ms=0)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(engine_for(data, options.sizes, options.qdrant)) if options.engine else None
        rows = list(measured(data, engine, options))
    print("\n" + render(HEAD + (COST_HEAD if engine else ()), rows))
    print(f"\n{machine()}, {time.perf_counter() - started_s:.0f} s")


def measured(data: Dataset, engine: Engine | None, options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows, and print each as soon as it is measured."""
    questions = [vector for _, vector in data.questions(options.questions)]
    for ages, oldest_days in (("2 years", OLDEST_DAYS), ("90 days", RECENT_DAYS)):
        all_memories = build_user_memories(data, oldest_days=oldest_days)
        if engine:
            engine.load(all_memories.numbers)
        for name, ranking in models():
            if not name.startswith(options.model):
                continue
            line = line_of(all_memories, ranking)
            for size in options.sizes:
                crowd = all_memories.first(size)
                figures = [measure(crowd, ranking, line, question) for question in questions]
                lists = len(plan_candidates(ranking, {"must": []}, eligible=size, top_k=TOP_K, now_ms=0).classes)
                row = row_of(name, ages, crowd, figures, lists) + cost_cells(engine, ranking, size, questions)
                print(" | ".join(row), flush=True)
                yield row


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.candidates", description=__doc__)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--model", default="", help="only models whose name begins so")
    parser.add_argument("--engine", action="store_true", help="also ask an engine, and say what it costs")
    parser.add_argument("--qdrant", metavar="URL", help="a real server for that (default: the dev server)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
