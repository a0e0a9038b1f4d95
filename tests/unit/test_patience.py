"""Timeouts of tests: extended by CPU stalls, up to a limit."""

import pathlib
import time

import pytest

from tests.support.patience import MAX_EXTENSION, Patience, stalled_s


class Machine:
    """Clock and pressure file of a fake Linux machine."""

    def __init__(self, pressure: pathlib.Path) -> None:
        self.pressure = pressure
        self.now, self._stalled = 100.0, 7.0
        self.passes(0, stalled=0)

    def passes(self, seconds: float, *, stalled: float) -> None:
        self.now += seconds
        self._stalled += stalled
        averages = "avg10=0.00 avg60=0.00 avg300=0.00 total="
        self.pressure.write_text(f"some {averages}{int(self._stalled * 1e6)}\nfull {averages}0\n")


@pytest.fixture
def machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    fake = Machine(tmp_path / "cpu")
    monkeypatch.setattr(time, "monotonic", lambda: fake.now)
    return fake


@pytest.mark.parametrize(
    ("passed", "stalled", "is_over"),
    [
        pytest.param(4.9, 0.0, False, id="not yet"),
        pytest.param(5.1, 0.0, True, id="over on an idle machine"),
        pytest.param(30.0, 26.0, False, id="stalled most of the time"),
        pytest.param(30.0, 24.0, True, id="stalled too little"),
        pytest.param(5.0 * MAX_EXTENSION - 1, 5.0 * MAX_EXTENSION - 1, False, id="stalled all the time"),
        pytest.param(
            5.0 * MAX_EXTENSION + 1, 5.0 * MAX_EXTENSION + 1, True, id="stalled all the time, beyond the limit"
        ),
    ],
)
def test_stalled_time_does_not_count(machine: Machine, passed: float, stalled: float, is_over: bool) -> None:
    patience = Patience(5.0, pressure=(machine.pressure,))

    machine.passes(passed, stalled=stalled)

    assert patience.is_over is is_over


@pytest.mark.parametrize("content", ["", "none of it", "some total=x\n"])
def test_unreadable_pressure_counts_all_time(machine: Machine, content: str) -> None:
    machine.pressure.write_text(content)
    patience = Patience(5.0, pressure=(machine.pressure,))
    machine.now += 5.1

    assert patience.is_over
    assert stalled_s(machine.pressure.with_name("absent")) == 0.0
