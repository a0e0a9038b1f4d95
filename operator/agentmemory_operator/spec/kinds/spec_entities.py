"""The `entities` block of an AgentMemory: detection of names in memories."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import Model
from agentmemory_operator.spec.kinds.schema import list_map_keys, set_list

MAX_NAMES, MAX_ALIASES, MAX_NAME_CHARS = 200, 8, 60

ListedText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        pattern=r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$",
        description="A spelling.",
    ),
]


class ListedNameSpec(Model):
    """A known name."""

    name: ListedText = Field(description="Name to show for the entity, at most 60 characters.")
    aliases: tuple[ListedText, ...] | None = Field(
        default=None,
        strict=False,
        max_length=MAX_ALIASES,
        description="Other spellings, case-insensitive, at most 8. Default: none.",
        json_schema_extra=set_list(),
    )
    cased: bool | None = Field(
        default=None,
        description="Whether only this exact spelling inside a sentence matches, because the name is also an everyday"
        " word. Default: false.",
    )


class EntitiesSpec(Model):
    """Detection of names in memories, and search through relations of names."""

    enabled: bool | None = Field(
        default=None,
        description="Whether names are detected when memories are stored, and searches by keywords and vectors also"
        " find memories through the names in the query. Applies to the next write and search. Default: true.",
    )
    technologies: tuple[ListedNameSpec, ...] | None = Field(
        default=None,
        strict=False,
        max_length=MAX_NAMES,
        description="Known technologies, at most 200: literal names, no patterns. Replaces the built-in list."
        " Default: the built-in list.",
        json_schema_extra=list_map_keys("name"),
    )
    systems: tuple[ListedNameSpec, ...] | None = Field(
        default=None,
        strict=False,
        max_length=MAX_NAMES,
        description="Known systems and products, at most 200, like technologies. Replaces the built-in list."
        " Default: the built-in list.",
        json_schema_extra=list_map_keys("name"),
    )
    ignore: tuple[ListedText, ...] | None = Field(
        default=None,
        strict=False,
        max_length=MAX_NAMES,
        description="Names that are not entities, at most 200, in addition to the built-in list. Default: none.",
        json_schema_extra=set_list(),
    )
    decay: float | None = Field(
        default=None,
        ge=0.01,
        le=1,
        description="Factor by which the activation of a name decreases per link from the query's names"
        " (docs/entities.md), 0.01..1. Default: 0.8.",
    )
    typed_boost: float | None = Field(
        default=None,
        ge=1,
        le=10,
        description="Factor of the activation per link that is a typed relation, in addition to decay, 1..10. Default:"
        " 2.",
    )
    max_depth: int | None = Field(
        default=None,
        ge=0,
        le=5,
        description="Links that a search follows from the names of its query, 0..5; 0 finds only memories with these"
        " names. Default: 2.",
    )
    min_activation: float | None = Field(
        default=None, ge=0, le=1, description="Minimum activation of the names that a search uses, 0..1. Default: 0.1."
    )
