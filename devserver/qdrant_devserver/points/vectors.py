"""Validate the vectors of points and queries."""

from typing import Any, TypeAlias

import qdrant_edge as edge

from qdrant_devserver.error_answers import (
    ErrorAnswer,
    invalid,
    malformed,
    not_built,
    vector_missing,
    wrong_input,
)
from qdrant_devserver.fields import Document, Json, read_list
from qdrant_devserver.points.inference import embed_point, embed_query, is_inference
from qdrant_devserver.storage.collection import ServedCollection

Vector: TypeAlias = list[float] | edge.SparseVector
_NO_VARIANT = "data did not match any variant of untagged enum VectorStruct"
_LARGEST_INDEX = 2**32 - 1


def read_point_vectors(value: Json, collection: ServedCollection) -> Vector | dict[str, Any]:
    """Read a point's vectors: one without a name, or a map by name.

    Raises:
        ErrorAnswer: 400 for an unknown name, a wrong size or values that are no numbers; 422 for an invalid sparse
            vector; 501 for multivectors and unsupported models.
    """
    if isinstance(value, list):
        return read_dense(value, collection, name="")
    if not isinstance(value, dict):
        raise malformed(_NO_VARIANT)
    if is_inference(value):
        embed_point(value)
        raise ErrorAnswer(400, "Bad request: Sparse vector from document inference should be named")
    return {name: _read_named(name, vector, collection) for name, vector in value.items()}


def read_query_vector(value: Json, collection: ServedCollection, *, name: str) -> Vector:
    """Read the vector of a query, for the vectors named `name`; embed it if it is a text.

    Raises:
        ErrorAnswer: As `read_point_vectors`.
    """
    if isinstance(value, list):
        return read_dense(value, collection, name=name)
    if isinstance(value, dict) and is_inference(value):
        return _as_sparse(embed_query(value), collection, name=name)
    return _as_sparse(read_sparse(value, "query"), collection, name=name)


def read_dense(value: Json, collection: ServedCollection, *, name: str) -> list[float]:
    """Read a dense vector and check its size.

    Raises:
        ErrorAnswer: 400 for an unknown name, a wrong size or other values; 422 if it is empty; 501 for a multivector.
    """
    if value and isinstance(value[0], list):
        raise not_built("multivectors")
    # One pass in C for the common case of floats only. This distinguishes integers from booleans too.
    if not set(map(type, value)) <= {float, int}:
        raise malformed(_NO_VARIANT)
    if not value:
        raise invalid("vector", "Validation error: vector must not be empty [{}]")
    params = collection.vectors.get(name)
    if params is None:
        raise _other_kind(name, collection.sparse_vectors)
    if len(value) != params["size"]:
        raise wrong_input(f"Vector dimension error: expected dim: {params['size']}, got {len(value)}")
    vector: list[float] = value
    return vector


def read_sparse(value: Json, path: str) -> edge.SparseVector:
    """Read a sparse vector; its indices may have any order.

    Raises:
        ErrorAnswer: 400 for wrong types; 422 for a repeated index, or unequal numbers of values and indices.
    """
    if not isinstance(value, dict) or not is_sparse(value):
        raise malformed(_NO_VARIANT)
    indices, values = read_list(value["indices"], f"{path}.indices"), read_list(value["values"], f"{path}.values")
    if not set(map(type, indices)) <= {int} or not all(0 <= index <= _LARGEST_INDEX for index in indices):
        raise malformed(_NO_VARIANT)
    if not set(map(type, values)) <= {float, int}:
        raise malformed(_NO_VARIANT)
    if len(indices) != len(values):
        raise invalid(f"{path}.values", "Validation error: must be the same length as indices [{}]")
    if len(set(indices)) != len(indices):
        raise invalid(f"{path}.indices", "Validation error: must be unique [{}]")
    return edge.SparseVector(indices, values)


def is_sparse(document: Document) -> bool:
    """Return whether an object is a sparse vector."""
    return "indices" in document and "values" in document


def render_vectors(vectors: Json) -> Json:
    """Build the JSON of a stored point's vectors."""
    if not isinstance(vectors, dict):
        return vectors
    return {
        name: {"indices": vector.indices, "values": vector.values} if isinstance(vector, edge.SparseVector) else vector
        for name, vector in vectors.items()
    }


def _read_named(name: str, value: Json, collection: ServedCollection) -> Vector:
    if isinstance(value, list):
        return read_dense(value, collection, name=name)
    if isinstance(value, dict) and is_inference(value):
        return _as_sparse(embed_point(value), collection, name=name)
    return _as_sparse(read_sparse(value, "vector.?"), collection, name=name)


def _as_sparse(vector: edge.SparseVector, collection: ServedCollection, *, name: str) -> edge.SparseVector:
    if name not in collection.sparse_vectors:
        raise _other_kind(name, collection.vectors)
    return vector


def _other_kind(name: str, others: dict[str, Document]) -> ErrorAnswer:
    """Build the response to a vector with an unknown name, or with the name of a vector of the other kind."""
    if name in others:
        return wrong_input("Conversion between sparse and regular vectors failed")
    return vector_missing(name)
