"""Histories of many clients during moves, kills and pauses: every response must be consistent with the history.

`HISTORY_SECONDS` and `HISTORY_SEEDS` (numbers with commas) select other histories; see README.md.
"""

import os
import pathlib

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.history.run import Plan, run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

SECONDS = float(os.environ.get("HISTORY_SECONDS", "30"))
SEEDS = [int(seed) for seed in os.environ.get("HISTORY_SEEDS", "1,2").split(",")]
REST_S = 1800


@pytest.mark.timeout(SECONDS + REST_S)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_is_consistent(control_plane: ControlPlane, tmp_path: pathlib.Path, seed: int) -> None:
    report = run(control_plane, tmp_path, Plan(seed=seed, seconds=SECONDS))

    assert report.is_clean
    assert report.moves.total() > 0
    assert report.breaks.total() > 0


def test_planted_conflict_is_found(control_plane: ControlPlane, tmp_path: pathlib.Path) -> None:
    """The API processes report a conflict for a write that took effect, like an earlier bug after a moved alias."""
    plan = Plan(seed=1, seconds=30, plant="conflict", moves=("rebuild",), breaks=())
    report = run(control_plane, tmp_path, plan)

    assert report.refused_kept > 0
