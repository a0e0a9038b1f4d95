"""Limits and cost of a run."""

import pytest

from agentmemory_operator.consolidation.run import MAX_ANSWER_TOKENS, ModelUsage, find_exceeded_limit
from agentmemory_operator.spec.effective.consolidation import RunLimits


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (RunLimits(), None),
        (RunLimits(calls=3), "calls"),
        (RunLimits(calls=4), None),
        (RunLimits(tokens=1_500 + 1_001 + MAX_ANSWER_TOKENS - 1), "tokens"),
        (RunLimits(tokens=1_500 + 1_001 + MAX_ANSWER_TOKENS), None),
        (RunLimits(spend=0.001, input_price=1.0), "spend"),
        (RunLimits(spend=0.003, input_price=1.0), None),
        (RunLimits(spend=0.0), None),
    ],
)
def test_next_call_must_stay_within_limits(limits: RunLimits, expected: str | None) -> None:
    assert find_exceeded_limit(ModelUsage(calls=3, tokens_in=1_000, tokens_out=500), limits, chars=3_000) == expected


def test_cost_follows_the_prices() -> None:
    used = ModelUsage().with_call(1_000_000, 500_000).with_call(1_000_000, 0)

    assert used.calls == 2
    assert used.cost(RunLimits(input_price=0.25, output_price=2.0)) == pytest.approx(1.5)
    assert used.cost(RunLimits(output_price=2.0)) == pytest.approx(1.0)
    assert used.cost(RunLimits()) is None
