"""`python -m bench.sampling FILE COMMAND ...`: run a command of the product, and sample its CPU time.

From the first search, the innermost Python frame is recorded every 4 ms of CPU time. Time in C code (orjson, uvloop,
sockets) is attributed to the frame that called it or that runs next. On exit the process writes a Markdown table to
FILE with the share of each module of the product and of each library.
"""

import atexit
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from bench.tables import render

PERIOD_S = 0.004
FIRST = "search_memories"
PRODUCT, LIBRARIES = "agentmemory_operator/", "site-packages/"
HEAD = ("part", "share of the CPU time")


class Sampler:
    """Counts the innermost frames of a process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to sample on the main thread."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)

    def table(self) -> str:
        """Stop, and return the shares as a Markdown table, largest first."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        total = max(1, self._counts.total())
        return render(HEAD, [(part, f"{count / total:.1%}") for part, count in self._counts.most_common()])

    def _sample(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and (self._counts or _is_below(frame, FIRST)):
            self._counts[part_of(frame.f_code.co_filename)] += 1


def part_of(path: str) -> str:
    """Return the module of the product, the library, or `Python` for the standard library."""
    if PRODUCT in path:
        return path.rpartition(PRODUCT)[2]
    if LIBRARIES in path:
        return path.rpartition(LIBRARIES)[2].partition("/")[0]
    return "Python"


def _is_below(frame: FrameType | None, function: str) -> bool:
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    file, *command = sys.argv[1:]
    sampler = Sampler()
    atexit.register(lambda: Path(file).write_text(sampler.table(), encoding="utf-8"))
    sampler.start()
    sys.argv = ["agentmemory", *command]
    runpy.run_module("agentmemory_operator", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
