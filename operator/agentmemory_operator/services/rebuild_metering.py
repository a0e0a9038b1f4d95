"""What rebuilds ask of embedding providers, counted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentmemory_operator.services.metrics import Histogram, Metric


class RebuildMeter:
    """Measures calls for vectors; implements `metered_embedder.EmbeddingMeter`."""

    def __init__(self) -> None:
        self._embeddings = Histogram(
            "agentmemory_rebuild_embed_duration_seconds",
            "Seconds that an embedding for a rebuild took.",
            ("provider", "outcome"),
        )

    @property
    def metrics(self) -> list[Metric]:
        """Everything that is measured."""
        return [self._embeddings]

    @contextmanager
    def embedding(self, provider: str, texts: int) -> Iterator[None]:
        """Measure one call for vectors."""
        started_s, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "ok"
        finally:
            self._embeddings.observe(time.monotonic() - started_s, provider, outcome)
