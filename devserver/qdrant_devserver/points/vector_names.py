"""Add and remove named vectors while a collection is in use."""

import copy

from qdrant_devserver.error_answers import malformed, not_built, wrong_input
from qdrant_devserver.fields import Document, Structure, Unsigned, read_structure, require
from qdrant_devserver.points.updates import apply_operation
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.configuration import (
    DATATYPE,
    DISTANCE,
    MAX_VECTOR_SIZE,
    MODIFIER,
    check_names,
    dense_vectors,
)
from qdrant_devserver.storage.engine_configuration import rebuild_key, vector_operations
from qdrant_devserver.storage.shards import Shards

_DENSE: Structure = {"size": Unsigned(1, MAX_VECTOR_SIZE), "distance": DISTANCE, "datatype": DATATYPE}
_SPARSE: Structure = {"modifier": MODIFIER, "datatype": DATATYPE}


def add_vector(configuration: Document, name: str, body: Document) -> Document:
    """Return the configuration with another vector; unchanged if it already has that vector.

    Raises:
        ErrorAnswer: 400 if another vector has the name, or for a name or body that is not allowed; 422 for a wrong
            size; 501 for multivectors.
    """
    if isinstance(body.get("dense"), dict):
        changed = _add_dense(configuration, name, body["dense"])
    elif isinstance(body.get("sparse"), dict):
        changed = _add_sparse(configuration, name, body["sparse"])
    else:
        raise malformed("data did not match any variant of untagged enum VectorNameConfig")
    check_names(changed["params"])
    return changed


def drop_vector(configuration: Document, name: str) -> Document:
    """Return the configuration without a vector; an unknown name is no error."""
    changed = copy.deepcopy(configuration)
    params = changed["params"]
    if name in dense_vectors(params):
        params["vectors"] = {other: vector for other, vector in dense_vectors(params).items() if other != name}
    params.get("sparse_vectors", {}).pop(name, None)
    return changed


def check_sparse_unchanged(stored: Document, merged: Document) -> None:
    """Raise if a PATCH changes sparse vectors that are already stored; the engine does not support it.

    Raises:
        ErrorAnswer: 501.
    """
    before, after = (document["params"].get("sparse_vectors", {}) for document in (stored, merged))
    for name, vector in before.items():
        if vector.get("modifier", "none") != after[name].get("modifier", "none"):
            raise not_built(f"another modifier of the sparse vector {name} once points are stored")
        if vector.get("index", {}).get("datatype") != after[name].get("index", {}).get("datatype"):
            raise not_built(f"another datatype of the sparse vector {name} once points are stored")


def apply_configuration(shards: Shards, collection: ServedCollection, configuration: Document, name: str) -> None:
    """Store a configuration with an added or removed vector, and update the engine's files.

    The caller holds the write lock. If the process crashes in between, the next opening of the shard completes the
    change.
    """
    record = collection.record
    indexed = record.indexed_base > 0
    # The engine changes the vector in place, so this needs no rebuild. A rebuild that was already due stays due.
    if record.built == rebuild_key(record.configuration, indexed=indexed):
        record.built = rebuild_key(configuration, indexed=indexed)
    record.configuration = configuration
    if record.generation is None:
        collection.save()
        return
    shard = shards.open(collection)
    # Without it, a replay after a crash would apply an older write to a newer vector of the same name with another
    # shape.
    shard.flush()
    record.unsettled = name
    collection.save()
    for operation in vector_operations(configuration, name):
        apply_operation(shard, collection, operation)
    record.unsettled = None
    collection.save()


def _add_dense(configuration: Document, name: str, document: Document) -> Document:
    if document.get("multivector_config") is not None:
        raise not_built("multivectors (multivector_config)")
    for field in ("size", "distance"):
        require(document, field)
    requested = read_structure(document, _DENSE, "dense")
    params = configuration["params"]
    if name in params.get("sparse_vectors", {}):
        raise wrong_input(f"Vector `{name}` already exists as a sparse vector")
    existing = dense_vectors(params).get(name)
    if existing is None:
        changed = copy.deepcopy(configuration)
        changed["params"]["vectors"] = dense_vectors(changed["params"]) | {name: requested}
        return changed
    if {field: existing[field] for field in _DENSE if field in existing} != requested:
        raise wrong_input(f"Vector `{name}` already exists with a different configuration")
    return configuration


def _add_sparse(configuration: Document, name: str, document: Document) -> Document:
    requested = read_structure(document, _SPARSE, "sparse")
    params = configuration["params"]
    if name in dense_vectors(params):
        raise wrong_input(f"Vector `{name}` already exists as a dense vector")
    existing = params.get("sparse_vectors", {}).get(name)
    if existing is None:
        changed = copy.deepcopy(configuration)
        changed["params"].setdefault("sparse_vectors", {})[name] = _sparse_params(requested)
        return changed
    if (existing.get("modifier"), existing.get("index", {}).get("datatype")) != (
        requested.get("modifier"),
        requested.get("datatype"),
    ):
        raise wrong_input(f"Sparse vector `{name}` already exists with a different configuration")
    return configuration


def _sparse_params(requested: Document) -> Document:
    index = {"index": {"datatype": requested["datatype"]}} if "datatype" in requested else {}
    return index | {field: requested[field] for field in ("modifier",) if field in requested}
