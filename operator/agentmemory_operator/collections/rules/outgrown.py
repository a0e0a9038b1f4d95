"""Whether an agent has more memories than its layout was made for, and what to do about it.

The steps are those of the reference design R1: beyond 100,000 memories a larger graph, beyond 500,000 a server of its
own, beyond a million several nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.collection import Collection, Observed
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, condition_of

CONDITION = "Outgrown"
M, EF_CONSTRUCT = 32, 256
"""The graph for more than the first step."""

FALLEN = 0.9
"""A step that was passed counts as passed until the points fall below this share of it: numbers are approximate."""


@dataclass(frozen=True, slots=True)
class Step:
    """A number of memories, and what is advised beyond it."""

    memories: int
    reason: Reason
    advice: str


STEPS = (
    Step(
        100_000,
        Reason.GRAPH_OUTGROWN,
        f"a larger graph improves recall: set spec.index.hnsw to m {M} and efConstruct {EF_CONSTRUCT}, or set a "
        f"profile",
    ),
    Step(
        500_000,
        Reason.SERVER_OUTGROWN,
        "use a dedicated Qdrant with at least 4 GiB of RAM, or spec.index.profile LowMemory",
    ),
    Step(
        1_000_000,
        Reason.NODE_OUTGROWN,
        "spread it over several nodes with spec.index.sharding.shardNumber (docs/clusters.md)",
    ),
)


def outgrown(observed: Observed, expected_memories: int, old: Mapping[str, Any]) -> ConditionState | None:
    """The condition of an agent that has passed a step; None where it has passed none.

    Args:
        expected_memories: what the object says that it is sized for: steps up to that were foreseen.
        old: the status before.
    """
    before = _step_in(old)
    passed = [
        step
        for step in STEPS
        if expected_memories <= step.memories
        and observed.points > step.memories * (FALLEN if before and step.memories <= before.memories else 1)
        and not _is_met(step, observed.collection)
    ]
    if not passed:
        return None
    last = passed[-1]
    # The number of points would change the message at every pass.
    message = (
        f"there are more than {last.memories:,} memories, but the layout is for {expected_memories:,}:"
        f" {last.advice}; then update spec.index.expectedMemories"
    )
    return ConditionState(CONDITION, True, last.reason, message)


def passed_another(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a step was passed that the status before does not tell of."""
    was, now = _step_in(old), _step_in(new)
    return now is not None and (was is None or was.memories < now.memories)


def _step_in(status: Mapping[str, Any]) -> Step | None:
    reason = condition_of(status, CONDITION).get("reason")
    return next((step for step in STEPS if step.reason == reason), None)


def _is_met(step: Step, live: Collection) -> bool:
    if step is not STEPS[0]:
        return False
    return (live.hnsw.m or 0) >= M and (live.hnsw.ef_construct or 0) >= EF_CONSTRUCT
