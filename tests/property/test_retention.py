"""Retention of any set of snapshots: kept snapshots, and stable results."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.snapshots.rules.retention import (
    DAY_MS,
    KEEP_FAILED_DAYS,
    MAX_KEPT_FAILURES,
    Candidate,
    RetentionRules,
    judge,
)

NOW_MS = 1_795_000_000_000
# Times of the last two years, many in the last days, so that some periods have several snapshots and some one.
times = st.one_of(st.integers(NOW_MS - 10 * DAY_MS, NOW_MS), st.integers(NOW_MS - 800 * DAY_MS, NOW_MS))
figures = st.integers(0, 4)
rules_given = st.builds(
    RetentionRules,
    keep_last=figures,
    daily=figures,
    weekly=figures,
    monthly=figures,
    max_age_days=st.none() | st.integers(1, 400),
    time_zone=st.sampled_from(["Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
)
candidates = st.builds(
    Candidate,
    name=st.integers(0, 10_000).map(lambda number: f"s{number}"),
    time_ms=times,
    is_scheduled=st.sampled_from([True, True, True, False]),
    is_finished=st.sampled_from([True, True, True, False]),
    has_succeeded=st.sampled_from([True, True, False]),
    is_verified=st.sampled_from([True, True, None, False]),
    is_restorable=st.sampled_from([True, True, False, None]),
    is_pinned=st.sampled_from([False, False, False, True]),
    is_removing=st.sampled_from([False, False, False, False, True]),
    users=st.sampled_from([(), (), (), ("MemoryRestore undo",)]),
)
snapshot_lists = st.lists(candidates, max_size=40, unique_by=lambda snapshot: snapshot.name)


def kept_of(snapshots: list[Candidate], rules: RetentionRules, now_ms: int = NOW_MS) -> list[Candidate]:
    kept = {verdict.name for verdict in judge(snapshots, rules, now_ms=now_ms) if verdict.is_kept}
    return [snapshot for snapshot in snapshots if snapshot.name in kept]


@given(snapshot_lists, rules_given)
def test_kept_snapshots_are_kept_again(snapshots: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(snapshots, rules)

    assert kept_of(kept, rules) == kept


@given(snapshot_lists, rules_given, st.randoms(use_true_random=False))
def test_order_of_snapshots_does_not_matter(snapshots: list[Candidate], rules: RetentionRules, random: Random) -> None:
    mixed = list(snapshots)
    random.shuffle(mixed)

    assert judge(mixed, rules, now_ms=NOW_MS) == judge(snapshots, rules, now_ms=NOW_MS)


@given(snapshot_lists, rules_given)
def test_pinned_manual_used_and_running_are_kept(snapshots: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(snapshots, rules)

    for snapshot in snapshots:
        is_safe = snapshot.is_pinned or not snapshot.is_scheduled or not snapshot.is_finished
        assert snapshot in kept or not snapshot.users
        assert snapshot in kept or snapshot.is_removing or not is_safe


@given(snapshot_lists, rules_given)
def test_last_restorable_verified_is_kept(snapshots: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(snapshots, rules)
    proven = [
        snapshot
        for snapshot in snapshots
        if snapshot.has_succeeded and snapshot.is_verified and snapshot.is_finished and not snapshot.is_removing
    ]
    restorable = [snapshot for snapshot in proven if snapshot.is_restorable]

    if restorable:
        newest = max(snapshot.time_ms for snapshot in restorable)
        assert any(snapshot.time_ms == newest for snapshot in kept if snapshot in restorable)
    elif proven:
        assert any(snapshot in kept for snapshot in proven)


@given(snapshot_lists, rules_given)
def test_unknown_version_keeps_verified(snapshots: list[Candidate], rules: RetentionRules) -> None:
    unsure = [replace(snapshot, is_restorable=None) for snapshot in snapshots]

    kept = kept_of(unsure, rules)

    removed = [snapshot for snapshot in unsure if snapshot not in kept and not snapshot.is_removing]
    assert not [snapshot for snapshot in removed if snapshot.is_good and snapshot.is_verified]


@given(snapshot_lists, rules_given)
def test_each_snapshot_has_one_verdict_with_reasons(snapshots: list[Candidate], rules: RetentionRules) -> None:
    verdicts = judge(snapshots, rules, now_ms=NOW_MS)

    assert sorted(verdict.name for verdict in verdicts) == sorted(snapshot.name for snapshot in snapshots)
    assert all(verdict.text for verdict in verdicts)
    assert all(len(set(verdict.reasons)) == len(verdict.reasons) for verdict in verdicts)


@given(snapshot_lists, rules_given, st.integers(0, 400))
def test_removed_now_is_removed_later(snapshots: list[Candidate], rules: RetentionRules, days: int) -> None:
    """A late run removes at least as many; otherwise the result of a killed run would depend on its restart time."""
    rules = replace(rules, max_age_days=None)

    assert set(kept_of(snapshots, rules, NOW_MS + days * DAY_MS)) <= set(kept_of(snapshots, rules))


@given(snapshot_lists, rules_given)
def test_kept_count_is_limited_by_rules(snapshots: list[Candidate], rules: RetentionRules) -> None:
    good = [
        replace(
            snapshot,
            is_scheduled=True,
            is_finished=True,
            is_pinned=False,
            is_removing=False,
            users=(),
            is_restorable=True,
        )
        for snapshot in snapshots
    ]
    maximum = rules.keep_last + rules.daily + rules.weekly + rules.monthly
    kept = kept_of(good, rules)

    assert sum(snapshot.is_good for snapshot in kept) <= maximum + 2 or not maximum
    assert sum(not snapshot.is_good for snapshot in kept) <= MAX_KEPT_FAILURES


@given(snapshot_lists, rules_given)
def test_old_failure_is_removed_after_newer_success(snapshots: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(snapshots, rules)
    good = [
        snapshot.time_ms
        for snapshot in snapshots
        if snapshot.is_good and snapshot.is_scheduled and snapshot.is_finished and not snapshot.is_removing
    ]

    for snapshot in kept:
        if (
            not snapshot.is_good
            and not snapshot.users
            and not snapshot.is_pinned
            and snapshot.is_scheduled
            and snapshot.is_finished
        ):
            assert snapshot.time_ms >= max(good, default=0) or snapshot.time_ms >= NOW_MS - KEEP_FAILED_DAYS * DAY_MS
