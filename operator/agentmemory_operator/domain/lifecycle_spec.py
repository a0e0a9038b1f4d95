"""What an AgentMemory says of how its memories end: `types[].ttl` and the `lifecycle` block."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.domain import rules
from agentmemory_operator.domain.model import Model
from agentmemory_operator.domain.schema import validated
from agentmemory_operator.domain.taxonomy import MAX_WORKING_MEMORY_SLOTS, TtlMode

Days = Annotated[float, Field(ge=0.001, le=36_500, allow_inf_nan=False)]


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
    keep_importance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Of SoftUnlessUsed: memories at least this important stay, used or not, 0..1. Default: none.",
    )


class LifecycleSpec(Model):
    """How memories are kept, and how they end."""

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
