"""Histories of many clients while everything is moved, killed and stopped: what was answered is true, whatever comes.

`HISTORY_SECONDS` and `HISTORY_SEEDS` (numbers with commas) run others, for as long as one likes; see README.md.
"""

import os
import pathlib

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.history.run import Plan, run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

SECONDS = float(os.environ.get("HISTORY_SECONDS", "60"))
SEEDS = [int(seed) for seed in os.environ.get("HISTORY_SEEDS", "1,2").split(",")]
REST_S = 1800


@pytest.mark.timeout(SECONDS + REST_S)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_answer_of_a_history_is_untrue(control_plane: ControlPlane, tmp_path: pathlib.Path, seed: int) -> None:
    report = run(control_plane, tmp_path, Plan(seed=seed, seconds=SECONDS))

    assert report.is_clean
    assert report.moves.total() > 0
    assert report.breaks.total() > 0


def test_a_conflict_that_took_effect_is_found(control_plane: ControlPlane, tmp_path: pathlib.Path) -> None:
    """API processes that look elsewhere for what they wrote, as they once did where an alias had moved."""
    plan = Plan(seed=1, seconds=30, plant="conflict", moves=("rebuild",), breaks=())
    report = run(control_plane, tmp_path, plan)

    assert report.refused_kept > 0
