"""What searches find before and after a rebuild: probe searches, the figures that come of them, and when they hold it.

A probe is a memory of the sample, and a search for what it says among its user's memories, as an agent would
make it. Three figures are shares of 0..1:

| figure | says | holds the move |
|---|---|---|
| neighbours | of the source's exact nearest 10, how many the target's exact nearest 10 hold | vectors copied |
| found | how many probes find their own text among the nearest 10, searched exactly | embedded anew |
| index | of the nearest 10 by exact search, how many the index finds, in one and the same collection | always |

Copied vectors have to find the same: whatever is below 1 was lost. With another model the neighbours differ by nature,
for better or worse, and nobody has said what would be right; what can be held against it is that a search for the very
words of a memory finds that memory no more. The neighbours are told all the same. An index is measured against its own
collection, so that a graph built worse than the old one does not hide behind other vectors.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall
from agentmemory_operator.collections.rules.refusals import RECALL_SUFFIX
from agentmemory_operator.memories.rules.comparison import Json, PointId, is_same_score, vectors_of
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN

PROBES = 100
"""Searches; with 100, a share of 95 % is known to some 4 percent points (two standard deviations)."""

TOP = 10
"""Results that count."""

FETCHED = 2 * TOP
"""Results that are asked for: what writers change meanwhile is left out, and what follows moves up."""

_HIDDEN = (TOMBSTONE_KEY, "pending", "supersededById", "expiresAt")


@dataclass(frozen=True, slots=True)
class Drop:
    """A figure that fell."""

    what: str
    before: float
    after: float

    @property
    def percent(self) -> float:
        """Percent points."""
        return (self.before - self.after) * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What a search in one collection found.

    Attributes:
        exact, approximate: ids and scores, best first.
    """

    exact: Sequence[tuple[PointId, float]]
    approximate: Sequence[tuple[PointId, float]]

    def of(self, ids: Set[PointId]) -> "ProbeAnswer":
        """What is left of it among some points."""
        return ProbeAnswer(
            exact=[found for found in self.exact if found[0] in ids],
            approximate=[found for found in self.approximate if found[0] in ids],
        )

    @property
    def ids(self) -> set[PointId]:
        """Every point that it names."""
        return {id_ for id_, _ in (*self.exact, *self.approximate)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One probe: the memory that was searched for, and what both collections answered."""

    id: PointId
    source: ProbeAnswer
    target: ProbeAnswer


def probes_among(points: Sequence[Json], ids: Set[PointId], *, needs_content: bool) -> list[Json]:
    """The points that are searched for: such as any search of their user returns, that are alike in both.

    Args:
        points: with payload and vectors, in the order that they were drawn in.
        ids: of those that are alike in both.
    """
    fit = [point for point in points if point["id"] in ids and _is_searchable(point, needs_content=needs_content)]
    return fit[:PROBES]


def _is_searchable(point: Json, *, needs_content: bool) -> bool:
    payload = point["payload"] or {}
    has_text = isinstance(payload.get("content"), str) and bool(payload["content"].strip())
    is_answer = isinstance(payload.get("userId"), str) and not any(payload.get(key) for key in _HIDDEN)
    return is_answer and bool(vectors_of(point).get("")) and (has_text or not needs_content)


def recall_of(
    probed: Sequence[Probed], unchanged: Mapping[PointId, Hashable], *, is_embedded: bool, is_comparable: bool
) -> ProbeRecall:
    """The figures of the probes.

    Args:
        unchanged: the points that were the same in both while it was searched, with what stands for their text; no
            other counts.
        is_embedded: the target's vectors were made anew.
        is_comparable: a score means the same in both.
    """
    pairs = [
        (one.id, one.source.of(unchanged.keys()), one.target.of(unchanged.keys()))
        for one in probed
        if one.id in unchanged and one.source.of(unchanged.keys()).exact
    ]
    if not pairs:
        return ProbeRecall(probes=0)
    found = {
        "found_before": _mean([_is_found(id_, source, unchanged) for id_, source, _ in pairs]),
        "found_after": _mean([_is_found(id_, target, unchanged) for id_, _, target in pairs]),
    }
    return ProbeRecall(
        probes=len(pairs),
        neighbours=_mean([_share(one.exact, other.exact, by_score=is_comparable) for _, one, other in pairs]),
        index_before=_mean([_share(source.exact, source.approximate) for _, source, _ in pairs]),
        index_after=_mean([_share(target.exact, target.approximate) for _, _, target in pairs]),
        **(found if is_embedded else {}),
    )


def _mean(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), 4)


def _share(
    wanted: Sequence[tuple[PointId, float]], found: Sequence[tuple[PointId, float]], *, by_score: bool = True
) -> float:
    """How much of the best wanted is among the best found; what is as near as the last of them counts too."""
    best = wanted[:TOP]
    if not best:
        return 1.0
    ids = {id_ for id_, _ in best}
    last = best[-1][1]
    hits = [id_ for id_, score in found[:TOP] if id_ in ids or (by_score and is_same_score(score, last))]
    return min(len(hits), len(best)) / len(best)


def _is_found(id_: PointId, answer: ProbeAnswer, texts: Mapping[PointId, Hashable]) -> float:
    """Whether a memory's text came back; of several with one text any will do."""
    return float(any(texts[other] == texts[id_] for other, _ in answer.exact[:TOP]))


def drops_of(recall: ProbeRecall) -> list[Drop]:
    """The figures that count and are lower afterwards, the one that fell furthest first."""
    neighbours = None if recall.found_before is not None else recall.neighbours
    compared = (
        ("of the nearest 10 memories", 1.0, neighbours),
        ("of memories by their own text", recall.found_before, recall.found_after),
        ("of the nearest 10 by the index", recall.index_before, recall.index_after),
    )
    drops = (Drop(what, before, after) for what, before, after in compared if before is not None and after is not None)
    return sorted((drop for drop in drops if drop.percent > 0), key=lambda drop: -drop.percent)


def worst_drop(recall: ProbeRecall, *, most_percent: float) -> Drop | None:
    """The drop that holds the move, None where none does.

    Args:
        most_percent: percent points that any figure may drop, 0..100.
    """
    # A share is rounded to 4 digits: a hundredth of a percent point is no difference.
    return next((drop for drop in drops_of(recall) if drop.percent > most_percent + 0.01), None)


def held_message(drop: Drop, recall: ProbeRecall, *, most_percent: float, approval: str) -> str:
    """Why the move is held, with both figures and the ways out."""
    return (
        f"{recall.probes} probe searches found {_percent(drop.before)} {drop.what} before and {_percent(drop.after)}"
        f" after the rebuild: a drop of {drop.percent:.1f} percentage points, but spec.rebuild.maxRecallDropPercent "
        f"allows {most_percent:g}. The alias was not switched. To switch anyway, approve with the annotation"
        f" {APPROVE_PLAN}={approval}; otherwise change the spec or cancel the rebuild"
    )


def described(recall: ProbeRecall) -> str:
    """The figures in a person's words."""
    if not recall.probes:
        return "no probe searches: no points to search for, or exact search is not allowed"
    parts = [f"{_percent(recall.neighbours)} of the same nearest 10"]
    if recall.found_before is not None:
        parts.append(f"found by their own text {_percent(recall.found_before)} -> {_percent(recall.found_after)}")
    parts.append(f"by the index {_percent(recall.index_before)} -> {_percent(recall.index_after)}")
    return f"{recall.probes} probe searches: {', '.join(parts)}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share * 100:.1f} %"


def approval_of(digest: str) -> str:
    """What has to be approved to have a rebuild moved in spite of its recall."""
    return f"{digest}{RECALL_SUFFIX}"
