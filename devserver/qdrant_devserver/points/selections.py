"""Select the parts of points to return."""

from typing import TypeAlias

import qdrant_edge as edge

from qdrant_devserver.error_answers import malformed, vector_missing
from qdrant_devserver.fields import Document, Json
from qdrant_devserver.storage.collection import ServedCollection

WithPayload: TypeAlias = bool | edge.PayloadSelector
WithVector: TypeAlias = bool | list[str]
_NO_PAYLOAD_SELECTION = "Expected a boolean, an array of strings, or an object with an include/exclude field"
_NO_VECTOR_SELECTION = "Expected a boolean, or an array of strings"


def read_with_payload(document: Document, *, default: bool) -> WithPayload:
    """Read the payload selection of a request; `default` if it has none.

    Raises:
        ErrorAnswer: 400 for a malformed selection.
    """
    value = document.get("with_payload")
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    if _is_texts(value):
        return edge.PayloadSelector.Include(value)
    if isinstance(value, dict) and len(value) == 1:
        ((name, keys),) = value.items()
        if name == "include" and _is_texts(keys):
            return edge.PayloadSelector.Include(keys)
        if name == "exclude" and _is_texts(keys):
            return edge.PayloadSelector.Exclude(keys)
    raise malformed(_NO_PAYLOAD_SELECTION)


def read_with_vector(document: Document, collection: ServedCollection) -> WithVector:
    """Read the vector selection of a request; the default is none.

    Raises:
        ErrorAnswer: 400 for a malformed selection or an unknown vector.
    """
    value = document.get("with_vector", document.get("with_vectors"))
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    if _is_texts(value):
        return [_read_name(name, collection) for name in value]
    raise malformed(_NO_VECTOR_SELECTION)


def _read_name(name: str, collection: ServedCollection) -> str:
    if name not in collection.vectors and name not in collection.sparse_vectors:
        raise vector_missing(name)
    return name


def _is_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
