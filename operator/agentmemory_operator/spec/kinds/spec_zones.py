"""Which privacy zones the memories of an agent may have, and which Secret holds the key of their keys."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model, ObjectName
from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.schema import distinct, validated
from agentmemory_operator.spec.zones import DEFAULT_SECRET_KEY, PREVIOUS_SUFFIX

# Longer, and the name of the entry beside it would be longer than a Secret takes.
MAX_KEY_CHARS = 253 - len(PREVIOUS_SUFFIX)

ZoneName = Annotated[Literal["SENSITIVE", "PERSONAL", "PROFESSIONAL"], Field(description="One zone.")]


class WrappingKeyRef(Model):
    """A Secret of the object's own namespace that holds a wrapping key."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS, pattern=r"^[-._a-zA-Z0-9]+$")] | None = Field(
        default=None,
        description="Key within the Secret's data: Base64 of 32 random bytes. While the key is rotated, the one before"
        f" stands beside it under the same name and {PREVIOUS_SUFFIX}. Default: {DEFAULT_SECRET_KEY}.",
    )


class ZonesSpec(Model):
    """Privacy zones: memories that are stored encrypted, under keys that lie outside every collection."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.ZONES))

    allowed: tuple[ZoneName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=3,
        description="Zones that a memory may be stored with: SENSITIVE and PERSONAL have a key for each user,"
        " PROFESSIONAL one for the organisation. One that is removed takes no new memories; those there stay readable.",
        json_schema_extra=distinct(),
    )
    key_secret_ref: WrappingKeyRef = Field(
        description="The wrapping key, which encrypts the keys of the memories. Without it no memory with a zone can be"
        " read or stored; without any copy of it, never again."
    )
    organisation: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")] | None = (
        Field(
            default=None,
            description="Whose PROFESSIONAL memories are, as acme.example; at most 253 characters. Required where that"
            " zone is allowed. Another one has a key of its own for what is stored from then on.",
        )
    )
    vectors: tuple[ZoneName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=3,
        description="Allowed zones whose memories keep a vector, so that they are found by meaning; a vector gives away"
        " much of the words it was made of. Default: PERSONAL and PROFESSIONAL, of those allowed.",
        json_schema_extra=distinct(),
    )
    words: tuple[ZoneName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=3,
        description="Zones of vectors whose memories are found by words too; the index of words gives away which words"
        " there are. Default: none.",
        json_schema_extra=distinct(),
    )
    rotate_keys_before: Annotated[str, Field(max_length=20, json_schema_extra=validated(rules.SECOND))] | None = Field(
        default=None,
        description="Data keys made before this time are replaced, as 2026-11-21T08:00:00Z: new memories have a new key"
        " at once, those there are sealed again with it in the background. One to come does nothing until then. The"
        " keys replaced stay, for snapshots made before. Default: none is replaced.",
    )
