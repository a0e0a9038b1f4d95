"""A command of `agentmemory` with a shifted clock and a planted fault. Run it as a module.

| variable | |
|---|---|
| `HISTORY_AHEAD_S` | seconds by which SIGUSR1 sets the wall clock ahead, and the next SIGUSR1 back |
| `HISTORY_PLANT` | `conflict`: some stores that supersede a memory succeed, but get the response 409 |
"""

import itertools
import os
import signal
import time
from typing import Any

AHEAD, PLANT = "HISTORY_AHEAD_S", "HISTORY_PLANT"


class Clock:
    """Wall clock of this process."""

    def __init__(self, ahead_s: float) -> None:
        self._real_s, self._real_ns = time.time, time.time_ns
        self._ahead_s, self._is_ahead = ahead_s, False

    def install(self) -> None:
        """Replace the clock functions of the `time` module."""
        time.time = lambda: self._real_s() + self._now_ahead_s
        time.time_ns = lambda: self._real_ns() + int(self._now_ahead_s * 1_000_000_000)
        signal.signal(signal.SIGUSR1, self._jump)

    @property
    def _now_ahead_s(self) -> float:
        return self._ahead_s if self._is_ahead else 0.0

    def _jump(self, *_: object) -> None:
        self._is_ahead = not self._is_ahead


def plant_conflict() -> None:
    """Let every fifth superseding store not find the row that it has just written, as after a move of the alias.

    The store gets the response 409. Its memory becomes visible once another request completes the pending row.
    """
    from agentmemory_operator.memories import remember

    whole, looks = remember.read_row, itertools.count(1)

    async def read_row(agent: Any, memory_id: str) -> Any:
        row = await whole(agent, memory_id)
        return None if row and row.get("pending") and next(looks) % 5 == 0 else row

    remember.read_row = read_row


PLANTS = {"conflict": plant_conflict, "": lambda: None}


def main() -> None:
    Clock(float(os.environ.get(AHEAD, "0"))).install()
    from agentmemory_operator.main import run

    PLANTS[os.environ.get(PLANT, "")]()
    run()


if __name__ == "__main__":
    main()
