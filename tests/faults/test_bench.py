"""The benchmarks run from one command and print their tables. The sets are too small for meaningful figures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Alone, a benchmark takes up to two minutes; next to another suite, ten.
HUNG_S = 1500


@pytest.mark.faults
@pytest.mark.timeout(HUNG_S + 60)
def test_bench_measures_small_set_in_both_tables() -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--size", "2000", "--searches", "50"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert run.returncode == 0, run.stderr
    rows = [line.split("|")[1:-1] for line in run.stdout.splitlines() if line.startswith("| 2,000 |")]
    assert [row[1].strip() for row in rows] == ["1", "100"]
    assert [float(row[-1]) for row in rows] == [1.0, 1.0], "sets this small are scored whole, so nothing may be missed"
    assert re.search(r"^\| memories stored a second", run.stdout, re.MULTILINE)
    assert re.search(r"^\| changed weights to effect", run.stdout, re.MULTILINE)


@pytest.mark.faults
@pytest.mark.timeout(HUNG_S + 60)
def test_short_soak_loses_nothing() -> None:
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.3", "--restarts", "2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| acknowledged and lost | 0 |" in run.stdout
    assert "| there twice, or never acknowledged | 0 |" in run.stdout


@pytest.mark.faults
@pytest.mark.timeout(HUNG_S + 60)
def test_load_counts_cost_of_api() -> None:
    command = [sys.executable, "-m", "bench.load", "--requests", "500", "--size", "1000"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert run.returncode == 0, run.stderr
    assert "| searches; failed | 500; 0 |" in run.stdout


@pytest.mark.faults
@pytest.mark.timeout(HUNG_S + 60)
def test_operator_bench_finds_no_idle_writes() -> None:
    command = [sys.executable, "-m", "bench.objects", "--objects", "30", "--idle-minutes", "0.2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert run.returncode == 0, run.stderr
    lines = [line.split("|")[1:-1] for line in run.stdout.splitlines() if line.startswith("| ")]
    figures = {row[0].strip(): row[1].strip() for row in lines}
    quiet = [measured for what, measured in figures.items() if what.startswith("writes ")]
    assert quiet == ["0 / 0", "0 / 0"]
    assert any(what.startswith("30 objects from nothing to Ready") for what in figures)
    assert any(what.startswith("one changed of 30 objects") for what in figures)
    assert any(what.startswith("CPU for each of them: agentmemory operator") for what in figures)
