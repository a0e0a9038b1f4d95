"""The `zones` block of an AgentMemory: allowed privacy zones, and the Secret with the wrapping key."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.model_base import Model, ObjectName
from agentmemory_operator.spec.kinds.schema import set_list, validation_rules
from agentmemory_operator.spec.zones import DEFAULT_SECRET_KEY, PREVIOUS_SUFFIX

# Limit of a Secret's keys, less the suffix of the previous key's entry.
MAX_KEY_CHARS = 253 - len(PREVIOUS_SUFFIX)

ZoneName = Annotated[Literal["SENSITIVE", "PERSONAL", "PROFESSIONAL"], Field(description="A zone.")]


class WrappingKeyRef(Model):
    """Reference to a wrapping key in a Secret in the object's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS, pattern=r"^[-._a-zA-Z0-9]+$")] | None = Field(
        default=None,
        description="Key in the Secret's data: 32 random bytes in Base64. During a rotation, the previous one has"
        f" the same name with {PREVIOUS_SUFFIX} added. Default: {DEFAULT_SECRET_KEY}.",
    )


class ZonesSpec(Model):
    """Privacy zones: memories that are stored encrypted, under keys outside every collection."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.ZONES))

    allowed: tuple[ZoneName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=3,
        description="Zones that memories may use: SENSITIVE and PERSONAL have a key per user, PROFESSIONAL one for"
        " the organisation. A removed zone accepts no new memories; stored ones stay readable.",
        json_schema_extra=set_list(),
    )
    key_secret_ref: WrappingKeyRef = Field(
        description="Wrapping key, which encrypts the data keys. Without it, memories with a zone cannot be read or"
        " stored; if no copy of it is left, never again."
    )
    organisation: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")] | None = (
        Field(
            default=None,
            description="Owner of PROFESSIONAL memories, for example acme.example; at most 253 characters. Required"
            " if that zone is allowed. Another one has its own key, for memories stored after the change.",
        )
    )
    vectors: tuple[ZoneName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=3,
        description="Allowed zones whose memories keep a vector, for search by meaning; a vector reveals much of"
        " its text. Default: PERSONAL and PROFESSIONAL, if allowed.",
        json_schema_extra=set_list(),
    )
    words: tuple[ZoneName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=3,
        description="Zones from vectors whose memories are also found by keywords; the keyword index reveals which"
        " words occur. Default: none.",
        json_schema_extra=set_list(),
    )
    rotate_keys_before: (
        Annotated[str, Field(max_length=20, json_schema_extra=validation_rules(rules.SECOND))] | None
    ) = Field(
        default=None,
        description="Time before which data keys are replaced, for example 2026-11-21T08:00:00Z: new memories use a"
        " new key at once, stored ones are encrypted again with it in the background. A future time has no effect"
        " until then. Replaced keys are kept, for earlier snapshots. Default: no rotation.",
    )
