"""Whether the target of a rebuild holds what its source holds, while writers go on: what is compared, and how judged.

| check | good where |
|---|---|
| Configuration | the target is as the object asks: figures, indexes, and what its vectors mean |
| Missing | every point that was seen in the source is in the target, of that revision or a later one |
| Count | as many memories, and as many tombstones, as in the source, give or take what was written meanwhile |
| Sample | points of a sample are the same where their revision is; see `rebuilds/rules/carried_vectors.py` |
| Probes | a few texts embedded once more give the vectors that the target has; only where its vectors were made again |

None of it depends on the clocks of two machines but the bounds of the counts: what was seen in the source is looked for
in the target afterwards, and is there by then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.collection import Collection, Observed
from agentmemory_operator.collections.rules.drift import differences
from agentmemory_operator.collections.rules.plan import plan_changes, without_wake
from agentmemory_operator.memories.rules.comparison import (
    UNREVISED,
    Equality,
    Json,
    PointId,
    Rows,
    divergence,
    rev_of,
    vectors_of,
)
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY
from agentmemory_operator.memories.rules.findings import Check, CheckFinding, first_of, off_by, points_differ
from agentmemory_operator.memories.rules.record import WINDOW_KEY
from agentmemory_operator.rebuilds.rules.carried_vectors import CarriedVectors

REMEMBERED = 100_000
"""Points that one look remembers as behind; a target that lacks more has not been copied."""

CHECKED = 8
"""Texts that are embedded once more."""


@dataclass(slots=True)
class Behind:
    """What a walk over both collections found.

    Attributes:
        both: points that are in both.
        revisions: of the source's points that the target lacks, or has of an earlier revision.
        extra: the target's points that the source does not have.
    """

    both: int = 0
    revisions: dict[PointId, int] = field(default_factory=dict)
    extra: list[PointId] = field(default_factory=list)

    def take(self, source: Rows, target: Rows) -> frozenset[PointId]:
        """Note a stretch of both; return the points that are alike in both."""
        found = divergence(source, target)
        self.both += len(target) - len(found.extra)
        behind = found.behind[: REMEMBERED - len(self.revisions)]
        self.revisions |= {id_: rev_of(source[id_]) for id_ in behind}
        self.extra += found.extra[: REMEMBERED - len(self.extra)]
        return found.alike

    def left(self, target: Rows) -> list[PointId]:
        """Which of the source's points are still missing or of an earlier revision."""
        return [id_ for id_, rev in self.revisions.items() if id_ not in target or rev_of(target[id_]) < rev]


def judge_settings(target: Observed, desired: Collection) -> CheckFinding:
    """Judge whether the target is as the object asks."""
    plan = without_wake(plan_changes(desired, target, alias=target.physical, physical=target.physical))
    if not plan.changes:
        return CheckFinding(Check.CONFIGURATION, True, "settings and indexes match the spec")
    fields = [found.path for found in differences(desired, target.collection, plan.changes)]
    named = fields or [type(change).__name__ for change in plan.changes]
    message = f"the new collection does not match the spec: {', '.join(sorted(set(named)))}"
    return CheckFinding(Check.CONFIGURATION, False, message, differing=len(plan.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Numbers of points of one kind.

    Attributes:
        before, after: of the source, before it was compared point by point, and after the target's were counted.
        found: of the target.
    """

    what: str
    before: int
    after: int
    found: int


def judge_counts(counts: Iterable[Counted], *, changed: int) -> CheckFinding:
    """Judge the numbers of points; where nobody wrote, there is one number.

    Args:
        changed: points that were written in the source from its first count on, or shortly before.
    """
    bad, told = 0, []
    for counted in counts:
        is_off = off_by(counted.found, counted.before, counted.after, changed=changed) > 0
        bad += is_off
        told.append(f"{counted.found} {counted.what}{f' instead of {counted.before}' if is_off else ''}")
    meanwhile = f", {changed} written in the meantime" if changed else ""
    message = f"{' and '.join(told)}{meanwhile}"
    return CheckFinding(Check.COUNT, bad == 0, message, compared=len(told), differing=bad)


def equality_of(vectors: CarriedVectors) -> Equality:
    """What makes points of both the same, as far as they were copied."""
    both = vectors.source, vectors.target
    keywords = [collection.marker.keyword if collection.marker else None for collection in both]
    is_same_text = keywords[0] == keywords[1]
    return Equality(
        has_keyword=is_same_text and all(collection.has_keyword for collection in both),
        is_same=vectors.is_same,
        # Whose words a memory is found by besides its own is worked out again where the rules are others.
        ignored=UNREVISED if is_same_text else UNREVISED | {WINDOW_KEY, EVIDENCE_KEY},
        leaves_sealed=vectors.is_embedded,
        described=vectors.described,
    )


def judge_embeddings(
    points: Sequence[Json], embedded: Sequence[Sequence[float]], vectors: CarriedVectors
) -> CheckFinding:
    """Judge whether a few vectors of the target are those that the model makes of their texts."""
    pairs = zip(points, embedded, strict=True)
    off = [str(point["id"]) for point, wanted in pairs if not vectors.is_meant(vectors_of(point)[""], wanted)]
    if off:
        message = (
            f"{len(off)} of {len(points)} vectors differ from what the model returns for the text: {first_of(off)}"
        )
        return points_differ(Check.PROBES, off, message, compared=len(points))
    message = f"{len(points)} texts embedded again returned the same vectors"
    return CheckFinding(Check.PROBES, True if points else None, message, compared=len(points))
