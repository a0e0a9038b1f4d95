"""Metrics and traces of the retrieval API."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import Histogram

from agentmemory_operator.ports.tracing import Span, Tracer
from agentmemory_operator.runtime.metrics import NO_TRACES, MetricSet

# Histogram buckets, from a search over few memories to a batch of a thousand texts on a slow embedding service.
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CANDIDATE_BUCKETS = (10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)

UNMATCHED, OTHER = "unmatched", "other"
UNREACHABLE = "unreachable"
# Methods that become labels. Others become `OTHER`, because clients must not create time series.
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


@dataclass(slots=True)
class ServedRequest:
    """One request in progress, filled in by the code that serves it.

    Attributes:
        route: Path template, with names of parameters; empty if no route matched.
        status: HTTP status; 0 if no response was sent.
        agent: Slug in the path; empty if no route matched or the path has none.
    """

    route: str = ""
    status: int = 0
    agent: str = ""


class _EngineCall:
    """Implements ports.EngineCall and its context manager.

    Every search uses it. A generator-based context manager would double the cost.
    """

    __slots__ = ("_durations", "_now_s", "_opened", "_operation", "_outcome", "_span", "_started_s", "headers")

    def __init__(
        self, operation: str, durations: Histogram, opened: AbstractContextManager[Span], now_s: Callable[[], float]
    ) -> None:
        self._operation, self._durations, self._opened, self._now_s = operation, durations, opened, now_s
        self._outcome = UNREACHABLE

    def __enter__(self) -> "_EngineCall":
        self._started_s = self._now_s()
        self._span = self._opened.__enter__()
        self.headers = self._span.headers
        return self

    def __exit__(self, *error: Any) -> bool | None:
        self._durations.labels(self._operation, self._outcome).observe(self._now_s() - self._started_s)
        return self._opened.__exit__(*error)

    def record_status(self, status: int, *, is_disk_full: bool = False) -> None:
        """Record the outcome of the call: class of the HTTP status, or `disk_full`. Without a status: unreachable."""
        self._outcome = "disk_full" if is_disk_full else f"{status // 100}xx"
        self._span.note("http.response.status_code", status)


class ModelMeter(MetricSet):
    """Counts distilled conversations, memories and tokens of language models, and long version chains."""

    def __init__(self) -> None:
        super().__init__()
        self._distillations = self.add_counter(
            "agentmemory_api_distillations_total", "Conversations for a language model, by result.", "outcome"
        )
        self._made = self.add_counter(
            "agentmemory_api_distilled_memories_total",
            "Memories that language models created from conversations.",
            "fate",
        )
        self._long_chains = self.add_counter(
            "agentmemory_api_long_chains_total", "Memories that reached 20 versions, 40, and so on."
        )
        self._tokens = self.add_counter(
            "agentmemory_api_model_tokens_total", "Tokens that language models used.", "direction"
        )

    def count_distillation(self, outcome: str) -> None:
        """Count one attempt to distil a conversation. `distillation/run_queue.py` defines the outcomes."""
        self._distillations.labels(outcome).inc()

    def count_memories(self, outcome: str, number: int) -> None:
        """Count `number` memories that a model extracted, by outcome: stored, unsourced, malformed or proposed."""
        if number:
            self._made.labels(outcome).inc(number)

    def count_tokens(self, tokens_in: int, tokens_out: int) -> None:
        """Count input and output tokens of a language model."""
        for direction, tokens in (("in", tokens_in), ("out", tokens_out)):
            if tokens:
                self._tokens.labels(direction).inc(tokens)

    def count_long_chain(self) -> None:
        """Count a memory that reached a multiple of 20 versions."""
        self._long_chains.inc()


class ApiMeter(MetricSet):
    """Metrics and traces of the requests to one API process, and of its calls to Qdrant, embedders and rerankers.

    Args:
        tracer: Exports the traces; `NO_TRACES` exports none.
        now_s: Monotonic clock.

    Attributes:
        is_tracing: True if traces are exported.
        models: Metrics of language models.
        candidates: Histogram of the number of candidates that a search scored.
    """

    def __init__(self, tracer: Tracer = NO_TRACES, *, now_s: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._tracer, self._now_s = tracer, now_s
        self.is_tracing = tracer is not NO_TRACES
        self._requests = self._add_durations("api_request", "requests", "method", "route", "status")
        self._embeddings = self._add_durations("api_embed", "embeddings", "provider", "outcome")
        self._rerankings = self._add_durations("api_rerank", "reranking", "outcome")
        self._calls = self._add_durations("api_engine", "calls to Qdrant", "operation", "outcome")
        self._repeated = self.add_counter(
            "agentmemory_api_engine_retries_total", "Reads from Qdrant that timed out and were retried.", "operation"
        )
        self._cached = self.add_counter(
            "agentmemory_api_embedding_cache_total", "Lookups in the embedding cache, by result.", "result"
        )
        self._tokens = self.add_counter(
            "agentmemory_api_embedding_tokens_total", "Tokens, as reported by embedding services.", "provider"
        )
        self.models = ModelMeter()
        self.metrics += self.models.metrics
        self.candidates = self.add_histogram(
            "agentmemory_api_search_candidates", "Candidates scored in a search.", buckets=CANDIDATE_BUCKETS
        )

    def _add_durations(self, name: str, subject: str, *labels: str) -> Histogram:
        name, help_text = f"agentmemory_{name}_duration_seconds", f"Duration of {subject} in seconds."
        return self.add_histogram(name, help_text, *labels, buckets=LATENCY_BUCKETS_S)

    @contextmanager
    def measure_request(self, method: str, headers: Mapping[str, str]) -> Iterator[ServedRequest]:
        """Measure one request. The server fills in the yielded object.

        Args:
            headers: Trace headers of the request: traceparent and tracestate.
        """
        started_s, served, method = self._now_s(), ServedRequest(), method if method in METHODS else OTHER
        with self._tracer.span(method, kind="server", parent=headers) as span:
            try:
                yield served
            finally:
                route = served.route or UNMATCHED
                self._requests.labels(method, route, str(served.status)).observe(self._now_s() - started_s)
                span.note("http.request.method", method)
                span.note("http.route", route)
                span.note("http.response.status_code", served.status)
                if served.agent:
                    span.note("agentmemory.agent", served.agent)
                if served.status >= 500:
                    span.fail(str(served.status))

    @contextmanager
    def memory_operation(self, operation: str, agent: str) -> Iterator[Span]:
        """Trace one memory operation, as the GenAI semantic conventions of OpenTelemetry name it."""
        with self._tracer.span(operation) as span:
            span.note("gen_ai.operation.name", operation)
            span.note("gen_ai.provider.name", "agentmemory")
            span.note("gen_ai.memory.store.id", agent)
            yield span

    @contextmanager
    def measure_embedding(self, provider: str, texts: int) -> Iterator[None]:
        """Measure one call of an embedder for a number of texts."""
        notes: dict[str, str | int] = {"agentmemory.embedding.provider": provider, "agentmemory.embedding.texts": texts}
        with self._measure("embed", notes, self._embeddings, provider):
            yield

    @contextmanager
    def measure_reranking(self, texts: int) -> Iterator[None]:
        """Measure one call of a cross-encoder for a number of search results."""
        with self._measure("rerank", {"agentmemory.rerank.texts": texts}, self._rerankings):
            yield

    @contextmanager
    def _measure(self, name: str, notes: Mapping[str, str | int], durations: Histogram, *labels: str) -> Iterator[None]:
        started_s, outcome = self._now_s(), "failed"
        with self._tracer.span(name) as span:
            for key, value in notes.items():
                span.note(key, value)
            try:
                yield
                outcome = "ok"
            finally:
                durations.labels(*labels, outcome).observe(self._now_s() - started_s)

    def engine(self, operation: str) -> _EngineCall:
        """Return a context manager that measures one call to Qdrant. Call its `record_status` with the response."""
        return _EngineCall(operation, self._calls, self._tracer.span(f"qdrant {operation}", kind="client"), self._now_s)

    def count_retry(self, operation: str) -> None:
        """Count a read from Qdrant that timed out and is retried."""
        self._repeated.labels(operation).inc()

    def count_cache_lookups(self, *, hits: int, misses: int) -> None:
        """Count the texts that a lookup found in the embedding cache (hits) and those that it did not (misses)."""
        for result, number in (("hit", hits), ("miss", misses)):
            if number:
                self._cached.labels(result).inc(number)

    def count_tokens(self, provider: str, tokens: int) -> None:
        """Count the tokens that an embedding service reports for a call."""
        self._tokens.labels(provider).inc(tokens)
