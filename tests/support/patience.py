"""Timeouts of tests, which count only the time in which the machine could work.

A limit is the time on an idle machine. With a concurrent test run, or more workers than cores, everything takes longer.
Linux reports how long tasks waited for a CPU or a disk (`/proc/pressure`, https://docs.kernel.org/accounting/psi.html);
that time is not counted. Without such a report all time counts. In any case the wait ends after `MAX_EXTENSION` times
the limit.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")
PRESSURE = (pathlib.Path("/proc/pressure/cpu"), pathlib.Path("/proc/pressure/io"))
# Factor by which full load may extend a limit.
MAX_EXTENSION = 6.0
# A question to a server costs some milliseconds of CPU at both ends: the longer a wait, the rarer they are.
FIRST_PAUSE_S, PAUSE_GROWTH, LONGEST_PAUSE_S = 0.02, 1.2, 0.2


def stalled_s(pressure: pathlib.Path) -> float:
    """Return the seconds since boot in which some task waited for a resource; 0 if unknown."""
    try:
        some = pressure.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


class Patience:
    """A timeout that starts with its creation.

    Args:
        seconds: Limit on an idle machine.
        pressure: Files in which Linux reports stalls.
    """

    def __init__(self, seconds: float, *, pressure: tuple[pathlib.Path, ...] = PRESSURE) -> None:
        self._seconds = seconds
        self._pressure = pressure
        self._began = time.monotonic()
        self._stalled_before = self._stalled()

    @property
    def is_over(self) -> bool:
        """True once the limit is reached."""
        passed = time.monotonic() - self._began
        if passed <= self._seconds:
            return False
        stalled = self._stalled() - self._stalled_before
        return passed - stalled > self._seconds or passed > MAX_EXTENSION * self._seconds

    def _stalled(self) -> float:
        return sum(map(stalled_s, self._pressure))


def wait_until(holds: Callable[[], T | None], *, seconds: float, what: str = "the condition") -> T:
    """Return the first truthy value of `holds`.

    Args:
        holds: Called repeatedly. Transport errors are ignored.
        seconds: Limit on an idle machine; longer on a busy one (`Patience`).
        what: Description of the awaited condition.

    Raises:
        AssertionError: If the limit is reached; with `what` and the last value.
    """
    patience, pause_s = Patience(seconds), FIRST_PAUSE_S
    value: object = None
    while not patience.is_over:
        with contextlib.suppress(httpx.TransportError):
            if found := holds():
                return found
            value = found
        time.sleep(pause_s)
        pause_s = min(pause_s * PAUSE_GROWTH, LONGEST_PAUSE_S)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s; last seen: {value!r}")
