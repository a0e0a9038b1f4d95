"""Retention rules: the cases of tests/golden/retention.yaml."""

from datetime import datetime
from typing import Any

import pytest

from agentmemory_operator.snapshots.rules.retention import (
    MAX_KEPT_FAILURES,
    Candidate,
    RetentionRules,
    RetentionVerdict,
    judge,
)
from tests.support.spec.golden import read_table

CASES = read_table("retention.yaml")


def ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def candidate(name: str, given: dict[str, Any]) -> Candidate:
    rest = {key: tuple(value) if key == "users" else value for key, value in given.items() if key != "time"}
    return Candidate(name=name, time_ms=ms(given["time"]), **rest)


def reasons_of(verdict: RetentionVerdict) -> set[str]:
    """Return the reasons of a verdict as a set."""
    return {f"{'' if verdict.is_kept else 'gone: '}{reason}" for reason in verdict.reasons}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden_case(case: dict[str, Any]) -> None:
    given = [candidate(name, facts) for name, facts in case["snapshots"].items()]

    found = judge(given, RetentionRules(**case["rules"]), now_ms=ms(case["now"]))

    wanted = {name: set(text.split(", ")) for name, text in case["wanted"].items()}
    assert {verdict.name: reasons_of(verdict) for verdict in found} == wanted


def test_only_the_newest_failures_are_kept() -> None:
    """Without a limit, a server that is down for a year would leave one object for each scheduled time."""
    hour = 3_600_000
    row = [Candidate(name=f"s{n}", time_ms=n * hour, has_succeeded=False, is_verified=None) for n in range(50)]

    kept = [verdict.name for verdict in judge(row, RetentionRules(), now_ms=50 * hour) if verdict.is_kept]

    assert kept == [f"s{n}" for n in range(49, 49 - MAX_KEPT_FAILURES, -1)]


def test_reasons_are_joined_into_one_line() -> None:
    (verdict,) = judge(
        [Candidate(name="a", time_ms=0)], RetentionRules(keep_last=1, daily=0, weekly=0, monthly=0), now_ms=0
    )

    assert verdict.text == "the newest, the last verified snapshot that the server can restore, keepLast 1/1"
