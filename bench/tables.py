"""The tables of `bench/README.md`."""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

from bench.datasets import Dataset
from bench.measures import STORE_BATCH, Latency, Searching

Cells = tuple[str, ...]

SEARCH_HEAD = (
    "memories",
    "users",
    "API p50",
    "p99",
    "engine p50",
    "p99",
    "API / engine p50",
    "p99",
    "exact top 10 found",
)
GOAL_HEAD = ("what", "measured", "goal")


@dataclass(frozen=True, slots=True)
class SearchRow:
    """Results of the searches of one collection.

    Attributes:
        share: Mean share of the exact best 10 that the API finds, 0..1.
    """

    data: Dataset
    searching: Searching
    share: float

    @property
    def ratios(self) -> tuple[float, float]:
        """Ratios of the API's latency to the engine's, p50 and p99."""
        api, engine = self.searching.api, self.searching.engine
        return api.p50 / engine.p50, api.p99 / engine.p99

    @property
    def cells(self) -> Cells:
        api, engine = self.searching.api, self.searching.engine
        figures = (api.p50, api.p99, engine.p50, engine.p99, *self.ratios)
        return (f"{len(self.data):,}", str(self.data.users), *(f"{f:.2f}" for f in figures), down(self.share))


def goals(rows: Sequence[SearchRow], per_second: float, effect: Latency) -> list[Cells]:
    """Return the goals and the measured values. Searches count with their worst row."""
    ratio, ratio_p99 = (max(ratios) for ratios in zip(*(row.ratios for row in rows), strict=True))
    share = down(min(row.share for row in rows))
    stored = f"memories stored a second, {STORE_BATCH} a request, one client"
    return [
        ("API over engine, worst row, p50 / p99", f"{ratio:.2f} / {ratio_p99:.2f}", "at most 1.5 / 3, at 100,000"),
        ("exact top 10 found, worst row", share, "at least .99"),
        (stored, f"{per_second:,.0f}", "at least 2,000"),
        ("changed weights to effect, p50 / p99", f"{effect.p50:.0f} / {effect.p99:.0f} ms", "p99 at most 1,000 ms"),
    ]


def render(head: Cells, rows: Sequence[Cells]) -> str:
    """Render a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def machine() -> str:
    """Describe the machine: CPU cores, memory and Python version, without its name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def down(share: float) -> str:
    """Render a share with four digits, rounded down."""
    return f"{math.floor(share * 10_000) / 10_000:.4f}"
