"""What a verification compares, and what it says."""

from dataclasses import replace

import pytest

from agentmemory_operator.domain.conditions import State
from agentmemory_operator.domain.verification import (
    SKEW_MS,
    VERIFIED,
    Check,
    Finding,
    Recorded,
    Verdict,
    compare_checksum,
    compare_configuration,
    compare_count,
    compare_owner,
    hash_configuration,
    judge_missing,
    was_there,
)
from tests.support.plans import desired_of

LIVE = replace(desired_of(), strict_mode=(("enabled", True), ("max_query_limit", 100)))
MARKER = LIVE.marker
HASH = hash_configuration(LIVE)
WIDER = replace(LIVE, m=24)
LACKING = replace(LIVE, indexes=LIVE.indexes[1:])


@pytest.mark.parametrize(
    ("copy", "live", "recorded", "is_good", "words"),
    [
        (LIVE, LIVE, HASH, (True, True), "as recorded"),
        (LIVE, WIDER, HASH, (True, True), "as recorded"),
        (LIVE, None, HASH, (True, True), "as recorded"),
        (LIVE, LIVE, None, (True, True), "as the live ones"),
        (LIVE, None, None, (None, None), "no settings were recorded"),
        (WIDER, None, HASH, (False, None), "another hash"),
        (WIDER, LIVE, HASH, (False, True), "index.hnsw.m 24 instead of 16"),
        (WIDER, WIDER, HASH, (False, True), "not those recorded"),
        (LACKING, LIVE, HASH, (True, False), f"indexes differ from the live ones: {LIVE.indexes[0][0]}"),
        (LACKING, LIVE, None, (True, False), f"indexes differ from the live ones: {LIVE.indexes[0][0]}"),
    ],
)
def test_settings_and_indexes_have_to_be_those_recorded_else_the_live_ones(
    copy, live, recorded, is_good, words
) -> None:
    findings = compare_configuration(copy, live, recorded)

    assert tuple(finding.is_good for finding in findings) == is_good
    assert words in "; ".join(finding.message for finding in findings)


def test_a_marker_written_anew_is_no_other_configuration() -> None:
    assert hash_configuration(replace(LIVE, marker=replace(MARKER, generation=99))) == HASH
    assert hash_configuration(replace(LIVE, marker=None)) == HASH


@pytest.mark.parametrize("other", [WIDER, LACKING, replace(LIVE, quantization=None), replace(LIVE, has_keyword=True)])
def test_whatever_a_snapshot_carries_is_part_of_the_hash(other) -> None:
    assert hash_configuration(other) != HASH


@pytest.mark.parametrize(
    ("copy", "owner", "is_good"),
    [
        (MARKER, MARKER, True),
        (replace(MARKER, uid="recreated"), MARKER, True),
        (replace(MARKER, name="other"), MARKER, False),
        (replace(MARKER, cluster_id="other"), MARKER, False),
        (None, MARKER, None),
        (MARKER, None, None),
    ],
)
def test_a_snapshot_of_another_agent_is_found_out(copy, owner, is_good) -> None:
    assert compare_owner(copy, owner).is_good is is_good


@pytest.mark.parametrize(
    ("copied", "before", "after", "deleted", "is_good"),
    [
        (10, 10, 10, 0, True),
        (9, 10, 10, 0, False),
        (11, 10, 10, 0, False),
        (12, 10, 15, 0, True),
        (16, 10, 15, 0, False),
        (9, 10, 15, 1, True),
        (8, 10, 15, 1, False),
        (16, 10, 15, 1, True),
        (8, 10, 7, 3, True),
        (0, 10, 10, None, False),
        (10, 10, 10, None, True),
        (0, None, 0, 0, None),
    ],
)
def test_the_count_lies_between_those_before_and_after_unless_memories_were_deleted(
    copied, before, after, deleted, is_good
) -> None:
    assert compare_count(copied, Recorded(before=before, after=after), deleted).is_good is is_good


@pytest.mark.parametrize(
    ("updated_at", "was_in"),
    [(0, True), (1_000_000 - SKEW_MS, False), (1_000_000, False), (None, False), ("0", False), (True, False)],
)
def test_only_what_was_last_written_well_before_the_snapshot_has_to_be_in_it(updated_at, was_in) -> None:
    assert was_there(updated_at, 1_000_000) is was_in


def test_nothing_has_to_be_in_a_snapshot_of_an_unknown_time() -> None:
    assert not was_there(0, None)


def test_missing_points_are_counted_and_the_first_named() -> None:
    finding = judge_missing(7, ["a", "b", "c", "d"], removed=2)

    assert (finding.is_good, finding.differing, finding.ids) == (False, 4, ("a", "b", "c"))
    assert finding.message == "4 points that were there before it was made are missing: a, b, c and 1 more"


def test_points_removed_since_are_no_fault() -> None:
    assert judge_missing(7, [], removed=2) == Finding(
        check=Check.MISSING, is_good=True, message="7 points are in both, 2 were removed since", compared=9
    )


GOOD = Finding(check=Check.COUNT, is_good=True, message="7 memories")
BAD = Finding(check=Check.SAMPLE, is_good=False, message="1 of 7 points differ")
OPEN = Finding(check=Check.OWNER, is_good=None, message="no marker")


GONE = "the live collection is gone"
READ = Finding(check=Check.CHECKSUM, is_good=True, message="9 bytes read")
LATE = Finding(check=Check.RESTORE, is_good=False, message="the server does not restore it")


@pytest.mark.parametrize(
    ("verdict", "status", "reason", "message"),
    [
        (Verdict((GOOD,)), True, "Verified", "7 memories"),
        (Verdict((OPEN, GOOD)), True, "Verified", "no marker; 7 memories"),
        (Verdict((GOOD, BAD)), False, "CopyDiffers", "1 of 7 points differ"),
        (Verdict((GOOD,), GONE), True, "ComparedWithRecord", f"7 memories; {GONE}"),
        (Verdict((OPEN,), GONE), None, "NotVerified", f"no marker; {GONE}"),
        (Verdict((READ,)), True, "ChecksumMatches", "9 bytes read"),
        (Verdict((replace(READ, is_good=False),)), False, "ChecksumDiffers", "9 bytes read"),
        (Verdict((LATE,)), False, "NotRestorable", "the server does not restore it"),
        (
            Verdict((READ, replace(LATE, is_good=None))),
            None,
            "NotRestorable",
            "9 bytes read; the server does not restore it",
        ),
    ],
)
def test_a_condition_says_what_is_wrong_and_never_true_where_nothing_was_proven(
    verdict, status, reason, message
) -> None:
    assert verdict.state == State(VERIFIED, status, reason, message)


@pytest.mark.parametrize(
    ("recorded", "told", "is_good"),
    [
        ("aa", "aa", True),
        ("aa", None, True),
        (None, "aa", True),
        ("bb", "aa", False),
        ("aa", "bb", False),
        (None, None, None),
    ],
)
def test_the_bytes_have_to_be_those_recorded_and_those_that_the_server_tells_of(recorded, told, is_good) -> None:
    assert compare_checksum("aa", recorded=recorded, told=told, size=9).is_good is is_good
