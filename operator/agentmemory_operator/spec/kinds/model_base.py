"""Base classes and field types of the models of all kinds."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from agentmemory_operator.spec.cron import SCHEDULE_PATTERN
from agentmemory_operator.spec.kinds.conditions import TYPES
from agentmemory_operator.spec.kinds.schema import CelRule, atomic_map, validation_rules

_UNITS = {"Kb": "KB", "Mib": "MiB", "Url": "URL"}


def manifest_name(field: str) -> str:
    """Return the name of a field in manifests: camelCase, with units and URL in their usual spelling."""
    return re.sub("(Kb|Mib|Url)$", lambda unit: _UNITS[unit[0]], to_camel(field))


class Model(BaseModel):
    """Base of spec models: strict, frozen, with finite numbers, camelCase in manifests and snake_case in Python.

    Validators are built at first use: most models are only parts of others and need none of their own.
    """

    model_config = ConfigDict(
        alias_generator=manifest_name,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
    )


OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
NamespaceName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
HostName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=259,
        pattern=r"^[A-Za-z0-9._-]+(:[0-9]{1,5})?$",
        description="A host, with an optional port.",
    ),
]
SecretKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]

# Use a CEL rule instead of the schema's `pattern`, whose error would quote the pattern of over 1,000 characters.
_CRON = CelRule(
    f"self.matches(r'{SCHEDULE_PATTERN}')",
    "a schedule must be Never, or minute, hour, day, month and weekday as cron has them, for example 0 3 * * *",
)
Schedule = Annotated[str, Field(max_length=256, json_schema_extra=validation_rules(_CRON))]


class SecretKeyRef(Model):
    """Reference to a key of a Secret in the object's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(description="Key in the Secret's data.")


class StatusModel(BaseModel):
    """Base of status models: frozen, camelCase in manifests.

    Validators are built at first use, because most models serve only the CRDs.
    """

    model_config = ConfigDict(
        alias_generator=manifest_name, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


GENERATION = "Last metadata.generation that the operator acted on."


class KindStatus(StatusModel):
    """Base of a kind's status, which the operator writes as a whole.

    The status is atomic: managedFields of its single fields would be larger than the status, and part of every list
    response.
    """

    model_config = ConfigDict(json_schema_extra=atomic_map())


class Condition(StatusModel):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition is true.")
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")] = (
        Field(description="Machine-readable reason, one of a fixed set.")
    )
    message: Annotated[str, Field(max_length=32_768)] = Field(
        description="Human-readable message with the suggested fix."
    )
    last_transition_time: str = Field(
        description="Time of the last change of `status` (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int | None = Field(
        default=None, ge=0, description="metadata.generation that the condition is based on."
    )


def describe_types(kind: str) -> str:
    """Return the description of a condition's `type`: the types of a kind and their meanings."""
    return f"One of: {'; '.join(f'{name} ({meaning})' for name, meaning in TYPES[kind].items())}."
