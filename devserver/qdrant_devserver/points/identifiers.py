"""Point ids: unsigned 64-bit integers or UUIDs."""

import re
import uuid
from typing import TypeAlias

from qdrant_devserver.error_answers import ErrorAnswer, malformed
from qdrant_devserver.fields import Json, read_list

# As the engine takes them; it gives UUIDs as objects.
PointId: TypeAlias = int | str | uuid.UUID
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LARGEST = 2**64


def read_point_id(value: Json) -> PointId:
    """A point id, UUIDs in their canonical form."""
    if isinstance(value, str):
        if _CANONICAL.fullmatch(value):
            return value
        try:
            return str(uuid.UUID(value))
        except ValueError as error:
            raise not_an_id(value) from error
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise not_an_id(value)
    return value


def read_point_ids(value: Json, path: str) -> list[PointId]:
    """A list of point ids."""
    return [read_point_id(item) for item in read_list(value, path)]


def parse_point_id(text: str) -> PointId | None:
    """The point id that stands in a URL, or none."""
    try:
        return read_point_id(int(text) if text.isascii() and text.isdigit() else text)
    except ErrorAnswer:
        return None


def not_an_id(value: Json) -> ErrorAnswer:
    """The answer to a value that is no point id."""
    return malformed(f"value {value} is not a valid point ID, valid values are either an unsigned integer or a UUID")
