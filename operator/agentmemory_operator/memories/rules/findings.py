"""Findings of a verification that compares two collections, and the verdict over them.

A snapshot's copy is compared with the live collection, a rebuild's target with its source.
`snapshots/rules/copy_verdict.py` and `rebuilds/rules/target_verdict.py` define the checks of each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

from agentmemory_operator.memories.rules.comparison import PointId, SampleResult
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason

VERIFIED_CONDITION = "Verified"
"""Type of the condition that reports the verdict."""

MAX_EXAMPLES = 3
"""Maximum number of ids and fields in a message, which gives only the number of the others."""


class Check(StrEnum):
    """Aspect of a collection, or of a snapshot's file, that a verification compares."""

    CHECKSUM = "Checksum"
    RESTORE = "Restore"
    OWNER = "Owner"
    CONFIGURATION = "Configuration"
    INDEXES = "Indexes"
    COUNT = "Count"
    MISSING = "Missing"
    SAMPLE = "Sample"
    PROBES = "Probes"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Result of one check.

    Attributes:
        is_good: None if there was nothing to compare.
        message: Text for the status; contains no memory text and no user name.
        compared, differing: Numbers of settings, points, searches or bytes.
        ids: Ids of the first points that differ.
    """

    check: Check
    is_good: bool | None
    message: str
    _: KW_ONLY
    compared: int = 0
    differing: int = 0
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerificationVerdict:
    """Verdict over all findings of a verification.

    Attributes:
        findings: Findings in the order of the checks.
        without_live: Reason why there was no live collection to compare with; empty if there was one.
    """

    findings: tuple[CheckFinding, ...]
    without_live: str = ""

    @property
    def is_good(self) -> bool:
        """True if no check failed, also if nothing was compared."""
        return all(finding.is_good is not False for finding in self.findings)

    @property
    def reason(self) -> Reason:
        """Reason of the condition. If a check failed, it is the reason of the first failure."""
        bad = [finding.check for finding in self.findings if finding.is_good is False]
        if bad:
            return _FAULTS.get(bad[0], Reason.COPY_DIFFERS)
        if any(finding.check is Check.RESTORE for finding in self.findings):
            return Reason.NOT_RESTORABLE
        if not any(finding.is_good for finding in self.findings):
            return Reason.NOT_VERIFIED
        if all(finding.check is Check.CHECKSUM for finding in self.findings):
            return Reason.CHECKSUM_MATCHES
        return Reason.COMPARED_WITH_RECORD if self.without_live else Reason.VERIFIED

    @property
    def message(self) -> str:
        """Messages of the failed checks, or of all checks if none failed; then `without_live` if it is set."""
        bad = [finding.message for finding in self.findings if finding.is_good is False]
        messages = bad or [finding.message for finding in self.findings]
        return "; ".join((*messages, self.without_live) if self.without_live else messages)

    @property
    def state(self) -> ConditionState:
        """The condition `Verified`. Unknown if no check failed, but nothing was compared or no copy restored."""
        is_open = self.is_good and self.reason in (Reason.NOT_VERIFIED, Reason.NOT_RESTORABLE)
        return ConditionState(VERIFIED_CONDITION, None if is_open else self.is_good, self.reason, self.message)


def points_differ_finding(check: Check, ids: Iterable[PointId], message: str, *, compared: int) -> CheckFinding:
    """Return the failed finding of a check.

    Args:
        ids: Ids of the points that differ.
        compared: Number of points or searches that were compared.
    """
    names = [str(id_) for id_ in ids]
    return CheckFinding(check, False, message, compared=compared, differing=len(names), ids=tuple(names[:MAX_EXAMPLES]))


def judge_missing(common: int, faults: Mapping[str, Sequence[PointId]], *, removed: int = 0) -> CheckFinding:
    """Return the finding of check Missing. It fails if points are missing, outdated or surplus.

    Args:
        common: Number of points that are in both collections, without faulty ones.
        faults: Ids of faulty points by their fault. The fault completes the message "N points ...", for example "are
            only in the new collection".
        removed: Number of points that were deleted from the live collection after the copy was created.
    """
    missing = [id_ for ids in faults.values() for id_ in ids]
    if not missing:
        since = f", {removed} removed since" if removed else ""
        message = f"{common} points are in both{since}"
        return CheckFinding(Check.MISSING, True, message, compared=common + removed)
    parts = [f"{len(ids)} points {fault}: {list_examples(map(str, ids))}" for fault, ids in faults.items() if ids]
    return points_differ_finding(Check.MISSING, missing, "; ".join(parts), compared=common + len(missing))


def distance_from_range(count: int, before: int, after: int, *, changed: int) -> int:
    """Return the distance of a count from the range of possible counts at its time; 0 if it is inside.

    Args:
        before, after: Counts before and after `count`.
        changed: Number of points added or removed between the two counts. It widens the range on both sides.
    """
    lowest, highest = min(before, after) - changed, max(before, after) + changed
    return max(lowest - count, count - highest, 0)


def judge_sample(compared: SampleResult, *, equality: str = "bit for bit") -> CheckFinding:
    """Return the finding about a sample of points. `is_good` is None if no points could be compared.

    Args:
        equality: Description of the equality, for the message.
    """
    total = len(compared.equal) + len(compared.differing)
    since = f", {compared.changed} written since" if compared.changed else ""
    if compared.differing:
        examples = list_examples(f"{id_} ({', '.join(parts)})" for id_, parts in compared.differing)
        message = f"{len(compared.differing)} of {total} points differ: {examples}{since}"
        return points_differ_finding(Check.SAMPLE, (id_ for id_, _ in compared.differing), message, compared=total)
    if not total:
        return CheckFinding(Check.SAMPLE, None, f"no points to compare{since}")
    return CheckFinding(Check.SAMPLE, True, f"{total} points equal {equality}{since}", compared=total)


def list_examples(names: Iterable[str]) -> str:
    """List the first `MAX_EXAMPLES` names, and the number of the rest."""
    all_names = list(names)
    suffix = f" and {len(all_names) - MAX_EXAMPLES} more" if len(all_names) > MAX_EXAMPLES else ""
    return ", ".join(all_names[:MAX_EXAMPLES]) + suffix


_FAULTS = {Check.CHECKSUM: Reason.CHECKSUM_DIFFERS, Check.RESTORE: Reason.NOT_RESTORABLE}
