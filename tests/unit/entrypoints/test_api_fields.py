from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from annotated_types import Ge
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.app import ROUTERS
from agentmemory_operator.entrypoints.api.fields import Body, check_metadata, read_time
from agentmemory_operator.spec.times import render_time


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-21T08:00:00.123Z", 1_795_248_000_123),
        ("2026-11-21T08:00:00.123999Z", 1_795_248_000_123),
        ("2026-11-21T08:00:00.123456789Z", 1_795_248_000_123),
        ("2026-11-21t08:00:00z", 1_795_248_000_000),
        ("2026-11-21 10:00:00+02:00", 1_795_248_000_000),
        ("2026-11-20T22:30:00-09:30", 1_795_248_000_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_time_with_an_offset_is_parsed(text: str, time_ms: int) -> None:
    assert read_time(text) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-21",
        "2026-11-21T08:00Z",
        "2026-11-21T08:00:00",
        "2026-11-21T08:00:00,5Z",
        "20261121T080000Z",
        "2026-W47-6T08:00:00Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T08:00:60Z",
        "2025-02-29T08:00:00Z",
        "1969-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-01:00",
        "2026-11-21T08:00:00+25:00",
        "\uff12026-11-21T08:00:00Z",
        1_795_248_000,
        None,
        True,
    ],
)
def test_other_times_are_rejected(text: object) -> None:
    with pytest.raises(PydanticCustomError):
        read_time(text)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_795_248_000_123, "2026-11-21T08:00:00.123Z")],
)
def test_times_are_written_in_utc_with_milliseconds(time_ms: int, text: str) -> None:
    assert render_time(time_ms) == text
    assert read_time(text) == time_ms


def nested(levels: int) -> dict[str, object]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


def test_metadata_is_at_most_16_levels_deep() -> None:
    check_metadata(nested(16))

    with pytest.raises(PydanticCustomError, match="deeper than 16 levels"):
        check_metadata(nested(17))


def integers_of(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the names of integer fields in all parts of a schema."""
    if schema.get("type") == "integer":
        yield path
    for name, child in {**schema.get("properties", {}), **schema.get("$defs", {})}.items():
        yield from integers_of(child, name)
    for child in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])):
        yield from integers_of(child, path)


def bodies(kind: type[Body] = Body) -> Iterator[type[Body]]:
    for model in kind.__subclasses__():
        yield model
        yield from bodies(model)


def test_integers_accept_a_float_without_fraction() -> None:
    assert ROUTERS, "what is imported has all models"
    names = {(model, name) for model in bodies() for name in integers_of(model.model_json_schema())}
    own = [(model, name) for model, name in names if name in model.model_fields]
    assert {name for _, name in own} >= {"top_k", "ttl_seconds", "access_count", "strength", "neighbours"}

    for model, name in own:
        field = model.model_fields[name]
        hint = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        read = TypeAdapter(hint, config=ConfigDict(strict=True))
        minimum = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), 1)
        assert read.validate_python(float(minimum)) == minimum, (model, name)
        for invalid in (minimum + 0.5, True, str(minimum), float("inf")):
            with pytest.raises(ValidationError):
                read.validate_python(invalid)
