"""Compare search results before and after a rebuild: probe searches, their figures, and the limit to hold the move.

A probe is a memory of the sample. It is searched for by its own content among the memories of its user, as an agent
would. Three figures, each a share of 0..1:

| figure | meaning | its drop can hold the move if |
|---|---|---|
| neighbours | share of the source's exact nearest 10 that the target's exact nearest 10 contain | vectors were copied |
| found | share of probes that find their own text among the exact nearest 10 | vectors were embedded again |
| index | share of the exact nearest 10 that the index finds, in the same collection | always |

Copied vectors must find the same memories: a value below 1 is a loss. With another model the neighbours differ, for
better or worse, and no reference shows which are right. There `found` replaces them: a search for the exact text of a
memory must still find it. The neighbours are only reported. An index is compared with exact search in its own
collection, so a worse graph is not hidden by different vectors.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall
from agentmemory_operator.collections.rules.refusals import RECALL_APPROVAL_SUFFIX
from agentmemory_operator.memories.rules.comparison import Json, PointId, is_same_score, vectors_of
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN

MAX_PROBES = 100
"""Maximum number of probes.

With 100, a share of 95 % has a precision of about 4 percentage points (two standard deviations).
"""

TOP_K = 10
"""Number of nearest results of each search that the figures compare."""

FETCHED_RESULTS = 2 * TOP_K
"""Number of requested results. Memories that change in the meantime are dropped, and later results take their place."""

_HIDDEN = (TOMBSTONE_KEY, "pending", "supersededById", "expiresAt")


@dataclass(frozen=True, slots=True)
class RecallDrop:
    """Figure that is lower after the rebuild: its name for messages, and its value before and after, 0..1."""

    figure: str
    before: float
    after: float

    @property
    def percent(self) -> float:
        """Size of the drop in percentage points."""
        return (self.before - self.after) * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResults:
    """Results of one probe query in one collection.

    Attributes:
        exact, approximate: Ids and scores of the exact search and of the search by the index, best first.
    """

    exact: Sequence[tuple[PointId, float]]
    approximate: Sequence[tuple[PointId, float]]

    def restrict_to(self, ids: Set[PointId]) -> "ProbeResults":
        """Return the results of both searches that have one of these ids, in the same order."""
        return ProbeResults(
            exact=[result for result in self.exact if result[0] in ids],
            approximate=[result for result in self.approximate if result[0] in ids],
        )

    @property
    def ids(self) -> set[PointId]:
        """Ids of the results of both searches."""
        return {id_ for id_, _ in (*self.exact, *self.approximate)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeComparison:
    """Probe with the id of its memory, and its results in both collections."""

    id: PointId
    source: ProbeResults
    target: ProbeResults


def choose_probes(points: Sequence[Json], ids: Set[PointId], *, needs_content: bool) -> list[Json]:
    """Return the first points, at most 100, that can be searched for and are alike in both collections.

    Such a point has a user and a vector, and is neither a tombstone, pending, superseded nor going to expire.

    Args:
        points: Points with payload and vectors, in the order of the sample.
        ids: Ids of the points that are alike in both collections.
        needs_content: True if only points with a text qualify.
    """
    eligible = [point for point in points if point["id"] in ids and _is_searchable(point, needs_content=needs_content)]
    return eligible[:MAX_PROBES]


def _is_searchable(point: Json, *, needs_content: bool) -> bool:
    payload = point["payload"] or {}
    has_text = isinstance(payload.get("content"), str) and bool(payload["content"].strip())
    is_visible = isinstance(payload.get("userId"), str) and not any(payload.get(key) for key in _HIDDEN)
    return is_visible and bool(vectors_of(point).get("")) and (has_text or not needs_content)


def compute_recall(
    probed: Sequence[ProbeComparison], unchanged: Mapping[PointId, Hashable], *, is_embedded: bool, is_comparable: bool
) -> ProbeRecall:
    """Compute the figures of the probes. Probes of changed points, or with no exact result in the source, are ignored.

    If no probe is left, `probes` is 0, and no figure is set.

    Args:
        unchanged: Ids of the points that were the same in both collections during the searches, with a hash of their
            text. Results with other ids are ignored.
        is_embedded: True if the target's vectors were embedded again.
        is_comparable: True if scores of both collections can be compared: then results with equal scores are equal.
    """
    pairs = [
        (probe.id, probe.source.restrict_to(unchanged.keys()), probe.target.restrict_to(unchanged.keys()))
        for probe in probed
        if probe.id in unchanged and probe.source.restrict_to(unchanged.keys()).exact
    ]
    if not pairs:
        return ProbeRecall(probes=0)
    shares = {
        "found_before": _mean([_is_found(id_, source, unchanged) for id_, source, _ in pairs]),
        "found_after": _mean([_is_found(id_, target, unchanged) for id_, _, target in pairs]),
    }
    return ProbeRecall(
        probes=len(pairs),
        neighbours=_mean([_share(source.exact, target.exact, by_score=is_comparable) for _, source, target in pairs]),
        index_before=_mean([_share(source.exact, source.approximate) for _, source, _ in pairs]),
        index_after=_mean([_share(target.exact, target.approximate) for _, _, target in pairs]),
        **(shares if is_embedded else {}),
    )


def _mean(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), 4)


def _share(
    expected: Sequence[tuple[PointId, float]], found: Sequence[tuple[PointId, float]], *, by_score: bool = True
) -> float:
    """Return the share, 0..1, of the best `TOP_K` expected results that are among the best `TOP_K` found results.

    With `by_score`, a found result with the score of the last expected result counts too. Without expected results, the
    share is 1.0.
    """
    best = expected[:TOP_K]
    if not best:
        return 1.0
    ids = {id_ for id_, _ in best}
    min_score = best[-1][1]
    hits = [id_ for id_, score in found[:TOP_K] if id_ in ids or (by_score and is_same_score(score, min_score))]
    return min(len(hits), len(best)) / len(best)


def _is_found(id_: PointId, results: ProbeResults, texts: Mapping[PointId, Hashable]) -> float:
    """Return 1 if the results contain the text of a memory, else 0. Any memory with the same text counts."""
    return float(any(texts[result_id] == texts[id_] for result_id, _ in results.exact[:TOP_K]))


def find_drops(recall: ProbeRecall) -> list[RecallDrop]:
    """Return the figures that can hold the move and are lower afterwards, largest drop first."""
    neighbours = None if recall.found_before is not None else recall.neighbours
    compared = (
        ("of the nearest 10 memories", 1.0, neighbours),
        ("of memories by their own text", recall.found_before, recall.found_after),
        ("of the nearest 10 by the index", recall.index_before, recall.index_after),
    )
    drops = (
        RecallDrop(name, before, after) for name, before, after in compared if before is not None and after is not None
    )
    return sorted((drop for drop in drops if drop.percent > 0), key=lambda drop: -drop.percent)


def find_blocking_drop(recall: ProbeRecall, *, max_percent: float) -> RecallDrop | None:
    """Return the largest drop if it holds the move, else None.

    Args:
        max_percent: Maximum accepted drop of any figure in percentage points, 0..100.
    """
    # Ignore 0.01 percentage points, which is noise: shares are rounded to 4 digits.
    return next((drop for drop in find_drops(recall) if drop.percent > max_percent + 0.01), None)


def withheld_message(drop: RecallDrop, recall: ProbeRecall, *, max_percent: float, approval: str) -> str:
    """Return the message of a held move: the figure before and after, and the remedies."""
    return (
        f"{recall.probes} probe searches found {_percent(drop.before)} {drop.figure} before and {_percent(drop.after)}"
        f" after the rebuild: a drop of {drop.percent:.1f} percentage points, but spec.rebuild.maxRecallDropPercent "
        f"allows {max_percent:g}. The alias was not switched. To switch anyway, approve with the annotation"
        f" {APPROVE_PLAN}={approval}; otherwise change the spec or cancel the rebuild"
    )


def describe_recall(recall: ProbeRecall) -> str:
    """Return the figures as text for users, or a note if there are no probes."""
    if not recall.probes:
        return "no probe searches: no points to search for, or exact search is not allowed"
    parts = [f"{_percent(recall.neighbours)} of the same nearest 10"]
    if recall.found_before is not None:
        parts.append(f"found by their own text {_percent(recall.found_before)} -> {_percent(recall.found_after)}")
    parts.append(f"by the index {_percent(recall.index_before)} -> {_percent(recall.index_after)}")
    return f"{recall.probes} probe searches: {', '.join(parts)}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share * 100:.1f} %"


def approval_value(digest: str) -> str:
    """Return the annotation value that approves the move of a rebuild despite its recall."""
    return f"{digest}{RECALL_APPROVAL_SUFFIX}"
