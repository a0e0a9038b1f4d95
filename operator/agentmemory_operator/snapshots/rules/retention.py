"""Which snapshots of an agent stay and which go, each with every reason.

Pure, and the same whatever the order: what a run leaves, the next one leaves too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from agentmemory_operator.spec.schedule import zone_of

DAY_MS = 86_400_000
# Somebody will look at what failed; nobody at the eleventh of a row.
FAILED_DAYS = 7
FAILED_AT_MOST = 10


class Why(StrEnum):
    """Why a snapshot stays, or goes."""

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
    """One reason.

    Attributes:
        detail: which one, as the day of a daily one; empty where there is but one.
    """

    why: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.why} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What retention knows of a snapshot.

    Attributes:
        name: of its object.
        time_ms: the time of the schedule that it was made for, else when it was begun; Unix milliseconds.
        is_scheduled: whether retention may remove it.
        is_finished: whether its end has come, good or bad.
        has_succeeded: whether it was made.
        is_verified: None where nobody has tried.
        is_restorable: whether the running server can restore it; None where its version is not known.
        is_pinned: somebody wants it kept.
        is_going: its removal was begun; some of its bytes may be gone.
        users: restores and agents that name it, each as a person would.
    """

    name: str
    time_ms: int
    is_scheduled: bool = True
    is_finished: bool = True
    has_succeeded: bool = True
    is_verified: bool | None = True
    is_restorable: bool | None = True
    is_pinned: bool = False
    is_going: bool = False
    users: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether it was made, and not found to be bad."""
        return self.has_succeeded and self.is_verified is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The figures in force.

    Attributes:
        time_zone: whose days, weeks and months count.
    """

    keep_last: int = 4
    daily: int = 7
    weekly: int = 4
    monthly: int = 6
    max_age_days: int | None = None
    time_zone: str = "Etc/UTC"


@dataclass(frozen=True, slots=True)
class RetentionVerdict:
    """What becomes of one snapshot.

    Attributes:
        reasons: why it stays, else why it goes; one at least.
    """

    name: str
    is_kept: bool
    reasons: tuple[KeepReason, ...]

    @property
    def text(self) -> str:
        """The reasons for people, as `daily 2026-11-22, weekly 2026-W47`."""
        return ", ".join(map(str, self.reasons))


@dataclass(slots=True)
class _Case:
    """All snapshots of an agent, newest first, and what was found out so far."""

    ordered: Sequence[Candidate]
    rules: RetentionRules
    now_ms: int
    keeps: dict[str, list[KeepReason]] = field(default_factory=dict)

    def keep(self, candidate: Candidate, why: Why, detail: str = "") -> None:
        self.keeps.setdefault(candidate.name, []).append(KeepReason(why, detail))

    @property
    def subjects(self) -> list[Candidate]:
        """Those that retention decides about."""
        return [one for one in self.ordered if one.is_scheduled and one.is_finished and not one.is_going]

    def is_old(self, candidate: Candidate, days: int | None) -> bool:
        return days is not None and candidate.time_ms < self.now_ms - days * DAY_MS


def judge(candidates: Sequence[Candidate], rules: RetentionRules, *, now_ms: int) -> tuple[RetentionVerdict, ...]:
    """What becomes of each snapshot of one agent, newest first.

    Rules, of which any keeps: a pin; who uses it; not of the schedule; not finished; the newest good one; the newest
    verified one that the running server can restore (where there is none, the newest verified one); while it is not
    older than `max_age_days`: `keep_last`, and the newest one, verified if there is such a one, of each of the newest
    days, ISO weeks and months that have any. Without any of these figures all stay until they are too old. Those that
    failed or proved bad stay for a week and until a newer one is good, the newest ten of them.
    """
    case = _Case(sorted(candidates, key=_age, reverse=True), rules, now_ms)
    for candidate in case.ordered:
        _keep_untouchable(case, candidate)
    _keep_last_resorts(case)
    _keep_by_figures(case)
    _keep_failures(case)
    return tuple(_verdict(case, candidate) for candidate in case.ordered)


def _age(candidate: Candidate) -> tuple[int, str]:
    return candidate.time_ms, candidate.name


def _keep_untouchable(case: _Case, candidate: Candidate) -> None:
    for user in candidate.users:
        case.keep(candidate, Why.IN_USE, user)
    if candidate.is_going:
        # Its bytes may be gone: nothing but a reader that has them open keeps it from its end.
        return
    if candidate.is_pinned:
        case.keep(candidate, Why.PINNED)
    if not candidate.is_scheduled:
        case.keep(candidate, Why.MANUAL)
    if not candidate.is_finished:
        case.keep(candidate, Why.RUNNING)


def _keep_last_resorts(case: _Case) -> None:
    """Keep what an agent must not be without."""
    good = [one for one in case.subjects if one.is_good]
    verified = [one for one in good if one.is_verified]
    for newest in good[:1]:
        case.keep(newest, Why.NEWEST)
    for last in [one for one in verified if one.is_restorable][:1] or verified[:1]:
        case.keep(last, Why.LAST_VERIFIED)
    for unsure in verified:
        if unsure.is_restorable is None:
            case.keep(unsure, Why.VERSION_UNKNOWN)


def _keep_by_figures(case: _Case) -> None:
    rules = case.rules
    young = [one for one in case.subjects if one.is_good and not case.is_old(one, rules.max_age_days)]
    if not (rules.keep_last or rules.daily or rules.weekly or rules.monthly):
        for one in young:
            case.keep(one, Why.NO_LIMIT)
    for number, one in enumerate(young[: rules.keep_last], start=1):
        case.keep(one, Why.KEEP_LAST, f"{number}/{rules.keep_last}")
    for why, number, label in _periods(rules):
        for chosen, period in _newest_of_each(young, number, label):
            case.keep(chosen, why, period)


def _periods(rules: RetentionRules) -> tuple[tuple[Why, int, Callable[[Candidate], str]], ...]:
    zone = zone_of(rules.time_zone)

    def formatted(pattern: str) -> Callable[[Candidate], str]:
        return lambda one: datetime.fromtimestamp(one.time_ms / 1000, zone).strftime(pattern)

    return (
        (Why.DAILY, rules.daily, formatted("%Y-%m-%d")),
        # The year that the week belongs to: 1 January 2027 lies in 2026-W53.
        (Why.WEEKLY, rules.weekly, formatted("%G-W%V")),
        (Why.MONTHLY, rules.monthly, formatted("%Y-%m")),
    )


def _newest_of_each(
    ordered: Sequence[Candidate], number: int, label: Callable[[Candidate], str]
) -> Iterator[tuple[Candidate, str]]:
    """Yield the one that stands for each of the newest periods that have any, and the period's name."""
    periods: dict[str, list[Candidate]] = {}
    for one in ordered:
        periods.setdefault(label(one), []).append(one)
    for period, members in list(periods.items())[:number]:
        yield next((one for one in members if one.is_verified), members[0]), period


def _keep_failures(case: _Case) -> None:
    failed = [one for one in case.subjects if not one.is_good]
    newest_good_ms = max((one.time_ms for one in case.subjects if one.is_good), default=-1)
    for one in failed[:FAILED_AT_MOST]:
        if one.time_ms > newest_good_ms:
            case.keep(one, Why.FAILED_LAST)
        if not case.is_old(one, FAILED_DAYS):
            case.keep(one, Why.FAILED_LATELY)


def _verdict(case: _Case, candidate: Candidate) -> RetentionVerdict:
    keeps = case.keeps.get(candidate.name)
    if keeps:
        return RetentionVerdict(candidate.name, True, tuple(keeps))
    if candidate.is_going:
        why = KeepReason(Why.GOING)
    elif not candidate.is_good:
        why = KeepReason(Why.FAILED)
    elif case.is_old(candidate, case.rules.max_age_days):
        why = KeepReason(Why.TOO_OLD, str(case.rules.max_age_days))
    else:
        why = KeepReason(Why.NOT_KEPT)
    return RetentionVerdict(candidate.name, False, (why,))
