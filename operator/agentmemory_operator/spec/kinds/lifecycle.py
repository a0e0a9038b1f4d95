"""The end of memories: `types[].ttl`, the blocks `lifecycle` and `items` of an AgentMemory, the status of cleanups."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.cron import ZONE_PATTERN
from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.model_base import Model, Schedule, StatusModel
from agentmemory_operator.spec.kinds.schema import validation_rules
from agentmemory_operator.spec.memory_types import MAX_ITEM_VERSIONS, MAX_WORKING_MEMORY_SLOTS, TtlMode

Days = Annotated[float, Field(ge=0.001, le=36_500)]
Share = Annotated[float, Field(ge=0, le=1)]


class TtlSpec(Model):
    """Time to live of a type's memories."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.TTL))

    mode: TtlMode = Field(
        description="Handling of expired memories. Hard: no call returns them, and the next cleanup removes them."
        " Soft: hidden from searches and lists, still readable by id. SoftUnlessUsed: like Soft, but memories that a"
        " search has ever returned do not expire. Session: like Hard, when the session ends or after days."
    )
    days: Days | None = Field(
        default=None,
        description="Days since created_at, 0.001..36500; required except with Session. Changes apply to all"
        " memories of the type at the next search. Default with Session: until the session ends.",
    )
    keep_importance: Share | None = Field(
        default=None,
        description="Minimum importance of memories that do not expire even if unused, 0..1; only with SoftUnlessUsed."
        " Default: none.",
    )


class PruneSpec(Model):
    """Criteria of old, low-value memories that a cleanup removes. All three must be met; at least one is set."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.PRUNE))

    older_than_days: Days | None = Field(default=None, description="Minimum age in days, 0.001..36500. Default: 365.")
    priority_below: Share | None = Field(
        default=None,
        description="Priority below which to remove, 0..1: recency, frequency and importance as in the model"
        " Priority; 0 removes nothing. Default: 0.2.",
    )
    confidence_below: Share | None = Field(
        default=None,
        description="Confidence below which to remove, 0..1. For a memory without a confidence, its own or the type's,"
        " only age and priority count. Default: 0.3.",
    )


class ItemsSpec(Model):
    """Settings of items, which are memories with keys."""

    keep_versions: int | None = Field(
        default=None,
        ge=0,
        le=MAX_ITEM_VERSIONS,
        description=f"Replaced versions to keep per item, 0..{MAX_ITEM_VERSIONS}. A lower number applies to the next"
        " read; the next write of the item removes the excess. Default: 0, only the latest version.",
    )


class LifecycleSpec(Model):
    """Retention, expiry and cleanup of memories."""

    schedule: Schedule | None = Field(
        default=None,
        description="Cron schedule of cleanups (minute, hour, day, month, weekday), for example 0 3 * * *, or"
        " Never. Default: the preset's (brain every 6 hours, else daily at 3).",
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=ZONE_PATTERN)] | None = Field(
        default=None, description="IANA time zone of the schedule, for example Europe/Berlin. Default: Etc/UTC."
    )
    decay_floor: Annotated[float, Field(ge=0, le=0.5)] | None = Field(
        default=None,
        description="Recency, 0.5^(age / half-life of the type), below which a cleanup removes memories, 0..0.5; 0"
        " removes none. Types without decay are kept. Default: the preset's (cortex 0.01).",
    )
    max_chain_length: (
        Annotated[int, Field(ge=0, le=10_000, json_schema_extra=validation_rules(rules.CHAIN_LENGTH))] | None
    ) = Field(
        default=None,
        description="Versions of a memory that a cleanup keeps, 2..10000: the newest and, from 3 on, the first;"
        " 0 keeps all. Default: the preset's (cortex 5, else all).",
    )
    max_memories_per_user: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None,
        description="Maximum memories of a user, earlier versions included, 1..100000000; a cleanup removes the"
        " least valuable beyond it. Default: unlimited.",
    )
    max_removal_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="Maximum percentage of an agent's memories that one cleanup may remove, 1..100; above it, the"
        " cleanup waits for approval (status.lastCleanup.held). Memories past their own expires_at do not count, and"
        " up to 10 may always be removed. Default: 20.",
    )
    prune: PruneSpec | None = Field(
        default=None,
        description="Criteria of old, low-value memories that a cleanup removes. Default: the preset's (cognitive:"
        " older than 365 days, priority below 0.2, confidence below 0.3; else none).",
    )
    deduplicate: bool | None = Field(
        default=None,
        description="Whether to skip a memory whose content is already stored for the same user and type; another"
        " author is added to its observed_by. Applies to the next write. Default: the preset's (standard and brain"
        " true, else false).",
    )
    scrub_secrets: bool | None = Field(
        default=None,
        description="Whether passwords, keys and tokens are removed from content before it is hashed, embedded and"
        " stored. Applies to the next write. Default: true; false with the preset keyed or none.",
    )
    working_memory_slots: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WORKING_MEMORY_SLOTS,
        description=f"Maximum working memories of a session, 1..{MAX_WORKING_MEMORY_SLOTS}; above it, the least"
        " recently used one is removed. Applies to the next one stored. Default: the preset's, 4.",
    )
    session_idle_hours: Annotated[float, Field(ge=0, le=876_000)] | None = Field(
        default=None,
        description="Hours without use after which a session ends, 0..876000: its working memories, and its memories"
        " of types with ttl Session and no days, are no longer returned, and the next cleanup removes them. Storing a"
        " memory, reading working memory and returning a memory in a search are use. 0: only an explicit end. Default:"
        " the preset's (cognitive, importance, keyed and none 24, else 0).",
    )
    remove_hidden_days: Annotated[float, Field(ge=0, le=36_500)] | None = Field(
        default=None,
        description="Days after which a cleanup removes memories hidden by a ttl Soft or SoftUnlessUsed, 0..36500;"
        " 0 keeps them. Default: the preset's (importance 90, else 0).",
    )


class RemovalsStatus(StatusModel):
    """Memories by reason of their removal."""

    expired: int | None = Field(default=None, description="Past their own expires_at.")
    ttl: int | None = Field(default=None, description="Past the ttl of their type.")
    session: int | None = Field(default=None, description="Of ended sessions.")
    hidden: int | None = Field(default=None, description="Hidden for removeHiddenDays by the ttl of their type.")
    decayed: int | None = Field(default=None, description="With a recency below decayFloor.")
    pruned: int | None = Field(default=None, description="Old, with low priority and confidence.")
    chain: int | None = Field(default=None, description="Middle versions of a chain longer than maxChainLength.")
    over_cap: int | None = Field(default=None, description="Least valuable of users above maxMemoriesPerUser.")


class HeldCleanupStatus(StatusModel):
    """A cleanup that waits for approval."""

    digest: str | None = Field(default=None, description="Value for the annotation approve-cleanup.")
    time: str | None = Field(
        default=None,
        description="Planned time; an approved run removes what was due then.",
        json_schema_extra={"format": "date-time"},
    )
    would_remove: int | None = Field(default=None, description="Memories that would be removed.")
    memories: int | None = Field(default=None, description="Memories in total.")
    reasons: RemovalsStatus | None = Field(default=None, description="Memories to remove, by reason.")
    message: str | None = Field(default=None, description="Reason for the wait, with the suggested fix.")


class CleanupStatus(StatusModel):
    """The last cleanup."""

    time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    duration_seconds: int | None = Field(default=None, description="Duration in seconds.")
    removed: int | None = Field(default=None, description="Removed memories.")
    reasons: RemovalsStatus | None = Field(default=None, description="Removed memories, by reason.")
    requested_at: str | None = Field(
        default=None, description="Last handled value of the annotation cleanup-requested-at."
    )
    held: HeldCleanupStatus | None = Field(
        default=None, description="Removals that wait for approval; the cleanup removed nothing."
    )
