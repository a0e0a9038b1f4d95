"""Findings of a verification, and their messages."""

from dataclasses import replace

import pytest

from agentmemory_operator.memories.rules.comparison import SampleResult
from agentmemory_operator.memories.rules.findings import (
    VERIFIED_CONDITION,
    Check,
    CheckFinding,
    VerificationVerdict,
    distance_from_range,
    judge_missing,
    judge_sample,
)
from agentmemory_operator.spec.kinds.conditions import ConditionState


@pytest.mark.parametrize(
    ("compared", "is_good", "message"),
    [
        (SampleResult(equal=("a", "b"), changed=0, differing=()), True, "2 points equal bit for bit"),
        (SampleResult(equal=(), changed=3, differing=()), None, "no points to compare, 3 written since"),
        (
            SampleResult(equal=("a",), changed=1, differing=(("b", ("content",)), ("c", ("tags", "vector")))),
            False,
            "2 of 3 points differ: b (content), c (tags, vector), 1 written since",
        ),
        (
            SampleResult(equal=(), changed=0, differing=tuple((id_, ("vector",)) for id_ in "abcde")),
            False,
            "5 of 5 points differ: a (vector), b (vector), c (vector) and 2 more",
        ),
    ],
)
def test_sample_finding_names_fields_not_contents(compared, is_good, message) -> None:
    finding = judge_sample(compared)

    assert (finding.is_good, finding.message) == (is_good, message)


def test_missing_points_are_counted_with_examples() -> None:
    faults = {"from before the snapshot are missing": ["a", "b", "c", "d"]}

    finding = judge_missing(7, faults, removed=2)

    assert (finding.is_good, finding.differing, finding.ids) == (False, 4, ("a", "b", "c"))
    assert finding.message == "4 points from before the snapshot are missing: a, b, c and 1 more"


def test_each_fault_is_in_the_message() -> None:
    finding = judge_missing(4, {"are missing": ["a"], "are older": [], "are too much": [7, "c"]})

    assert (finding.is_good, finding.ids) == (False, ("a", "7", "c"))
    assert finding.message == "1 points are missing: a; 2 points are too much: 7, c"


@pytest.mark.parametrize(
    ("found", "before", "after", "changed", "off"),
    [
        (5, 5, 5, 0, 0),
        (4, 5, 5, 0, 1),
        (7, 5, 5, 0, 2),
        (6, 5, 7, 0, 0),
        (6, 7, 5, 0, 0),
        (3, 5, 7, 1, 1),
        (8, 5, 7, 1, 0),
    ],
)
def test_distance_outside_range_allows_changes(found, before, after, changed, off) -> None:
    assert distance_from_range(found, before, after, changed=changed) == off


def test_removed_points_are_no_fault() -> None:
    assert judge_missing(7, {}, removed=2) == CheckFinding(
        check=Check.MISSING, is_good=True, message="7 points are in both, 2 removed since", compared=9
    )


GOOD = CheckFinding(check=Check.COUNT, is_good=True, message="7 memories")
BAD = CheckFinding(check=Check.SAMPLE, is_good=False, message="1 of 7 points differ")
OPEN = CheckFinding(check=Check.OWNER, is_good=None, message="no marker")


GONE = "the live collection is gone"
READ = CheckFinding(check=Check.CHECKSUM, is_good=True, message="9 bytes read")
LATE = CheckFinding(check=Check.RESTORE, is_good=False, message="the server does not restore it")


@pytest.mark.parametrize(
    ("verdict", "status", "reason", "message"),
    [
        (VerificationVerdict((GOOD,)), True, "Verified", "7 memories"),
        (VerificationVerdict((OPEN, GOOD)), True, "Verified", "no marker; 7 memories"),
        (VerificationVerdict((GOOD, BAD)), False, "CopyDiffers", "1 of 7 points differ"),
        (VerificationVerdict((GOOD,), GONE), True, "ComparedWithRecord", f"7 memories; {GONE}"),
        (VerificationVerdict((OPEN,), GONE), None, "NotVerified", f"no marker; {GONE}"),
        (VerificationVerdict((READ,)), True, "ChecksumMatches", "9 bytes read"),
        (VerificationVerdict((replace(READ, is_good=False),)), False, "ChecksumDiffers", "9 bytes read"),
        (VerificationVerdict((LATE,)), False, "NotRestorable", "the server does not restore it"),
        (
            VerificationVerdict((READ, replace(LATE, is_good=None))),
            None,
            "NotRestorable",
            "9 bytes read; the server does not restore it",
        ),
    ],
)
def test_condition_is_never_true_without_proof(verdict, status, reason, message) -> None:
    assert verdict.state == ConditionState(VERIFIED_CONDITION, status, reason, message)
