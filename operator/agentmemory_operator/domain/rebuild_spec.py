"""What an AgentMemory says of its rebuilds: changes that only a new collection can carry out."""

from typing import Annotated, Literal

from pydantic import Field

from agentmemory_operator.domain.model import Model

ChangePolicyName = Literal["Apply", "RequireApproval", "Never"]

MAX_CALLS_PER_HOUR = 10_000_000
MAX_PRICE = 10_000


class RebuildSpec(Model):
    """What a Rebuild may cost, and what of the recall it may lose."""

    max_embedding_calls_per_hour: Annotated[int, Field(ge=1, le=MAX_CALLS_PER_HOUR)] | None = Field(
        default=None,
        description="Requests to the embedding provider that a Rebuild may make in an hour, of batchSize texts each,"
        " 1..10000000. Default: no bound.",
    )
    embedding_price_per_million_tokens: Annotated[float, Field(ge=0, le=MAX_PRICE, allow_inf_nan=False)] | None = Field(
        default=None,
        description="What the provider takes for a million tokens, in any currency, 0..10000; for the estimate of a"
        " plan alone. Default: the plan names no money.",
    )
    max_recall_drop_percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = Field(
        default=None,
        description="How many percent points the recall of probe queries may drop before the move waits for an"
        " approval, 0..100. Default: 5.",
    )
