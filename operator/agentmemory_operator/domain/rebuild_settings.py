"""What holds for rebuilds of an object: its fields over the defaults."""

from dataclasses import dataclass
from enum import StrEnum

from agentmemory_operator.domain.rebuild_spec import RebuildSpec
from agentmemory_operator.domain.resources import AgentMemorySpec

KEEP_PREVIOUS_HOURS = 24
MAX_RECALL_DROP_PERCENT = 5.0


class ChangePolicy(StrEnum):
    """What becomes of a Rebuild; docs/approve.md."""

    APPLY = "Apply"
    REQUIRE_APPROVAL = "RequireApproval"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSettings:
    """What holds for rebuilds.

    Attributes:
        keep_previous_hours: of the collection that was replaced.
        max_calls_per_hour: requests to the embedding provider; None is any number.
        price: of a million tokens, in any currency; None where nobody said.
        max_recall_drop_percent: percent points, 0..100.
    """

    change_policy: ChangePolicy = ChangePolicy.REQUIRE_APPROVAL
    keep_previous_hours: int = KEEP_PREVIOUS_HOURS
    max_calls_per_hour: int | None = None
    price: float | None = None
    max_recall_drop_percent: float = MAX_RECALL_DROP_PERCENT


def rebuild_settings(spec: AgentMemorySpec) -> RebuildSettings:
    """Return what holds for rebuilds of an object."""
    rebuild = spec.rebuild or RebuildSpec()
    keep, drop = spec.keep_previous_hours, rebuild.max_recall_drop_percent
    return RebuildSettings(
        change_policy=ChangePolicy(spec.change_policy or ChangePolicy.REQUIRE_APPROVAL),
        keep_previous_hours=KEEP_PREVIOUS_HOURS if keep is None else keep,
        max_calls_per_hour=rebuild.max_embedding_calls_per_hour,
        price=rebuild.embedding_price_per_million_tokens,
        max_recall_drop_percent=MAX_RECALL_DROP_PERCENT if drop is None else drop,
    )
