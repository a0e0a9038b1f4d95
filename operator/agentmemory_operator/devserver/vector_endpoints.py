"""Endpoints that add and drop named vectors; adding dense ones is not built."""

import qdrant_edge as edge
from starlette.requests import Request

from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.collection_endpoints import collection_of, state_of, update_result
from agentmemory_operator.devserver.configuration import read_sparse_vector
from agentmemory_operator.devserver.fields import Document
from agentmemory_operator.devserver.problems import malformed, not_built, wrong_input
from agentmemory_operator.devserver.requests import read_body, read_wait
from agentmemory_operator.devserver.state import State
from agentmemory_operator.devserver.updates import apply_operation, write_access


async def create_vector(request: Request) -> Document:
    """PUT /collections/{name}/vectors/{vector}; one that is there as asked for is left as it is."""
    read_wait(request)
    state, body, name = state_of(request), await read_body(request), request.path_params["vector"]
    if "dense" in body:
        raise not_built("adding a dense vector")
    if "sparse" not in body:
        raise malformed("data did not match any variant of untagged enum VectorNameConfig")
    wanted = read_sparse_vector(body["sparse"], "sparse", state.features)
    collection = collection_of(request)
    if name in collection.vectors:
        raise wrong_input(f"Vector `{name}` already exists as a dense vector")
    async with write_access(collection):
        there = collection.sparse_vectors.get(name)
        if there is not None and there.get("modifier") != wanted.get("modifier"):
            raise wrong_input(f"Sparse vector `{name}` already exists with a different configuration")
        if there is None:
            added = edge.UpdateOperation.create_sparse_vector(name, _modifier_of(wanted))
            _change(state, collection, added, collection.sparse_vectors | {name: wanted})
        number = collection.next_operation()
    return update_result(request, number)


async def delete_vector(request: Request) -> Document:
    """DELETE /collections/{name}/vectors/{vector}; one that is not there is no error."""
    read_wait(request)
    state, name = state_of(request), request.path_params["vector"]
    collection = collection_of(request)
    if name in collection.vectors:
        raise not_built("dropping a dense vector")
    async with write_access(collection):
        if name in collection.sparse_vectors:
            kept = {other: vector for other, vector in collection.sparse_vectors.items() if other != name}
            _change(state, collection, edge.UpdateOperation.delete_vector_name(name), kept)
        number = collection.next_operation()
    return update_result(request, number)


def _modifier_of(vector: Document) -> edge.Modifier | None:
    return edge.Modifier.Idf if vector.get("modifier") == "idf" else None


def _change(state: State, collection: Collection, operation: edge.UpdateOperation, sparse: dict[str, Document]) -> None:
    """Let the engine go first: repeated after a crash in between, the request is applied to the rest."""
    if collection.record.generation is not None:
        apply_operation(state.shards.open(collection), collection, operation)
    params = {key: value for key, value in collection.record.configuration["params"].items() if key != "sparse_vectors"}
    if sparse:
        params["sparse_vectors"] = sparse
    collection.record.configuration = collection.record.configuration | {"params": params}
    collection.save()
    state.optimizations.wake(collection)
