"""The `zones` block of an AgentMemory: privacy zones and the Secret with the wrapping key; and its status."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.model_base import Model, ObjectName, StatusModel
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
        description="Key in the Secret's data: 32 random bytes in Base64. During a rotation, the Secret has the"
        f" previous one under this name with {PREVIOUS_SUFFIX} appended. Default: {DEFAULT_SECRET_KEY}.",
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
        description="Wrapping key, which encrypts the data keys. While it is missing, memories with a zone can be"
        " neither read nor stored. Without a copy of a lost key, they are lost."
    )
    organisation: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")] | None = (
        Field(
            default=None,
            description="Owner of PROFESSIONAL memories, for example acme.example; at most 253 characters. Required"
            " if that zone is allowed. After a change, new memories are encrypted with a key of the new owner.",
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
        description="Zones of vectors in which searches also find memories by keywords; the keyword index reveals which"
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


class ZonesStatus(StatusModel):
    """The data keys of privacy zones."""

    keys: int | None = Field(default=None, ge=0, description="Number of data keys, as last counted.")
    shards: int | None = Field(
        default=None,
        ge=0,
        description="Highest observed number of key shards, which are the Secrets that contain data keys. A shard with"
        " keys is never removed.",
    )
    wrapping_key: str | None = Field(
        default=None,
        max_length=16,
        description="Wrapping key that last encrypted all data keys: first 16 hexadecimal digits of its SHA-256.",
    )
    to_reseal: int | None = Field(
        default=None,
        ge=0,
        description="Memories that are encrypted with data keys from before spec.zones.rotateKeysBefore, including"
        " locked ones, as last counted; absent without a rotation.",
    )
