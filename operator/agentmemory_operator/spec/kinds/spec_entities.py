"""Which names memories are searched for as they are stored."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.base import Model
from agentmemory_operator.spec.kinds.schema import distinct, keyed_by

NAMES_MAX, ALIASES_MAX, NAME_CHARS = 200, 8, 60

ListedText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=NAME_CHARS,
        pattern=r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$",
        description="One spelling.",
    ),
]


class ListedNameSpec(Model):
    """A known name."""

    name: ListedText = Field(description="The name as memories show it, at most 60 characters.")
    aliases: tuple[ListedText, ...] | None = Field(
        default=None,
        strict=False,
        max_length=ALIASES_MAX,
        description="Other spellings of it, at most 8; upper and lower case are the same. Default: none.",
        json_schema_extra=distinct(),
    )
    cased: bool | None = Field(
        default=None,
        description="true: it is a word of everyday language too, and counts only as it is spelt here, inside a"
        " sentence. Default: false.",
    )


class EntitiesSpec(Model):
    """Entities: the names that memories speak of, found as they are stored, and searched along."""

    enabled: bool | None = Field(
        default=None,
        description="true: entities of memories are found as they are stored, and searches by words and meaning also"
        " follow them; false: none are. Acts on the next write and search. Default: true.",
    )
    technologies: tuple[ListedNameSpec, ...] | None = Field(
        default=None,
        strict=False,
        max_length=NAMES_MAX,
        description="Known technologies, at most 200: literal names, no patterns. Replaces the product's list. Default:"
        " the product's list.",
        json_schema_extra=keyed_by("name"),
    )
    systems: tuple[ListedNameSpec, ...] | None = Field(
        default=None,
        strict=False,
        max_length=NAMES_MAX,
        description="Known systems and products, at most 200, as technologies. Replaces the product's list."
        " Default: the product's list.",
        json_schema_extra=keyed_by("name"),
    )
    ignore: tuple[ListedText, ...] | None = Field(
        default=None,
        strict=False,
        max_length=NAMES_MAX,
        description="Names that are no entities, at most 200, beside those that the product ignores. Default: none.",
        json_schema_extra=distinct(),
    )
