"""Counters, gauges and histograms in the text format that Prometheus reads; each has a bounded number of series."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Labels = tuple[str, ...]
Bounds = tuple[float, ...]

# From a pass over a converged object to the creation of a collection on a busy server.
SECONDS: Bounds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Counter:
    """A number that only grows, for each combination of labels."""

    name: str
    help: str
    labels: Labels
    values: dict[Labels, int] = field(default_factory=dict)

    def add(self, *labels: str, number: int = 1) -> None:
        """Count one, or a number at once."""
        self.values[labels] = self.values.get(labels, 0) + number

    def lines(self) -> Iterator[str]:
        """Yield the counter as text."""
        yield from _head(self.name, self.help, "counter")
        for labels, value in sorted(self.values.items()):
            yield f"{self.name}{_shown(self.labels, labels)} {value}"


@dataclass(slots=True)
class Gauge:
    """Numbers that are read when somebody asks."""

    name: str
    help: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]

    def lines(self) -> Iterator[str]:
        """Yield the gauge as text."""
        yield from _head(self.name, self.help, "gauge")
        for labels, value in sorted(self.read().items()):
            yield f"{self.name}{_shown(self.labels, labels)} {value:.15g}"


@dataclass(slots=True)
class Histogram:
    """How often something took how many seconds, or came to how many, for each combination of labels."""

    name: str
    help: str
    labels: Labels
    bounds: Bounds = SECONDS
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    sums: dict[Labels, float] = field(default_factory=dict)

    def observe(self, value: float, *labels: str) -> None:
        """Count one of this value."""
        self.counts.setdefault(labels, [0] * (len(self.bounds) + 1))[bisect_left(self.bounds, value)] += 1
        self.sums[labels] = self.sums.get(labels, 0.0) + value

    def lines(self) -> Iterator[str]:
        """Yield the histogram as text."""
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in sorted(self.counts.items()):
            below = 0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                below += count
                yield f"{self.name}_bucket{_shown((*self.labels, 'le'), (*labels, bound))} {below}"
            yield f"{self.name}_sum{_shown(self.labels, labels)} {self.sums[labels]:.6f}"
            yield f"{self.name}_count{_shown(self.labels, labels)} {below}"


Metric = Counter | Gauge | Histogram


def render(metrics: Sequence[Metric]) -> str:
    """Return all metrics as one text."""
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _head(name: str, help_: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"


def _shown(names: Labels, values: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
