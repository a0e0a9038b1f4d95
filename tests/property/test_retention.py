"""Whatever snapshots there are: what retention never does, and that it comes to rest."""

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
# Around two years back, thick in the last days, so that days, weeks and months have several and one.
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
herds = st.lists(candidates, max_size=40, unique_by=lambda one: one.name)


def kept_of(herd: list[Candidate], rules: RetentionRules, now_ms: int = NOW_MS) -> list[Candidate]:
    kept = {verdict.name for verdict in judge(herd, rules, now_ms=now_ms) if verdict.is_kept}
    return [one for one in herd if one.name in kept]


@given(herds, rules_given)
def test_what_was_kept_is_kept_again(herd: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(herd, rules)

    assert kept_of(kept, rules) == kept


@given(herds, rules_given, st.randoms(use_true_random=False))
def test_the_order_of_the_snapshots_does_not_matter(
    herd: list[Candidate], rules: RetentionRules, random: Random
) -> None:
    mixed = list(herd)
    random.shuffle(mixed)

    assert judge(mixed, rules, now_ms=NOW_MS) == judge(herd, rules, now_ms=NOW_MS)


@given(herds, rules_given)
def test_a_pin_a_hand_a_reader_and_a_run_under_way_keep_whatever_the_figures_say(
    herd: list[Candidate], rules: RetentionRules
) -> None:
    kept = kept_of(herd, rules)

    for one in herd:
        is_safe = one.is_pinned or not one.is_scheduled or not one.is_finished
        assert one in kept or not one.users
        assert one in kept or one.is_removing or not is_safe


@given(herds, rules_given)
def test_the_last_verified_one_that_the_server_can_restore_stays(herd: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(herd, rules)
    proven = [one for one in herd if one.has_succeeded and one.is_verified and one.is_finished and not one.is_removing]
    restorable = [one for one in proven if one.is_restorable]

    if restorable:
        newest = max(one.time_ms for one in restorable)
        assert any(one.time_ms == newest for one in kept if one in restorable)
    elif proven:
        assert any(one in kept for one in proven)


@given(herds, rules_given)
def test_while_nothing_is_known_of_the_version_nothing_proven_goes(
    herd: list[Candidate], rules: RetentionRules
) -> None:
    unsure = [replace(one, is_restorable=None) for one in herd]

    kept = kept_of(unsure, rules)

    gone = [one for one in unsure if one not in kept and not one.is_removing]
    assert not [one for one in gone if one.is_good and one.is_verified]


@given(herds, rules_given)
def test_each_has_a_reason_and_is_told_of_once(herd: list[Candidate], rules: RetentionRules) -> None:
    verdicts = judge(herd, rules, now_ms=NOW_MS)

    assert sorted(verdict.name for verdict in verdicts) == sorted(one.name for one in herd)
    assert all(verdict.text for verdict in verdicts)
    assert all(len(set(verdict.reasons)) == len(verdict.reasons) for verdict in verdicts)


@given(herds, rules_given, st.integers(0, 400))
def test_what_goes_now_goes_later_too(herd: list[Candidate], rules: RetentionRules, days: int) -> None:
    """A run that comes late removes no less; else what a killed run left would depend on when it goes on."""
    rules = replace(rules, max_age_days=None)

    assert set(kept_of(herd, rules, NOW_MS + days * DAY_MS)) <= set(kept_of(herd, rules))


@given(herds, rules_given)
def test_there_are_never_more_than_the_figures_say(herd: list[Candidate], rules: RetentionRules) -> None:
    good = [
        replace(one, is_scheduled=True, is_finished=True, is_pinned=False, is_removing=False, users=(), is_restorable=True)
        for one in herd
    ]
    most = rules.keep_last + rules.daily + rules.weekly + rules.monthly
    kept = kept_of(good, rules)

    assert sum(one.is_good for one in kept) <= most + 2 or not most
    assert sum(not one.is_good for one in kept) <= MAX_KEPT_FAILURES


@given(herds, rules_given)
def test_nothing_that_failed_long_ago_outlives_a_newer_success(herd: list[Candidate], rules: RetentionRules) -> None:
    kept = kept_of(herd, rules)
    good = [one.time_ms for one in herd if one.is_good and one.is_scheduled and one.is_finished and not one.is_removing]

    for one in kept:
        if not one.is_good and not one.users and not one.is_pinned and one.is_scheduled and one.is_finished:
            assert one.time_ms >= max(good, default=0) or one.time_ms >= NOW_MS - KEEP_FAILED_DAYS * DAY_MS
