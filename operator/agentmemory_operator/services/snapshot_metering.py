"""Counts of snapshots."""

from agentmemory_operator.services.metrics import Counter, Histogram, Metric

SUCCEEDED, FAILED = "succeeded", "failed"
# From a small collection to one of hundreds of gigabytes.
SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)


class SnapshotMeter:
    """Counts snapshots by how they ended."""

    def __init__(self) -> None:
        self._runs = Counter("agentmemory_snapshots_total", "Snapshots by how they ended.", ("outcome",))
        self._bytes = Counter("agentmemory_snapshot_bytes_total", "Bytes of snapshots that were made.", ())
        self._durations = Histogram(
            "agentmemory_snapshot_duration_seconds", "Seconds until a snapshot had ended.", ("outcome",), SECONDS
        )

    @property
    def metrics(self) -> list[Metric]:
        """Everything that is counted."""
        return [self._runs, self._bytes, self._durations]

    def succeeded(self, seconds: float, size: int) -> None:
        """Count one that was made."""
        self._runs.add(SUCCEEDED)
        self._bytes.add(number=size)
        self._durations.observe(seconds, SUCCEEDED)

    def failed(self, seconds: float) -> None:
        """Count one that was not."""
        self._runs.add(FAILED)
        self._durations.observe(seconds, FAILED)
