"""Vectors of points and queries: their shapes and sizes."""

from typing import Any, TypeAlias

from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.fields import Json
from agentmemory_operator.devserver.problems import invalid, malformed, not_built, vector_missing, wrong_input

Vector: TypeAlias = list[float]
_NO_VARIANT = "data did not match any variant of untagged enum VectorStruct"


def read_point_vectors(value: Json, collection: Collection) -> Vector | dict[str, Any]:
    """Return a point's vectors: one nameless, or a map by name.

    Raises:
        Problem: 400 for an unknown name, a wrong size or no numbers; 501 for sparse vectors, multivectors and texts.
    """
    if isinstance(value, list):
        return read_dense(value, collection, name="")
    if not isinstance(value, dict):
        raise malformed(_NO_VARIANT)
    if is_inference(value):
        raise not_built("inference (a text, image or object instead of a vector)")
    return {name: _read_named(name, vector, collection) for name, vector in value.items()}


def read_dense(value: Json, collection: Collection, *, name: str) -> Vector:
    """Return a dense vector of the right size."""
    if value and isinstance(value[0], list):
        raise not_built("multivectors")
    # One pass in C for the common case, all floats; whole numbers are told from booleans only when there are some.
    if not set(map(type, value)) <= {float, int}:
        raise malformed(_NO_VARIANT)
    if not value:
        raise invalid("vector", "Validation error: vector must not be empty [{}]")
    params = collection.vectors.get(name)
    if params is None:
        raise vector_missing(name)
    if len(value) != params["size"]:
        raise wrong_input(f"Vector dimension error: expected dim: {params['size']}, got {len(value)}")
    vector: Vector = value
    return vector


def is_inference(document: dict[str, Any]) -> bool:
    """Tell whether an object asks the server to embed something."""
    return "model" in document and not isinstance(document["model"], list)


def is_sparse(document: dict[str, Any]) -> bool:
    """Tell whether an object is a sparse vector."""
    return "indices" in document and "values" in document


def _read_named(name: str, value: Json, collection: Collection) -> Vector:
    if isinstance(value, dict):
        if is_inference(value):
            raise not_built("inference (a text, image or object instead of a vector)")
        if is_sparse(value):
            raise not_built("sparse vectors of points")
    if not isinstance(value, list):
        raise malformed(_NO_VARIANT)
    return read_dense(value, collection, name=name)
