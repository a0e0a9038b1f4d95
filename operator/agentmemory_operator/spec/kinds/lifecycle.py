"""How memories end: `types[].ttl`, the blocks `lifecycle` and `items` of an AgentMemory, and what is reported of it."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model, Schedule, StatusModel
from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.schema import validated
from agentmemory_operator.spec.memory_types import MAX_ITEM_VERSIONS, MAX_WORKING_MEMORY_SLOTS, TtlMode
from agentmemory_operator.spec.schedule import ZONE_PATTERN

Days = Annotated[float, Field(ge=0.001, le=36_500, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class TtlSpec(Model):
    """How long memories of a type answer."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.TTL))

    mode: TtlMode = Field(
        description="Hard: gone for every call, and removed by the next cleanup. Soft: hidden from searches and lists;"
        " by its id it is still read. SoftUnlessUsed: as Soft, but what a search ever returned stays. Session: gone"
        " when its session ends, and as Hard after days where nobody ends it."
    )
    days: Days | None = Field(
        default=None,
        description="Days since a memory's created_at, 0.001..36500; required but with Session. A change acts on the"
        " next search, on every memory of the type. Default with Session: as long as the session.",
    )
    keep_importance: Share | None = Field(
        default=None,
        description="Of SoftUnlessUsed: memories at least this important stay, used or not, 0..1. Default: none.",
    )


class PruneSpec(Model):
    """Which old memories of little worth a cleanup removes: those for which all three hold."""

    older_than_days: Days | None = Field(
        default=None, description="Older than so many days, 0.001..36500. Default: 365."
    )
    priority_below: Share | None = Field(
        default=None,
        description="Of a priority below this, 0..1: recency, frequency and importance as the model Priority has them;"
        " 0 prunes nothing. Default: 0.2.",
    )
    confidence_below: Share | None = Field(
        default=None,
        description="Of a confidence below this, 0..1; a memory without one, of a type that gives none either, is"
        " judged by age and priority alone. Default: 0.3.",
    )


class ItemsSpec(Model):
    """What holds for items, which are memories under keys."""

    keep_versions: int | None = Field(
        default=None,
        ge=0,
        le=MAX_ITEM_VERSIONS,
        description=f"How many versions of an item are kept that others replaced, 0..{MAX_ITEM_VERSIONS}. Less acts on"
        " the next read, and takes the others away with the next write of the item. Default: 0, the last write is all"
        " there is.",
    )


class LifecycleSpec(Model):
    """How memories are kept, and how they end."""

    schedule: Schedule | None = Field(
        default=None,
        description="When a cleanup is made: minute, hour, day, month and weekday as cron has them (0 3 * * *), or"
        " Never. Default: the preset's (brain every 6 hours, else daily at 3).",
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=ZONE_PATTERN)] | None = Field(
        default=None, description="Time zone of the schedule by its IANA name, as Europe/Berlin. Default: Etc/UTC."
    )
    decay_floor: Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False)] | None = Field(
        default=None,
        description="A cleanup removes memories whose recency, 0.5^(age / half-life of the type), is below this,"
        " 0..0.5; 0 removes none. Types that do not decay stay. Default: the preset's (cortex 0.01).",
    )
    max_chain_length: Annotated[int, Field(ge=0, le=10_000, json_schema_extra=validated(rules.CHAIN_LENGTH))] | None = (
        Field(
            default=None,
            description="Versions of one memory that a cleanup keeps, 2..10000: the newest and, of 3 and more, the"
            " first; 0 keeps all. Default: the preset's (cortex 5, else all).",
        )
    )
    max_memories_per_user: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None,
        description="Memories that one user may have, earlier versions included, 1..100000000; beyond it a cleanup"
        " removes the least valuable. Default: any number.",
    )
    max_removal_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="The share of an agent's memories that one cleanup may remove, 1..100; one that would remove more"
        " waits for an approval (status.lastCleanup.held). Memories past their own expires_at do not count, and up to"
        " 10 always may go. Default: 20.",
    )
    prune: PruneSpec | None = Field(
        default=None,
        description="Which old memories of little worth a cleanup removes. Default: the preset's (cognitive: older than"
        " 365 days, priority below 0.2, confidence below 0.3; else none).",
    )
    deduplicate: bool | None = Field(
        default=None,
        description="true: what a memory of the same user and type says already is not stored again: by the same"
        " author it is known, another author is added to its observed_by. Acts on the next write. Default: true with"
        " the preset brain, else false.",
    )
    scrub_secrets: bool | None = Field(
        default=None,
        description="true: passwords, keys and tokens are taken out of what is stored, before it is hashed and"
        " embedded; false: it is stored as it comes. Acts on the next write. Default: true; false with the"
        " preset keyed or none.",
    )
    working_memory_slots: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WORKING_MEMORY_SLOTS,
        description=f"Working memories of a session at most, 1..{MAX_WORKING_MEMORY_SLOTS}; beyond, the least recently"
        " used goes. Acts on the next one. Default: the preset's, 4.",
    )
    session_idle_hours: Annotated[float, Field(ge=0, le=876_000, allow_inf_nan=False)] | None = Field(
        default=None,
        description="A session that was not used for so many hours is over, 0..876000: its working memory, and its"
        " memories of types with ttl Session and no days, are gone for every call, and the next cleanup removes them."
        " Used is: stored into, read as working memory, or returned by a search. 0: only when somebody ends it."
        " Default: the preset's (cognitive, importance, keyed and none 24, else 0).",
    )
    remove_hidden_days: Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)] | None = Field(
        default=None,
        description="A cleanup removes memories that a ttl Soft or SoftUnlessUsed has hidden for so many days,"
        " 0..36500; 0 keeps them. Default: the preset's (brain and importance 90, else 0).",
    )


class RemovalsStatus(StatusModel):
    """Memories by why they go."""

    expired: int | None = Field(default=None, description="Past their own expires_at.")
    ttl: int | None = Field(default=None, description="Past the time of their type.")
    session: int | None = Field(default=None, description="Of sessions that are over.")
    hidden: int | None = Field(default=None, description="Hidden for removeHiddenDays by the time of their type.")
    decayed: int | None = Field(default=None, description="Of a recency below decayFloor.")
    pruned: int | None = Field(default=None, description="Old, and of little priority and confidence.")
    chain: int | None = Field(default=None, description="Middle versions of a chain longer than maxChainLength.")
    over_cap: int | None = Field(default=None, description="Least valuable of users over maxMemoriesPerUser.")


class HeldCleanupStatus(StatusModel):
    """A cleanup that waits for an approval."""

    digest: str | None = Field(default=None, description="What the annotation approve-cleanup has to say.")
    time: str | None = Field(
        default=None,
        description="The time that it is planned for; an approved run removes what had to go then.",
        json_schema_extra={"format": "date-time"},
    )
    would_remove: int | None = Field(default=None, description="How many memories would go.")
    memories: int | None = Field(default=None, description="Of how many.")
    reasons: RemovalsStatus | None = Field(default=None, description="Why they would go.")
    message: str | None = Field(default=None, description="Why it waits, with the way out.")


class CleanupStatus(StatusModel):
    """The last cleanup."""

    time: str | None = Field(default=None, description="When it began.", json_schema_extra={"format": "date-time"})
    duration_seconds: int | None = Field(default=None, description="How many seconds it took.")
    removed: int | None = Field(default=None, description="How many memories it removed.")
    reasons: RemovalsStatus | None = Field(default=None, description="Why they went.")
    requested_at: str | None = Field(
        default=None, description="The annotation cleanup-requested-at that was last answered."
    )
    held: HeldCleanupStatus | None = Field(
        default=None, description="What it would have removed; it removed nothing, and waits for an approval."
    )
