"""Nested options of a search."""

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.fields import WHOLE, Body, Share

# The same tolerance as for the object's weights in `spec/kinds/cel/scoring.py`.
WEIGHTS_TOLERANCE = 1e-6
MAX_PER_SESSION = 100


class WeightsIn(Body):
    """Weights of the combined score; they must add up to 1."""

    similarity: Share = Field(description="Weight of similarity, 0..1.")
    recency: Share = Field(description="Weight of recency, 0..1.")
    utility: Share = Field(description="Weight of utility, 0..1.")

    @model_validator(mode="after")
    def _check_sum(self) -> "WeightsIn":
        total = self.similarity + self.recency + self.utility
        if abs(total - 1) > WEIGHTS_TOLERANCE:
            message = f"must add up to 1 (to within {WEIGHTS_TOLERANCE:f}), not {total:.6f}"
            raise PydanticCustomError("weights", "{message}", {"message": message})
        return self


class IncludeIn(Body):
    """Additional data for each result."""

    model_config = ConfigDict(frozen=True)

    neighbours: Annotated[int, Field(ge=0, le=3), WHOLE] = Field(
        default=0,
        description="Number of memories before and after each result in its session, 0..3, if the agent has a"
        " keyword index.",
    )


class DiversityIn(Body):
    """Limits on similar results. The next best results take the places of those left out."""

    per_session: Annotated[int, Field(ge=1, le=MAX_PER_SESSION), WHOLE] = Field(
        description="Maximum number of results of one session, 1..100. Memories without a session are not limited."
    )
