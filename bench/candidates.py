"""`python -m bench.candidates`: do the lists of candidates hold the best memories, is it proven, what do they cost.

Lists are made with numpy, by comparing every vector, from the plan that the product makes; what they hold is ranked by
the product's own expression trees, and so is everything. What a server's index misses on top is not in these figures.
Without `--engine` no server is asked.
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
from agentmemory_operator.search.rules.exactness import ListEnd, Unseen, is_settled
from agentmemory_operator.search.rules.score_trees import combined
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.models import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.tree import Values
from agentmemory_operator.spec.expression.typing import checked_expression
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
class Crowd:
    """The memories of one user: a number each in every array."""

    vectors: Floats
    type: Rows
    numbers: dict[str, Numbers]

    def first(self, size: int) -> "Crowd":
        numbers = {name: values[:size] for name, values in self.numbers.items()}
        return Crowd(self.vectors[:size], self.type[:size], numbers)

    def values(self, row: int, similarity: float) -> Values:
        numbers = {name: float(values[row]) for name, values in self.numbers.items()}
        return Values(TYPES[self.type[row]], numbers | {SIMILARITY: similarity, KEYWORD: 0.0})


@dataclass(frozen=True, slots=True)
class Line:
    """A score that is linear in similarity: where it begins and how it climbs, for each memory."""

    base: Numbers
    slope: Numbers


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one question."""

    found: float
    nearest: float
    is_proven: bool
    scored: int


def crowd_of(data: Dataset, *, oldest_days: float) -> Crowd:
    """Return the memories with their ages drawn together to `oldest_days`; of those used, a random share of it idle."""
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
    return Crowd(data.vectors, data.type, numbers)


def models() -> Iterator[tuple[str, Ranking]]:
    """Yield rankings with a name."""
    plain = ranking_of("bench")
    for weights in ((0.5, 0.3, 0.2), (0.8, 0.1, 0.1), (0.34, 0.33, 0.33), (0.2, 0.6, 0.2), (0.2, 0.2, 0.6)):
        name = "Weighted " + " / ".join(f"{weight:.2f}".removeprefix("0") for weight in weights)
        yield name, replace(plain, weights=Weights(*weights))
    for model in (Confidence(), Priority(), Importance()):
        yield type(model).__name__, replace(plain, model=model)
    yield "Expression", replace(plain, model=checked_expression(EXPRESSION, CORTEX.types, "Cosine"))


def line_of(crowd: Crowd, ranking: Ranking) -> Line:
    tree = combined(ranking)
    ends = [
        [tree.evaluate(crowd.values(row, similarity)) for similarity in (0.0, 1.0)] for row in range(len(crowd.type))
    ]
    base, top = np.array(ends).T
    return Line(base, top - base)


def measure(crowd: Crowd, ranking: Ranking, line: Line, question: Floats) -> Figures:
    """Return how the plan of the product does for one question."""
    size = len(crowd.type)
    plan = plan_candidates(ranking, {"must": []}, eligible=size, top_k=TOP_K, now_ms=0)
    similarity = (crowd.vectors @ question).astype(np.float64)
    order = np.argsort(-similarity)
    order = order[similarity[order] >= ranking.min_similarity]
    scores = line.base[:size] + line.slope[:size] * similarity
    ends, seen = _lists(crowd, ranking, plan, order=order, similarity=similarity)
    best = np.sort(scores[seen])[::-1][:TOP_K]
    unseen = Unseen(ranking=ranking, distance="Cosine", ends=ends)
    return Figures(
        found=_share(scores, order, seen),
        nearest=_share(scores, order, order[: plan.total]),
        is_proven=is_settled(unseen, best.tolist(), top_k=TOP_K, threshold=ranking.score_threshold),
        scored=len(seen),
    )


def _lists(
    crowd: Crowd, ranking: Ranking, plan: CandidatePlan, *, order: Rows, similarity: Numbers
) -> tuple[list[ListEnd], Rows]:
    ends, lists = [], []
    for class_ in plan.classes:
        members = order[_is_member(crowd, ranking, class_)[order]]
        lists.append(members[: plan.limit])
        ends.append(ListEnd(class_, float(similarity[members[plan.limit]]) if len(members) > plan.limit else None))
    return ends, np.unique(np.concatenate(lists))


def _is_member(crowd: Crowd, ranking: Ranking, class_: MemoryClass) -> NDArray[np.bool_]:
    member = np.zeros(len(crowd.type), dtype=np.bool_)
    for type_ in ranking.types:
        box = class_.box(type_)
        if box is not None:
            within = crowd.type == TYPES.index(type_.name)
            for name, interval in box.items():
                within &= (crowd.numbers[name] >= interval.low) & (crowd.numbers[name] <= interval.high)
            member |= within
    return member


def _share(scores: Numbers, order: Rows, seen: Rows) -> float:
    best = np.sort(scores[order])[::-1][:TOP_K]
    good = int((scores[seen] >= best[-1] - TOLERANCE).sum()) if len(best) else 0
    return min(good / len(best), 1.0) if len(best) else 1.0


def row_of(name: str, ages: str, crowd: Crowd, figures: Sequence[Figures], lists: int) -> tuple[str, ...]:
    def mean(values: list[Any]) -> float:
        return float(np.mean(values))

    return (
        name,
        ages,
        f"{len(crowd.type):,}",
        str(lists),
        f"{mean([each.scored for each in figures]):,.0f}",
        f"{mean([each.found for each in figures]):.3f}",
        f"{mean([each.is_proven for each in figures]):.2f}",
        f"{mean([each.nearest for each in figures]):.3f}",
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
    """Yield the table's rows, and print each."""
    questions = [vector for _, vector in data.questions(options.questions)]
    for ages, oldest_days in (("2 years", OLDEST_DAYS), ("90 days", RECENT_DAYS)):
        everybody = crowd_of(data, oldest_days=oldest_days)
        if engine:
            engine.load(everybody.numbers)
        for name, ranking in models():
            if not name.startswith(options.model):
                continue
            line = line_of(everybody, ranking)
            for size in options.sizes:
                crowd = everybody.first(size)
                figures = [measure(crowd, ranking, line, question) for question in questions]
                lists = len(plan_candidates(ranking, {"must": []}, eligible=size, top_k=TOP_K, now_ms=0).classes)
                row = row_of(name, ages, crowd, figures, lists) + cost_cells(engine, ranking, size, questions)
                print(" | ".join(row), flush=True)
                yield row


def parse_args() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m bench.candidates", description=__doc__)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--model", default="", help="only models whose name begins so")
    parser.add_argument("--engine", action="store_true", help="also ask an engine, and say what it costs")
    parser.add_argument("--qdrant", metavar="URL", help="a real server for that (default: the dev server)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
