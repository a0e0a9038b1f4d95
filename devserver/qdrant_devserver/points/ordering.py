"""Order points by a payload field."""

import qdrant_edge as edge

from qdrant_devserver.error_answers import malformed, wrong_input
from qdrant_devserver.fields import Json, read_object, require
from qdrant_devserver.storage.collection import ServedCollection

_DIRECTIONS = {"asc": edge.Direction.Asc, "desc": edge.Direction.Desc}
_NO_ORDER = "Expected a string, or an object with a key, direction and/or start_from"


def read_order_by(value: Json, collection: ServedCollection) -> edge.OrderBy:
    """Build the engine's ordering.

    Raises:
        ErrorAnswer: 400 for an invalid ordering, or if the field has no index that supports ranges.
    """
    document = {"key": value} if isinstance(value, str) else read_object(value, "order_by")
    key, direction, start = require(document, "key"), document.get("direction"), document.get("start_from")
    if not isinstance(key, str) or (direction is not None and direction not in _DIRECTIONS):
        raise malformed(_NO_ORDER)
    if start is not None and (isinstance(start, bool) or not isinstance(start, int | float | str)):
        raise malformed(_NO_ORDER)
    if not supports_ranges(key, collection):
        raise wrong_input(
            f"No range index for `order_by` key: `{key}`. Please create one to use `order_by`. Check "
            "https://qdrant.tech/documentation/concepts/indexing/#payload-index "
            "to see which payload schemas support Range conditions"
        )
    return edge.OrderBy(key, _DIRECTIONS.get(direction or "asc"), start)


def supports_ranges(key: str, collection: ServedCollection) -> bool:
    """Return whether a field has an index that keeps its values sorted."""
    schema = collection.record.payload_schema.get(key, {})
    if schema.get("data_type") == "integer":
        return schema.get("params", {}).get("range") is not False
    return schema.get("data_type") in ("float", "datetime")
