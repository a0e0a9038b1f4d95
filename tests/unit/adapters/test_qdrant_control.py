import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from qdrant_client import models
from qdrant_client.http.api.collections_api import jsonable_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.configuration import ENCODINGS, QUERY_ENCODING_NAMES, creation_of, update_of
from agentmemory_operator.adapters.qdrant.control import QdrantControl
from agentmemory_operator.adapters.qdrant.nodes import QdrantNode
from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
from agentmemory_operator.collections.rules.changes import UpdateQuantization, UpdateStrictMode, WakeOptimizers
from agentmemory_operator.collections.rules.collection import LIFTED_LIMITS
from agentmemory_operator.errors import RouteNotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.spec.kinds.spec_index import StrictModeSpec
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)
from tests.support.spec.plans import desired_of
from tests.support.web.http_server import serve


async def test_local_calls_share_one_connection() -> None:
    ports: set[int] = set()

    async def handle(request: Request) -> JSONResponse:
        assert request.client is not None
        ports.add(request.client.port)
        return JSONResponse({"result": True, "status": "ok", "time": 0.0})

    with serve(Starlette(routes=[Route("/{path:path}", handle, methods=["DELETE"])])) as url:
        store = QdrantCollections(url)
        for name in ("a", "b", "c"):
            await store.delete(name)
        await store.close()

    assert len(ports) == 1


async def test_timeout_is_reported() -> None:
    async def handle(_: Request) -> JSONResponse:
        await asyncio.sleep(0.5)
        return JSONResponse({})

    with serve(Starlette(routes=[Route("/{path:path}", handle, methods=["DELETE"])])) as url:
        store = QdrantCollections(url, timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await store.delete("a")
        await store.close()


# A collection as a server newer than qdrant-client may describe it.
COLLECTION: dict[str, Any] = {
    "status": "blue",
    "optimizer_status": "ok",
    "points_count": 3,
    "segments_count": 1,
    "config": {
        "params": {"vectors": {"size": 4, "distance": "Cosine", "later": 1}, "shard_number": 1},
        "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000},
        "optimizer_config": {"default_segment_number": 0, "indexing_threshold": 10_000},
        "metadata": {},
    },
    "payload_schema": {},
}
SHARDS = {
    "peer_id": 1,
    "shard_count": 1,
    "local_shards": [{"shard_id": 0, "points_count": 0, "state": "Thawing"}],
    "remote_shards": [],
    "shard_transfers": [],
}


def answering(results: Mapping[str, Any], seen: list[Request]) -> Starlette:
    async def handle(request: Request) -> JSONResponse:
        await request.body()
        seen.append(request)
        return JSONResponse({"result": results.get(request.url.path, True), "status": "ok", "time": 0.0})

    return Starlette(routes=[Route("/{path:path}", handle, methods=["DELETE", "GET", "PATCH", "PUT"])])


async def test_unknown_response_fields_are_ignored() -> None:
    for model, document in ((models.CollectionInfo, COLLECTION), (models.CollectionClusterInfo, SHARDS)):
        with pytest.raises(ValidationError):
            model.model_validate(document)
    results = {"/collections/a": COLLECTION, "/collections/a/cluster": SHARDS, "/cluster": {"status": "disabled"}}
    results |= {path: {"aliases": []} for path in ("/aliases", "/collections/a/aliases")}

    with serve(answering(results, [])) as url:
        store, node = QdrantCollections(url), QdrantNode(QdrantControl(url))
        observed, view = await store.observe("a", "a"), await node.read_view("a")
        await store.close()
        await node.qdrant.close()

    assert observed is not None
    assert (observed.collection.size, observed.points, observed.state, observed.is_busy) == (4, 3, "blue", True)
    assert view.local == {0: "Thawing"}


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, {"status": {"error": "Wrong input: Shard 0 is not a local or queue proxy shard"}}, None),
        (404, {"status": {"error": "Not found: Snapshot a.snapshot"}}, None),
        (400, {"status": {"error": "Wrong input: Header too large"}}, StoreRejected),
        (404, {"message": "no Route matched with those values"}, RouteNotFound),
    ],
)
async def test_only_a_missing_replica_has_no_shard_snapshots(
    status: int, body: Any, error: type[Exception] | None
) -> None:
    async def handle(request: Request) -> JSONResponse:
        return JSONResponse(body, status)

    with serve(Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "DELETE"])])) as url:
        node = QdrantNode(QdrantControl(url))
        with pytest.raises(error) if error else contextlib.nullcontext():
            assert await node.files("a", 0) == []
        with pytest.raises(error) if error else contextlib.nullcontext():
            await node.delete("a", 0, "a.snapshot")
        await node.qdrant.close()


async def test_unknown_settings_are_restored() -> None:
    vectors = COLLECTION["config"]["params"]["vectors"]
    with pytest.raises(ValidationError):
        models.CreateCollection(vectors=vectors)
    index, bodies = {"type": "keyword", "later": 1}, list[dict[str, Any]]()

    async def handle(request: Request) -> JSONResponse:
        if request.method == "PUT":
            bodies.append(await request.json())
        if request.url.path.endswith("/cluster"):
            return JSONResponse({"result": SHARDS | {"local_shards": []}})
        return JSONResponse({"result": {"config": {"metadata": bodies[0]["metadata"]}}})

    with serve(Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "PUT"])])) as url:
        store = QdrantShardSnapshots(url, (url,))
        await store._make("a", {"vectors": vectors}, {"tag": index})
        await store.close()

    assert (bodies[0]["vectors"], bodies[1]) == (vectors, {"field_name": "tag", "field_schema": index})


QUANTIZATIONS: list[Quantization | None] = [
    None,
    ScalarQuantization(0.99, True),
    ProductQuantization("X16", False),
    *(BinaryQuantization(encoding, query, True) for encoding in ENCODINGS for query in QUERY_ENCODING_NAMES.values()),
    *(TurboQuantization(bits, False) for bits in ("Bits1", "Bits1_5", "Bits2", "Bits4")),
]


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=str)
def test_requests_match_the_client_models(quantization: Quantization | None) -> None:
    limits = tuple(sorted({"enabled": True, **LIFTED_LIMITS}.items()))
    assert set(dict(limits)) == set(StrictModeSpec.model_fields)
    desired = desired_of({"index": {"keyword": {"enabled": True}, "vectors": {"datatype": "Float16"}}})
    asked = creation_of(replace(desired, quantization=quantization, strict_mode=limits))
    changes = [UpdateQuantization(quantization), UpdateStrictMode(limits), WakeOptimizers()]

    assert sent(models.CreateCollection(**asked)) == asked
    assert [sent(models.UpdateCollection(**update_of(change))) for change in changes] == [*map(update_of, changes)]


def sent(model: BaseModel) -> Any:
    return json.loads(jsonable_encoder(model))


class Span:
    """Implements ports.tracing.Span."""

    headers: Mapping[str, str] = {"traceparent": "of-this-test"}

    def note(self, name: str, value: str | int) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass


class Tracer:
    """Implements ports.tracing.Tracer."""

    def span(self, name: str, **_: Any) -> contextlib.nullcontext[Span]:
        return contextlib.nullcontext(Span())

    async def close(self) -> None:
        pass


async def test_call_sends_key_and_trace_headers() -> None:
    """No headers of httpx are sent."""

    seen: list[Request] = []
    with serve(answering({}, seen)) as url:
        store = QdrantCollections(url, api_key="key")
        store.watch_calls(CallHooks(before_write=lambda: None, count_call=lambda *_: None, tracer=Tracer()))
        await store.delete("a/b")
        await store.close()

    [request] = seen
    assert request.scope["raw_path"] == b"/collections/a%2Fb"
    assert (request.headers["api-key"], request.headers["traceparent"]) == ("key", "of-this-test")
    assert request.headers["accept-encoding"] == "identity"
    assert "httpx" not in request.headers["user-agent"]
    assert [name for name in request.headers if name.startswith("x-agentmemory")] == []
