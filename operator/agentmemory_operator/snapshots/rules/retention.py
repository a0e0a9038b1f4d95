"""Decide which snapshots of an agent are kept and which are removed, each with every reason.

Pure, and independent of the order of the input. Idempotent: if the removed snapshots are left out and nothing else
changes, the same snapshots are kept again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from agentmemory_operator.spec.cron import zone_of

DAY_MS = 86_400_000
# Days and number of failed snapshots to keep. Users need recent failures for diagnosis. More than ten add nothing.
KEEP_FAILED_DAYS = 7
MAX_KEPT_FAILURES = 10


class RetentionReason(StrEnum):
    """Reason to keep or remove a snapshot; its value is shown to users."""

    PINNED = "pinned"
    MANUAL = "not taken by the schedule"
    IN_USE = "in use by"
    RUNNING = "not finished"
    NEWEST = "the newest"
    LAST_VERIFIED = "the last verified snapshot that the server can restore"
    VERSION_UNKNOWN = "the server's version is not known"
    NO_LIMIT = "retention has no limit"
    KEEP_LAST = "keepLast"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    FAILED_LATELY = "failed lately"
    FAILED_LAST = "no newer snapshot succeeded"
    TOO_OLD = "older than maxAgeDays"
    NOT_KEPT = "no rule keeps it"
    FAILED = "failed"
    GOING = "being removed"


@dataclass(frozen=True, slots=True)
class KeepReason:
    """One reason of a verdict, to keep or to remove.

    Attributes:
        detail: Details for users, such as the day of a daily snapshot; "" if there are none.
    """

    reason: RetentionReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Facts about a snapshot that retention decides by.

    Attributes:
        time_ms: Time of the schedule that it was created for, else its start; Unix milliseconds.
        is_scheduled: True if retention may remove it.
        is_finished: True if it has succeeded or failed.
        has_succeeded: True if it was created.
        is_verified: Result of the verification; None if there is none.
        is_restorable: True if the running server can restore it; None if a version is unknown.
        is_pinned: True if a user pinned it.
        is_removing: True if its removal has started. Some of its files may be deleted.
        users: Restores and agents that need it, each as kind and name.
    """

    name: str
    time_ms: int
    is_scheduled: bool = True
    is_finished: bool = True
    has_succeeded: bool = True
    is_verified: bool | None = True
    is_restorable: bool | None = True
    is_pinned: bool = False
    is_removing: bool = False
    users: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """True if it was created and did not fail verification."""
        return self.has_succeeded and self.is_verified is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """Limits by which an agent's snapshots are kept, with their defaults.

    Attributes:
        keep_last: Number of newest snapshots to keep.
        daily, weekly, monthly: Number of newest days, ISO weeks and months with snapshots, of which one each is kept.
        max_age_days: Age after which these limits keep no snapshot; None for no maximum.
        time_zone: IANA name of the time zone of the days, weeks and months.
    """

    keep_last: int = 4
    daily: int = 7
    weekly: int = 4
    monthly: int = 6
    max_age_days: int | None = None
    time_zone: str = "Etc/UTC"


@dataclass(frozen=True, slots=True)
class RetentionVerdict:
    """Decision on one snapshot.

    Attributes:
        reasons: Reasons to keep it, else the reason to remove it; at least one.
    """

    name: str
    is_kept: bool
    reasons: tuple[KeepReason, ...]

    @property
    def text(self) -> str:
        """The reasons for users, such as `daily 2026-11-22, weekly 2026-W47`."""
        return ", ".join(map(str, self.reasons))


@dataclass(slots=True)
class _Case:
    """All snapshots of an agent, newest first, and the reasons found so far."""

    ordered: Sequence[Candidate]
    rules: RetentionRules
    now_ms: int
    keeps: dict[str, list[KeepReason]] = field(default_factory=dict)

    def keep(self, candidate: Candidate, reason: RetentionReason, detail: str = "") -> None:
        self.keeps.setdefault(candidate.name, []).append(KeepReason(reason, detail))

    @property
    def subjects(self) -> list[Candidate]:
        """Scheduled, finished snapshots whose removal has not started: only these can be removed."""
        return [item for item in self.ordered if item.is_scheduled and item.is_finished and not item.is_removing]

    def is_old(self, candidate: Candidate, days: int | None) -> bool:
        return days is not None and candidate.time_ms < self.now_ms - days * DAY_MS


def judge(candidates: Sequence[Candidate], rules: RetentionRules, *, now_ms: int) -> tuple[RetentionVerdict, ...]:
    """Return the verdict on each snapshot of one agent, newest first.

    A snapshot is kept if any of these rules applies. From the third rule on, only scheduled, finished snapshots count.
    - A restore or an agent needs it.
    - It is pinned, not scheduled, or not finished.
    - It is the newest good one, or the newest verified one that the running server can restore. If the server can
      restore none, it is the newest verified one.
    - It is verified, and a version is unknown.
    - It is good, not older than `max_age_days`, and among the newest `keep_last`.
    - It is good, not older than `max_age_days`, and the newest of one of the newest days, ISO weeks or months with
      snapshots. Within a period, a verified one takes precedence.
    - It is good, not older than `max_age_days`, and all of these limits are 0.
    - It failed, or failed verification; it is one of the newest ten such, and less than a week old or newer than any
      good one.

    Only the first rule applies to a snapshot whose removal has started.
    """
    newest_first = sorted(candidates, key=lambda candidate: (candidate.time_ms, candidate.name), reverse=True)
    case = _Case(newest_first, rules, now_ms)
    for candidate in case.ordered:
        _keep_untouchable(case, candidate)
    _keep_last_resorts(case)
    _keep_by_figures(case)
    _keep_failures(case)
    return tuple(_verdict(case, candidate) for candidate in case.ordered)


def _keep_untouchable(case: _Case, candidate: Candidate) -> None:
    for user in candidate.users:
        case.keep(candidate, RetentionReason.IN_USE, user)
    if candidate.is_removing:
        # Only users delay a removal that has started, because some of the files may be deleted already.
        return
    if candidate.is_pinned:
        case.keep(candidate, RetentionReason.PINNED)
    if not candidate.is_scheduled:
        case.keep(candidate, RetentionReason.MANUAL)
    if not candidate.is_finished:
        case.keep(candidate, RetentionReason.RUNNING)


def _keep_last_resorts(case: _Case) -> None:
    """Keep the newest good snapshot, the newest verified restorable one, and all verified ones of unknown version."""
    good = [candidate for candidate in case.subjects if candidate.is_good]
    verified = [candidate for candidate in good if candidate.is_verified]
    for newest in good[:1]:
        case.keep(newest, RetentionReason.NEWEST)
    for last_verified in [candidate for candidate in verified if candidate.is_restorable][:1] or verified[:1]:
        case.keep(last_verified, RetentionReason.LAST_VERIFIED)
    for unknown in verified:
        if unknown.is_restorable is None:
            case.keep(unknown, RetentionReason.VERSION_UNKNOWN)


def _keep_by_figures(case: _Case) -> None:
    rules = case.rules
    recent = [item for item in case.subjects if item.is_good and not case.is_old(item, rules.max_age_days)]
    if not (rules.keep_last or rules.daily or rules.weekly or rules.monthly):
        for item in recent:
            case.keep(item, RetentionReason.NO_LIMIT)
    for number, item in enumerate(recent[: rules.keep_last], start=1):
        case.keep(item, RetentionReason.KEEP_LAST, f"{number}/{rules.keep_last}")
    for reason, number, label in _periods(rules):
        for candidate, period in _newest_of_each(recent, number, label):
            case.keep(candidate, reason, period)


def _periods(rules: RetentionRules) -> tuple[tuple[RetentionReason, int, Callable[[Candidate], str]], ...]:
    zone = zone_of(rules.time_zone)

    def formatted(pattern: str) -> Callable[[Candidate], str]:
        return lambda candidate: datetime.fromtimestamp(candidate.time_ms / 1000, zone).strftime(pattern)

    return (
        (RetentionReason.DAILY, rules.daily, formatted("%Y-%m-%d")),
        # %G is the year of the ISO week: 1 January 2027 is in 2026-W53.
        (RetentionReason.WEEKLY, rules.weekly, formatted("%G-W%V")),
        (RetentionReason.MONTHLY, rules.monthly, formatted("%Y-%m")),
    )


def _newest_of_each(
    ordered: Sequence[Candidate], number: int, label: Callable[[Candidate], str]
) -> Iterator[tuple[Candidate, str]]:
    """Yield the snapshot to keep for each of the newest `number` periods with a snapshot, and the period's name.

    The newest verified snapshot of the period is kept, or its newest snapshot if none is verified.
    """
    periods: dict[str, list[Candidate]] = {}
    for candidate in ordered:
        periods.setdefault(label(candidate), []).append(candidate)
    for period, members in list(periods.items())[:number]:
        yield next((candidate for candidate in members if candidate.is_verified), members[0]), period


def _keep_failures(case: _Case) -> None:
    failed = [candidate for candidate in case.subjects if not candidate.is_good]
    newest_good_ms = max((candidate.time_ms for candidate in case.subjects if candidate.is_good), default=-1)
    for candidate in failed[:MAX_KEPT_FAILURES]:
        if candidate.time_ms > newest_good_ms:
            case.keep(candidate, RetentionReason.FAILED_LAST)
        if not case.is_old(candidate, KEEP_FAILED_DAYS):
            case.keep(candidate, RetentionReason.FAILED_LATELY)


def _verdict(case: _Case, candidate: Candidate) -> RetentionVerdict:
    reasons = case.keeps.get(candidate.name)
    if reasons:
        return RetentionVerdict(candidate.name, True, tuple(reasons))
    if candidate.is_removing:
        reason = KeepReason(RetentionReason.GOING)
    elif not candidate.is_good:
        reason = KeepReason(RetentionReason.FAILED)
    elif case.is_old(candidate, case.rules.max_age_days):
        reason = KeepReason(RetentionReason.TOO_OLD, str(case.rules.max_age_days))
    else:
        reason = KeepReason(RetentionReason.NOT_KEPT)
    return RetentionVerdict(candidate.name, False, (reason,))
