"""Capabilities of a server as the operator reads them."""

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.errors import StoreRejected
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import serve

PEER = {"uri": "http://qdrant-0:6335/"}
RAFT = {"term": 1, "commit": 2, "pending_operations": 0, "leader": 1, "role": "Leader", "is_voter": True}
CLUSTER = {
    "status": "enabled",
    "peer_id": 1,
    "peers": {"1": PEER, "2": PEER, "3": PEER},
    "raft_info": RAFT,
    "consensus_thread_status": {"consensus_thread_status": "working", "last_update": "2026-11-20T00:00:00Z"},
    "message_send_failures": {},
}
APP = {"name": "qdrant", "version": "1.19.0", "startup": "2026-11-20T00:00:00Z"}


class Answers:
    """A server with a given cluster and telemetry, in the format of Qdrant's OpenAPI document of 1.19."""

    def __init__(self, cluster: tuple[int, Any], app: dict[str, Any] | None) -> None:
        self.telemetry_calls = 0
        self._cluster = cluster
        self._app = app

    def app(self) -> Starlette:
        routes: list[tuple[str, Callable[[Request], Any]]] = [
            ("/", self._version),
            ("/collections/{name}/exists", self._exists),
            ("/cluster", self._answer_cluster),
            ("/telemetry", self._telemetry),
        ]
        return Starlette(routes=[Route(path, answer) for path, answer in routes])

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"title": "qdrant - vector search engine", "version": "1.19.0"})

    async def _exists(self, _: Request) -> Response:
        return self._result({"exists": False})

    async def _answer_cluster(self, _: Request) -> Response:
        status, result = self._cluster
        return self._result(result, status)

    async def _telemetry(self, request: Request) -> Response:
        self.telemetry_calls += 1
        assert request.query_params["details_level"] == "1", "more would be measured anew, of every collection"
        return self._result(None, 500) if self._app is None else self._result(telemetry(self._app))

    def _result(self, result: Any, status: int = 200) -> Response:
        return JSONResponse({"result": result, "status": "ok", "time": 0.0}, status)


def telemetry(app: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "app": app, "collections": {"number_of_collections": 0}}


@pytest.fixture
async def open_store() -> AsyncIterator[Callable[[str], QdrantCollections]]:
    """Open stores and close them after the test."""
    stores: list[QdrantCollections] = []

    def open_one(url: str) -> QdrantCollections:
        stores.append(QdrantCollections(url))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


async def test_single_server_has_one_peer(
    open_store: Callable[[str], QdrantCollections], tmp_path: pathlib.Path
) -> None:
    with dev_qdrant(tmp_path) as url:
        capabilities = await open_store(url).server()

    assert replace(capabilities, disk_bytes=None, ram_bytes=None) == ServerCapabilities("1.18.3", 1, False)
    assert min(capabilities.disk_bytes or 0, capabilities.ram_bytes or 0) > 1 << 28


@pytest.mark.parametrize(
    ("cluster", "app", "server"),
    [
        ((200, CLUSTER), APP | {"jwt_rbac": True}, ServerCapabilities("1.19.0", 3, True)),
        ((200, {"status": "disabled"}), APP | {"jwt_rbac": False}, ServerCapabilities("1.19.0", 1, False)),
        ((403, None), APP, ServerCapabilities("1.19.0", None, False)),
        (
            (200, {"status": "disabled"}),
            APP | {"system": {"disk_size": 1024, "ram_size": 512, "cores": 2}},
            ServerCapabilities("1.19.0", 1, False, disk_bytes=1 << 20, ram_bytes=1 << 19),
        ),
        ((200, {"status": "disabled"}), APP | {"system": {"disk_size": None}}, ServerCapabilities("1.19.0", 1, False)),
        ((200, CLUSTER), None, ServerCapabilities("1.19.0", 3, None)),
    ],
    ids=[
        *("a cluster with tokens", "a single server without tokens", "a key without cluster access"),
        *("the size of the machine", "no size of the machine", "no telemetry"),
    ],
)
async def test_peers_and_tokens_are_read(
    open_store: Callable[[str], QdrantCollections],
    cluster: tuple[int, Any],
    app: dict[str, Any] | None,
    server: ServerCapabilities,
) -> None:
    with serve(Answers(cluster, app).app()) as url:
        assert await open_store(url).server() == server


async def test_telemetry_is_read_once_per_version(open_store: Callable[[str], QdrantCollections]) -> None:
    answers = Answers((200, CLUSTER), APP | {"jwt_rbac": True})
    with serve(answers.app()) as url:
        store = open_store(url)
        for _ in range(3):
            assert (await store.server()).has_jwt_rbac

    assert answers.telemetry_calls == 1


async def test_wrong_key_is_detected(open_store: Callable[[str], QdrantCollections], tmp_path: pathlib.Path) -> None:
    """Qdrant returns its version without a key."""
    with dev_qdrant(tmp_path, api_key="secret") as url, pytest.raises(StoreRejected):
        await open_store(url).server()


async def test_concurrent_reads_give_the_same_result(open_store: Callable[[str], QdrantCollections]) -> None:
    with serve(Answers((200, CLUSTER), APP | {"jwt_rbac": True}).app()) as url:
        store = open_store(url)

        async def ask(number: int) -> ServerCapabilities:
            await asyncio.sleep(number / 500)
            return await store.server()

        servers = await asyncio.gather(*map(ask, range(20)))

    assert servers == [ServerCapabilities("1.19.0", 3, True)] * 20
