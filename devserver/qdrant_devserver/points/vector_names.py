"""Named vectors that come and go while a collection is in use."""

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
from qdrant_devserver.storage.engine_configuration import rebuilt_by, settling_operations
from qdrant_devserver.storage.shards import Shards

_DENSE: Structure = {"size": Unsigned(1, MAX_VECTOR_SIZE), "distance": DISTANCE, "datatype": DATATYPE}
_SPARSE: Structure = {"modifier": MODIFIER, "datatype": DATATYPE}


def add_vector(configuration: Document, name: str, body: Document) -> Document:
    """The configuration with one more vector; the same one when it has that vector already.

    Raises:
        ErrorAnswer: 400 for a name that is taken by another vector, or that no vector may have; 422 for a wrong size;
            501 for multivectors.
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
    """The configuration without a vector; an unknown one is no error."""
    changed = copy.deepcopy(configuration)
    params = changed["params"]
    if name in dense_vectors(params):
        params["vectors"] = {other: vector for other, vector in dense_vectors(params).items() if other != name}
    params.get("sparse_vectors", {}).pop(name, None)
    return changed


def check_sparse_unchanged(stored: Document, merged: Document) -> None:
    """Refuse a PATCH that turns sparse vectors already stored into others; the engine cannot.

    Raises:
        ErrorAnswer: 501.
    """
    before, after = (document["params"].get("sparse_vectors", {}) for document in (stored, merged))
    for name, vector in before.items():
        if vector.get("modifier", "none") != after[name].get("modifier", "none"):
            raise not_built(f"another modifier of the sparse vector {name} once points are stored")
        if vector.get("index", {}).get("datatype") != after[name].get("index", {}).get("datatype"):
            raise not_built(f"another datatype of the sparse vector {name} once points are stored")


def put_in_force(shards: Shards, collection: ServedCollection, configuration: Document, name: str) -> None:
    """Store a configuration with one vector more or less, and make the engine's files agree; under the write lock.

    A crash in between is finished when the shard is opened next.
    """
    record = collection.record
    indexed = record.indexed_base > 0
    # What the engine adds or drops in place needs no rebuilding; what was due before still is.
    if record.built == rebuilt_by(record.configuration, indexed=indexed):
        record.built = rebuilt_by(configuration, indexed=indexed)
    record.configuration = configuration
    if record.generation is None:
        collection.save()
        return
    shard = shards.open(collection)
    # Replayed after a crash, an older write of a vector of this name would meet a newer vector of another shape.
    shard.flush()
    record.unsettled = name
    collection.save()
    for operation in settling_operations(configuration, name):
        apply_operation(shard, collection, operation)
    record.unsettled = None
    collection.save()


def _add_dense(configuration: Document, name: str, document: Document) -> Document:
    if document.get("multivector_config") is not None:
        raise not_built("multivectors (multivector_config)")
    for field in ("size", "distance"):
        require(document, field)
    asked = read_structure(document, _DENSE, "dense")
    params = configuration["params"]
    if name in params.get("sparse_vectors", {}):
        raise wrong_input(f"Vector `{name}` already exists as a sparse vector")
    known = dense_vectors(params).get(name)
    if known is None:
        changed = copy.deepcopy(configuration)
        changed["params"]["vectors"] = dense_vectors(changed["params"]) | {name: asked}
        return changed
    if {field: known[field] for field in _DENSE if field in known} != asked:
        raise wrong_input(f"Vector `{name}` already exists with a different configuration")
    return configuration


def _add_sparse(configuration: Document, name: str, document: Document) -> Document:
    asked = read_structure(document, _SPARSE, "sparse")
    params = configuration["params"]
    if name in dense_vectors(params):
        raise wrong_input(f"Vector `{name}` already exists as a dense vector")
    known = params.get("sparse_vectors", {}).get(name)
    if known is None:
        changed = copy.deepcopy(configuration)
        changed["params"].setdefault("sparse_vectors", {})[name] = _sparse_params(asked)
        return changed
    if (known.get("modifier"), known.get("index", {}).get("datatype")) != (
        asked.get("modifier"),
        asked.get("datatype"),
    ):
        raise wrong_input(f"Sparse vector `{name}` already exists with a different configuration")
    return configuration


def _sparse_params(asked: Document) -> Document:
    index = {"index": {"datatype": asked["datatype"]}} if "datatype" in asked else {}
    return index | {field: asked[field] for field in ("modifier",) if field in asked}
