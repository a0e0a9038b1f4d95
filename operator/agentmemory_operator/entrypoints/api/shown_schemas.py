"""Response models for requests with `fields` or `format: compact`. `memory_schemas` has those of complete responses."""

from collections.abc import Collection, Mapping
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_type_hints

from pydantic import Field, create_model

from agentmemory_operator.entrypoints.api.memory_schemas import (
    Answer,
    ExplainOut,
    FoundOut,
    MemoryOut,
    PageOut,
    SearchOut,
)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _drop_default(schema: dict[str, Any]) -> None:
    """Remove the default from the schema, because an omitted field is absent."""
    del schema["default"]


def _shown(
    model: type[Answer], doc: str, *, always: Collection[str], inner: Mapping[str, Any] = _NOTHING
) -> type[Answer]:
    """Derive a model with optional fields.

    Args:
        doc: Docstring of the derived model, its description in the OpenAPI document.
        always: Names of the fields that remain required.
        inner: Types by field name, for fields that contain other derived models.
    """
    hints: dict[str, Any] = {**get_type_hints(model, include_extras=True), **inner}
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        options: dict[str, Any] = {} if name in always else {"default": None, "json_schema_extra": _drop_default}
        fields[name] = (hints[name], Field(description=field.description, **options))
    return create_model(f"Shown{model.__name__}", __base__=Answer, __doc__=doc, **fields)


ShownMemoryOut: Any = _shown(
    MemoryOut, "The fields of a memory that `fields` names; `format: compact` omits null fields.", always=()
)
ShownExplainOut: Any = _shown(
    ExplainOut,
    "Terms of one score without null fields, with `format: compact`.",
    always={name for name, hint in get_type_hints(ExplainOut).items() if NoneType not in get_args(hint)},
)
ShownFoundOut: Any = _shown(
    FoundOut,
    "A result of a search with the fields that `fields` names; `format: compact` omits null fields.",
    always=("score",),
    inner={"neighbours": list[ShownMemoryOut] | None, "explain": ExplainOut | ShownExplainOut | None},
)
ShownSearchOut = _shown(
    SearchOut,
    "Results of a search with `fields` or `format: compact`.",
    always=SearchOut.model_fields,
    inner={"results": list[ShownFoundOut]},
)
ShownPageOut = _shown(
    PageOut,
    "Memories, newest first, with `fields` or `format: compact`.",
    always=PageOut.model_fields,
    inner={"results": list[ShownMemoryOut]},
)
