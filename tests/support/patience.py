"""How long a test waits for something: a limit counts the time that the machine had for it.

A limit of five seconds says what takes no longer on an idle machine. Beside another suite, or with more workers than
cores, everything takes longer and nothing is wrong. Linux tells how long tasks were kept waiting for a CPU or a disk
(`/proc/pressure`, https://docs.kernel.org/accounting/psi.html); that time does not count. Where it is not told, all
time counts. What is never going to happen is still noticed: after `MOST` times the limit by the clock.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")
PRESSURE = (pathlib.Path("/proc/pressure/cpu"), pathlib.Path("/proc/pressure/io"))
# At full load a limit becomes this many times as long, and no longer.
MOST = 6.0


def stalled_s(pressure: pathlib.Path) -> float:
    """Return how long some task could not run since the machine started, for want of one resource; 0 where unknown."""
    try:
        some = pressure.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


class Patience:
    """A limit that began when this was made.

    Args:
        seconds: what it takes at most on an idle machine.
        pressure: the files that Linux tells the stalls in.
    """

    def __init__(self, seconds: float, *, pressure: tuple[pathlib.Path, ...] = PRESSURE) -> None:
        self._seconds = seconds
        self._pressure = pressure
        self._began = time.monotonic()
        self._stalled_before = self._stalled()

    @property
    def is_over(self) -> bool:
        """Tell whether the limit was reached."""
        passed = time.monotonic() - self._began
        if passed <= self._seconds:
            return False
        stalled = self._stalled() - self._stalled_before
        return passed - stalled > self._seconds or passed > MOST * self._seconds

    def _stalled(self) -> float:
        return sum(map(stalled_s, self._pressure))


def wait_until(holds: Callable[[], T | None], *, seconds: float, what: str = "the condition") -> T:
    """Return the first truthy value of `holds`.

    Args:
        holds: what is asked again and again.
        seconds: how long it takes at most on an idle machine; on a busy one it is waited for longer (`Patience`).
        what: the thing that is waited for.

    Raises:
        AssertionError: there was none in time; tells `what` and the last value.
    """
    patience = Patience(seconds)
    value: object = None
    while not patience.is_over:
        with contextlib.suppress(httpx.TransportError):
            if found := holds():
                return found
            value = found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s; last seen: {value!r}")
