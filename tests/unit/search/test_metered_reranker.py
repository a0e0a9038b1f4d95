"""Metrics of the reranker."""

import pytest

from agentmemory_operator.errors import RerankerUnavailable
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.search.results import MeteredReranker
from tests.support.engine.fakes import FakeReranker
from tests.support.metrics import collect_samples


async def test_duration_is_recorded_also_on_failure() -> None:
    ticks = iter((0.0, 0.25, 10.0, 10.5))
    meter, inner = ApiMeter(now_s=lambda: next(ticks)), FakeReranker()
    reranker = MeteredReranker(inner, meter)

    assert await reranker.rerank("m", "q", ["a", "b"]) == [97.0, 98.0]
    inner.error = RerankerUnavailable("it takes too long")
    with pytest.raises(RerankerUnavailable):
        await reranker.rerank("m", "q", ["a"])

    samples = collect_samples(*meter.metrics)
    assert samples['agentmemory_api_rerank_duration_seconds_sum{outcome="ok"}'] == 0.25
    assert samples['agentmemory_api_rerank_duration_seconds_sum{outcome="failed"}'] == 0.5
