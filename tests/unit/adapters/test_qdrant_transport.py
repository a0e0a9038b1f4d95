import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.errors import StoreUnavailable
from tests.support.web.http_server import serve


async def test_calls_to_a_local_server_share_one_connection() -> None:
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


async def test_a_server_that_does_not_answer_in_time_is_said_so() -> None:
    async def handle(_: Request) -> JSONResponse:
        await asyncio.sleep(0.5)
        return JSONResponse({})

    with serve(Starlette(routes=[Route("/{path:path}", handle, methods=["DELETE"])])) as url:
        store = QdrantCollections(url, timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await store.delete("a")
        await store.close()
