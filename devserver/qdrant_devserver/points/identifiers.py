"""Point ids: unsigned 64-bit integers or UUIDs."""

import re
import uuid
from typing import TypeAlias

from qdrant_devserver.error_answers import ErrorAnswer, malformed
from qdrant_devserver.fields import Json, read_list

# Types that the engine accepts. It returns UUIDs as objects.
PointId: TypeAlias = int | str | uuid.UUID
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LARGEST = 2**64


def read_point_id(value: Json) -> PointId:
    """Return a point id; a UUID in its canonical form.

    Raises:
        ErrorAnswer: 400 if the value is neither an unsigned 64-bit integer nor a UUID.
    """
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
    """Return a list of point ids. Raises: As `read_point_id`, also if the value is no list."""
    return [read_point_id(item) for item in read_list(value, path)]


def parse_point_id(text: str) -> PointId | None:
    """Return the point id in a URL, or None if the text is not one."""
    try:
        return read_point_id(int(text) if text.isascii() and text.isdigit() else text)
    except ErrorAnswer:
        return None


def not_an_id(value: Json) -> ErrorAnswer:
    """Build the response to a value that is not a point id."""
    return malformed(f"value {value} is not a valid point ID, valid values are either an unsigned integer or a UUID")
