"""Whether the target of a rebuild holds what its source holds, while writers go on: what is compared, and how judged.

| check | good where |
|---|---|
| Configuration | the target is as the object asks: figures, indexes, and what its vectors mean |
| Missing | every point that was seen in the source is in the target, of that revision or a later one |
| Count | as many memories, and as many tombstones, as in the source, give or take what was written meanwhile |
| Sample | points drawn by lot are the same where their revision is; see `domain/carried_vectors.py` |
| Probes | a few texts embedded once more give the vectors that the target has; only where it was embedded anew |

None of it depends on the clocks of two machines but the bounds of the counts: what was seen in the source is looked for
in the target afterwards, and is there by then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.domain.carried_vectors import CarriedVectors
from agentmemory_operator.domain.collection import Collection, Observed
from agentmemory_operator.domain.divergence import VERSION_KEYS, PointId, Rows, rev_of
from agentmemory_operator.domain.drift import differences
from agentmemory_operator.domain.planning import plan_changes, without_wake
from agentmemory_operator.domain.records import WINDOW_KEY
from agentmemory_operator.domain.samples import UNREVISED, compare_points, judge_sample, vectors_of
from agentmemory_operator.domain.verification import SHOWN, Check, Finding

Json = dict[str, Any]

REMEMBERED = 100_000
"""Points that one look remembers as behind; a target that lacks more has not been copied."""

SKEW_MS = 60_000
"""How far the clocks of two processes may differ."""

CHECKED = 8
"""Texts that are embedded once more."""


@dataclass(slots=True)
class Behind:
    """What a walk over both collections found.

    Attributes:
        both: points that are in both.
        revisions: of the source's points that the target lacks, or has of an earlier revision.
        extra: of the target's points that the source does not have, what they say of themselves.
        alike: how many have the same revision in both.
    """

    both: int = 0
    alike: int = 0
    revisions: dict[PointId, int] = field(default_factory=dict)
    extra: dict[PointId, Mapping[str, Any]] = field(default_factory=dict)

    def take(self, source: Rows, target: Rows) -> set[PointId]:
        """Note a stretch of both; return the points that are alike in both."""
        alike = {id_ for id_, row in source.items() if is_alike(row, target.get(id_))}
        for id_, row in source.items():
            if len(self.revisions) < REMEMBERED and (id_ not in target or rev_of(target[id_]) < rev_of(row)):
                self.revisions[id_] = rev_of(row)
        self.extra |= {id_: row for id_, row in target.items() if id_ not in source and len(self.extra) < REMEMBERED}
        self.both += len(source.keys() & target.keys())
        self.alike += len(alike)
        return alike

    def left(self, target: Rows) -> list[PointId]:
        """Return which of the source's points are still missing or of an earlier revision."""
        return [id_ for id_, rev in self.revisions.items() if id_ not in target or rev_of(target[id_]) < rev]


def is_alike(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Tell whether two points are of one revision and one time; two that carry neither are.

    Args:
        other: None where there is no such point.
    """
    return other is not None and all(one.get(key) == other.get(key) for key in VERSION_KEYS)


def judge_settings(target: Observed, desired: Collection) -> Finding:
    """Judge whether the target is as the object asks."""
    plan = without_wake(plan_changes(desired, target, alias=target.physical, physical=target.physical))
    if not plan.changes:
        return Finding(check=Check.CONFIGURATION, is_good=True, message="settings and indexes as the object asks")
    fields = [found.path for found in differences(desired, target.collection, plan.changes)]
    named = fields or [type(change).__name__ for change in plan.changes]
    message = f"the new collection is not as the object asks: {', '.join(sorted(set(named)))}"
    return Finding(check=Check.CONFIGURATION, is_good=False, message=message, differing=len(plan.changes))


def judge_missing(behind: Behind, left: Sequence[PointId], extra: Sequence[PointId]) -> Finding:
    """Judge what is still missing after it was carried, and what the target has beyond the source."""
    if not left and not extra:
        return Finding(
            check=Check.MISSING, is_good=True, message=f"{behind.both} points are in both", compared=behind.both
        )
    told = [(left, "are missing in the new collection, or older there"), (extra, "are in the new collection alone")]
    parts = [f"{len(ids)} points {what}: {', '.join(map(str, ids[:SHOWN]))}" for ids, what in told if ids]
    return Finding(
        check=Check.MISSING,
        is_good=False,
        message="; ".join(parts),
        compared=behind.both + len(left),
        differing=len(left) + len(extra),
        ids=tuple(str(id_) for id_ in (*left, *extra)[:SHOWN]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Numbers of points of one kind.

    Attributes:
        before, after: of the source, before and after the target's were counted.
        found: of the target.
    """

    what: str
    before: int
    after: int
    found: int


def judge_counts(counts: Iterable[Counted], *, changed: int) -> Finding:
    """Judge the numbers of points.

    With c points changed meanwhile, at any moment between there were b - c to a + c, and the target may lack the last.

    Args:
        changed: points that were written in the source since shortly before it was counted.
    """
    bad, told = 0, []
    for counted in counts:
        least, most = min(counted.before, counted.after) - changed, max(counted.before, counted.after) + changed
        is_off = not least <= counted.found <= most
        bad += is_off
        told.append(f"{counted.found} {counted.what}{f' instead of {counted.before}' if is_off else ''}")
    meanwhile = f", {changed} written meanwhile" if changed else ""
    message = f"{' and '.join(told)}{meanwhile}"
    return Finding(check=Check.COUNT, is_good=bad == 0, message=message, compared=len(told), differing=bad)


def judge_points(targets: Sequence[Json], sources: Sequence[Json], vectors: CarriedVectors) -> Finding:
    """Judge points that were drawn by lot, with payload and vectors."""
    keywords = [collection.marker.keyword if collection.marker else None for collection in _both(vectors)]
    is_same_text = keywords[0] == keywords[1]
    has_keyword = is_same_text and all(collection.has_keyword for collection in _both(vectors))
    # Whose words a memory is found by besides its own is worked out anew where the rules are others.
    ignored = UNREVISED if is_same_text else UNREVISED | {WINDOW_KEY}
    compared = compare_points(
        targets, sources, has_keyword=has_keyword, is_same=vectors.is_same, ignored=frozenset(ignored)
    )
    return judge_sample(compared, how=vectors.described)


def _both(vectors: CarriedVectors) -> tuple[Collection, Collection]:
    return vectors.source, vectors.target


def judge_embeddings(points: Sequence[Json], embedded: Sequence[Sequence[float]], vectors: CarriedVectors) -> Finding:
    """Judge whether a few vectors of the target are those that the model makes of their texts."""
    pairs = zip(points, embedded, strict=True)
    off = [str(point["id"]) for point, wanted in pairs if not vectors.is_meant(vectors_of(point)[""], wanted)]
    if off:
        message = (
            f"{len(off)} of {len(points)} vectors are not what the model makes of the text: {', '.join(off[:SHOWN])}"
        )
        ids = tuple(off[:SHOWN])
        return Finding(
            check=Check.PROBES, is_good=False, message=message, compared=len(points), differing=len(off), ids=ids
        )
    message = f"{len(points)} texts embedded once more gave the same vectors"
    return Finding(check=Check.PROBES, is_good=True if points else None, message=message, compared=len(points))
