"""What a verification of one collection by another comes to: findings, and the verdict over them.

A snapshot's copy is held to the live collection, a rebuild's target to its source. What each check asks for is told in
`snapshots/rules/verdict.py` and `rebuilds/rules/verdict.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

from agentmemory_operator.memories.rules.comparison import Compared, PointId
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason

VERIFIED = "Verified"
"""Type of the condition that tells of it."""

SHOWN = 3
"""Ids and fields that a message names; the rest is counted."""


class Check(StrEnum):
    """What is compared."""

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
    """What one check came to.

    Attributes:
        is_good: None where there was nothing to judge by.
        message: no text of a memory, no name of a user.
        compared, differing: how many settings, points or searches.
        ids: of points that differ, the first few.
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
    """What became of a verification.

    Attributes:
        findings: in the order of the checks.
        without_live: why there was no live collection to compare with; empty where there was.
    """

    findings: tuple[CheckFinding, ...]
    without_live: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against the copy."""
        return all(finding.is_good is not False for finding in self.findings)

    @property
    def reason(self) -> Reason:
        """Why the condition is as it is."""
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
        """What was found; where something is wrong, that alone."""
        bad = [finding.message for finding in self.findings if finding.is_good is False]
        told = bad or [finding.message for finding in self.findings]
        return "; ".join((*told, self.without_live) if self.without_live else told)

    @property
    def state(self) -> ConditionState:
        """The condition `Verified`."""
        is_open = self.is_good and self.reason in (Reason.NOT_VERIFIED, Reason.NOT_RESTORABLE)
        return ConditionState(VERIFIED, None if is_open else self.is_good, self.reason, self.message)


def points_differ(check: Check, ids: Iterable[PointId], message: str, *, compared: int) -> CheckFinding:
    """The finding that some points are not as they have to be."""
    off = [str(id_) for id_ in ids]
    return CheckFinding(check, False, message, compared=compared, differing=len(off), ids=tuple(off[:SHOWN]))


def judge_missing(both: int, faults: Mapping[str, Sequence[PointId]], *, removed: int = 0) -> CheckFinding:
    """Judge which points one of two collections lacks.

    Args:
        both: points that are in both.
        faults: ids of points that are not where they have to be, by what is said of them.
        removed: points of the copy that are live no more.
    """
    off = [id_ for ids in faults.values() for id_ in ids]
    if not off:
        since = f", {removed} removed since" if removed else ""
        message = f"{both} points are in both{since}"
        return CheckFinding(Check.MISSING, True, message, compared=both + removed)
    told = [f"{len(ids)} points {what}: {first_of(map(str, ids))}" for what, ids in faults.items() if ids]
    return points_differ(Check.MISSING, off, "; ".join(told), compared=both + len(off))


def off_by(found: int, before: int, after: int, *, changed: int) -> int:
    """By how much a number lies outside of those counted before and after; 0 inside.

    Args:
        changed: what came or went between both counts. With c of these, at any moment there were b - c to a + c.
    """
    least, most = min(before, after) - changed, max(before, after) + changed
    return max(least - found, found - most, 0)


def judge_sample(compared: Compared, *, how: str = "bit for bit") -> CheckFinding:
    """Judge the points drawn.

    Args:
        how: equality is meant.
    """
    total = len(compared.equal) + len(compared.differing)
    since = f", {compared.changed} written since" if compared.changed else ""
    if compared.differing:
        told = first_of(f"{id_} ({', '.join(parts)})" for id_, parts in compared.differing)
        message = f"{len(compared.differing)} of {total} points differ: {told}{since}"
        return points_differ(Check.SAMPLE, (id_ for id_, _ in compared.differing), message, compared=total)
    if not total:
        return CheckFinding(Check.SAMPLE, None, f"no points to compare{since}")
    return CheckFinding(Check.SAMPLE, True, f"{total} points equal {how}{since}", compared=total)


def first_of(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


_FAULTS = {Check.CHECKSUM: Reason.CHECKSUM_DIFFERS, Check.RESTORE: Reason.NOT_RESTORABLE}
