"""Condition `Outgrown`: an agent has more memories than its layout is designed for, with advice.

The steps are those of reference design R1: above 100,000 memories a larger graph, above 500,000 a dedicated server,
above a million several nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.collection import Collection, Observation
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition

CONDITION = "Outgrown"
LARGE_GRAPH_M, LARGE_GRAPH_EF_CONSTRUCT = 32, 256
"""Minimum parameters of an HNSW graph with which an agent counts as adapted to the first step."""

HYSTERESIS_SHARE = 0.9
"""Share of a step below which it counts as no longer passed (hysteresis): numbers of points are approximate."""


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """A number of memories, with condition reason and advice for agents that have more."""

    memories: int
    reason: Reason
    advice: str


STEPS = (
    GrowthStep(
        100_000,
        Reason.GRAPH_OUTGROWN,
        f"a larger graph improves recall: set spec.index.hnsw to m {LARGE_GRAPH_M} and efConstruct"
        f" {LARGE_GRAPH_EF_CONSTRUCT}, or set a "
        f"profile",
    ),
    GrowthStep(
        500_000,
        Reason.SERVER_OUTGROWN,
        "use a dedicated Qdrant with at least 4 GiB of RAM, or spec.index.profile LowMemory",
    ),
    GrowthStep(
        1_000_000,
        Reason.NODE_OUTGROWN,
        "spread it over several nodes with spec.index.sharding.shardNumber (docs/clusters.md)",
    ),
)


def build_outgrown_condition(
    observed: Observation, expected_memories: int, old: Mapping[str, Any]
) -> ConditionState | None:
    """Return the condition of an agent that has passed a step, or None.

    The first step does not count if the graph is large enough (`LARGE_GRAPH_M`, `LARGE_GRAPH_EF_CONSTRUCT`).

    Args:
        expected_memories: Number of memories that the object is sized for. Lower steps are expected and left out.
        old: Previous status.
    """
    prior = _step_in(old)
    passed_steps = [
        step
        for step in STEPS
        if expected_memories <= step.memories
        and observed.points > step.memories * (HYSTERESIS_SHARE if prior and step.memories <= prior.memories else 1)
        and not _is_met(step, observed.collection)
    ]
    if not passed_steps:
        return None
    highest = passed_steps[-1]
    # Leave out the number of points, which would change the message in every pass.
    message = (
        f"there are more than {highest.memories:,} memories, but the layout is for {expected_memories:,}:"
        f" {highest.advice}; then update spec.index.expectedMemories"
    )
    return ConditionState(CONDITION, True, highest.reason, message)


def has_passed_step(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether the new status reports a step, and the old status reports a lower step or none."""
    old_step, new_step = _step_in(old), _step_in(new)
    return new_step is not None and (old_step is None or old_step.memories < new_step.memories)


def _step_in(status: Mapping[str, Any]) -> GrowthStep | None:
    reason = find_condition(status, CONDITION).get("reason")
    return next((step for step in STEPS if step.reason == reason), None)


def _is_met(step: GrowthStep, live: Collection) -> bool:
    if step is not STEPS[0]:
        return False
    return (live.hnsw.m or 0) >= LARGE_GRAPH_M and (live.hnsw.ef_construct or 0) >= LARGE_GRAPH_EF_CONSTRUCT
