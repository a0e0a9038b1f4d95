"""Counts consolidations, what they came to and what they used."""

from agentmemory_operator.consolidation.rules.status import Action
from agentmemory_operator.consolidation.run import RunReport
from agentmemory_operator.runtime.metrics import Counter, Histogram, Metric

# From a run that finds nothing to one of many slow answers.
SECONDS = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class ConsolidationMeter:
    """Counts what consolidations did."""

    def __init__(self) -> None:
        self._runs = Counter(
            "agentmemory_consolidations_total",
            "Consolidations by action and result.",
            ("action", "outcome"),
        )
        self._results = Counter(
            "agentmemory_consolidation_results_total", "Results of consolidations by kind.", ("result",)
        )
        self._tokens = Counter(
            "agentmemory_consolidation_tokens_total", "Tokens that language models read and wrote.", ("direction",)
        )
        self._calls = Counter("agentmemory_consolidation_calls_total", "Requests to language models.", ("outcome",))
        self._durations = Histogram(
            "agentmemory_consolidation_duration_seconds", "Duration of consolidations in seconds.", (), SECONDS
        )

    @property
    def metrics(self) -> list[Metric]:
        """Everything that is counted."""
        return [self._runs, self._results, self._tokens, self._calls, self._durations]

    def ended(self, action: Action, report: RunReport, took_ms: float, *, is_failed: bool) -> None:
        """Count one that came to its end, or failed."""
        outcome = "failed" if is_failed else "limited" if report.stopped_by else "done"
        self._runs.add(str(action), outcome)
        self._durations.observe(took_ms / 1000)
        for came, number in report.tally.items() if action is not Action.DRY_RUN else ():
            self._results.add(str(came), number=number)
        self._tokens.add("in", number=report.used.tokens_in)
        self._tokens.add("out", number=report.used.tokens_out)
        self._calls.add("invalid", number=report.invalid)
        self._calls.add("used", number=report.used.calls - report.invalid)
