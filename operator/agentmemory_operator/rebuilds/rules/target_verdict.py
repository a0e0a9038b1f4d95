"""Compare the target of a rebuild with its source while writers continue: the checks and their findings.

| check | passes if |
|---|---|
| Configuration | the target has the required settings and indexes |
| Missing | the target has every point of the source, with the same or a later revision, and no others |
| Count | as many memories and tombstones as in the source, within the number of writes in the meantime |
| Sample | sampled points with the same revision are equal; see `rebuilds/rules/vector_tolerance.py` |
| Probes | a few texts embedded again return nearly the target's vectors; only if these are not copies |

Only the bounds of the counts depend on the clocks of two machines. A point is first read in the source and then looked
up in the target, where it must exist by then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.collection import Collection, Observation
from agentmemory_operator.collections.rules.drift import differences
from agentmemory_operator.collections.rules.plan import drop_wake, plan_changes
from agentmemory_operator.memories.rules.comparison import (
    UNREVISED_KEYS,
    Equality,
    Json,
    PointId,
    Rows,
    find_divergence,
    rev_of,
    vectors_of,
)
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY
from agentmemory_operator.memories.rules.findings import (
    Check,
    CheckFinding,
    distance_from_range,
    list_examples,
    points_differ_finding,
)
from agentmemory_operator.memories.rules.record import WINDOW_KEY
from agentmemory_operator.rebuilds.rules.vector_tolerance import VectorTolerance

MAX_RECORDED_POINTS = 100_000
"""Maximum number of points recorded as missing or outdated, as extra, and as recently written, each.

A target that lacks more points was not copied.
"""

MAX_CHECKED_TEXTS = 8
"""Maximum number of texts that the check Probes embeds again."""


@dataclass(slots=True)
class CopyGaps:
    """Differences that a walk over both collections has found.

    Attributes:
        common: Number of points in both collections, without those that the target has with an earlier revision.
        revisions: Revisions of the source's points that the target lacks or has with an earlier revision.
        extra: Points that only the target has.
    """

    common: int = 0
    revisions: dict[PointId, int] = field(default_factory=dict)
    extra: list[PointId] = field(default_factory=list)

    def record(self, source: Rows, target: Rows) -> frozenset[PointId]:
        """Record the differences in one range of ids; return the ids of points that are alike."""
        difference = find_divergence(source, target)
        self.common += len(source) - len(difference.stale)
        new_ids = difference.stale[: MAX_RECORDED_POINTS - len(self.revisions)]
        self.revisions |= {id_: rev_of(source[id_]) for id_ in new_ids}
        self.extra += difference.extra[: MAX_RECORDED_POINTS - len(self.extra)]
        return difference.alike

    def find_remaining(self, target: Rows) -> list[PointId]:
        """Return the recorded points of the source that are still missing or outdated.

        Args:
            target: Versions of these points in the target, read again.
        """
        return [id_ for id_, rev in self.revisions.items() if id_ not in target or rev_of(target[id_]) < rev]


def judge_settings(target: Observation, desired: Collection) -> CheckFinding:
    """Check that the target has the settings and indexes of `desired`; return the finding."""
    plan = drop_wake(plan_changes(desired, target, alias=target.physical, physical=target.physical))
    if not plan.changes:
        return CheckFinding(Check.CONFIGURATION, True, "settings and indexes match the spec")
    fields = [difference.path for difference in differences(desired, target.collection, plan.changes)]
    names = fields or [type(change).__name__ for change in plan.changes]
    message = f"the new collection does not match the spec: {', '.join(sorted(set(names)))}"
    return CheckFinding(Check.CONFIGURATION, False, message, differing=len(plan.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointCounts:
    """Numbers of points of one kind.

    Attributes:
        kind: Name of the kind, for messages.
        before, after: Number in the source before the point-by-point comparison, and after the target was counted.
        found: Number in the target.
    """

    kind: str
    before: int
    after: int
    found: int


def judge_counts(counts: Iterable[PointCounts], *, changed: int) -> CheckFinding:
    """Compare the numbers of points; return the finding.

    The number in the target must be in the range of the two counts in the source, widened by `changed` at both ends.

    Args:
        changed: Number of points written in the source since shortly before its first count.
    """
    mismatches, parts = 0, []
    for count in counts:
        is_off = distance_from_range(count.found, count.before, count.after, changed=changed) > 0
        mismatches += is_off
        parts.append(f"{count.found} {count.kind}{f' instead of {count.before}' if is_off else ''}")
    meanwhile = f", {changed} written in the meantime" if changed else ""
    message = f"{' and '.join(parts)}{meanwhile}"
    return CheckFinding(Check.COUNT, mismatches == 0, message, compared=len(parts), differing=mismatches)


def build_equality(vectors: VectorTolerance) -> Equality:
    """Return the criteria by which a copied point equals its original."""
    collections = vectors.source, vectors.target
    keywords = [collection.marker.keyword if collection.marker else None for collection in collections]
    is_same_text = keywords[0] == keywords[1]
    return Equality(
        has_keyword=is_same_text and all(collection.has_keyword for collection in collections),
        is_same=vectors.is_same,
        # With other keyword rules, ignore the window and evidence of each memory, because they are computed again.
        ignored=UNREVISED_KEYS if is_same_text else UNREVISED_KEYS | {WINDOW_KEY, EVIDENCE_KEY},
        ignores_locked=vectors.is_embedded,
        description=vectors.description,
    )


def judge_embeddings(
    points: Sequence[Json], embedded: Sequence[Sequence[float]], vectors: VectorTolerance
) -> CheckFinding:
    """Check that a few of the target's vectors are the model's embeddings of their texts; return the finding.

    Args:
        points: Points of the target with vectors. Without any, the result is that nothing was compared.
        embedded: New embedding of the text of each point, in the same order.
    """
    pairs = zip(points, embedded, strict=True)
    wrong_ids = [
        str(point["id"]) for point, expected in pairs if not vectors.is_embedding_of(vectors_of(point)[""], expected)
    ]
    if wrong_ids:
        differing = f"{len(wrong_ids)} of {len(points)} vectors differ"
        message = f"{differing} from what the model returns for the text: {list_examples(wrong_ids)}"
        return points_differ_finding(Check.PROBES, wrong_ids, message, compared=len(points))
    message = f"{len(points)} texts embedded again returned the same vectors"
    return CheckFinding(Check.PROBES, True if points else None, message, compared=len(points))
