"""Watches of the API server: every response counts as activity, so that silence can be detected."""

import asyncio
import json
import threading
from collections.abc import Iterator

from kubernetes.aio import client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentmemory_operator.adapters.kubernetes.cluster import WATCH_TIMEOUT_S, KubernetesCluster
from tests.support.web.http_server import serve

LIST = {"items": [], "metadata": {"resourceVersion": "1"}}
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}
ADDED = {"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "3"}}}


class FakeServer:
    """Server with an empty list and a watch that sends events on demand."""

    def __init__(self) -> None:
        self.send_bookmark, self.send_object = threading.Event(), threading.Event()
        self.timeouts: list[str] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._answer)])

    async def _answer(self, request: Request) -> Response:
        if "watch" not in request.query_params:
            return JSONResponse(LIST)
        self.timeouts.append(request.query_params["timeoutSeconds"])
        return StreamingResponse(self._events())

    def _events(self) -> Iterator[str]:
        for requested, event in ((self.send_bookmark, BOOKMARK), (self.send_object, ADDED)):
            requested.wait(20)
            yield json.dumps(event) + "\n"


async def test_lists_events_and_bookmarks_are_activity() -> None:
    server, heard = FakeServer(), 0

    def count() -> None:
        nonlocal heard
        heard += 1

    async def wait_for(number: int) -> None:
        async with asyncio.timeout(20):
            while heard < number:
                await asyncio.sleep(0.01)

    with serve(server.app()) as url:
        cluster = KubernetesCluster(client.Configuration(host=url))
        events = cluster.follow("AgentMemory", count)
        assert await anext(events) == ("LIST", [])
        assert heard == 1
        following = asyncio.create_task(anext(events))
        await wait_for(2)
        server.send_bookmark.set()
        await wait_for(3)
        assert not following.done()
        server.send_object.set()
        kind, document = await following
        await events.aclose()
        await cluster.close()

    assert (kind, heard) == ("ADDED", 4)
    assert isinstance(document, dict)
    assert server.timeouts == [str(WATCH_TIMEOUT_S)]


async def test_list_is_paged_and_drops_managed_fields() -> None:
    names = [f"memory-{number}" for number in range(5)]

    async def answer(request: Request) -> Response:
        start = int(request.query_params.get("continue", "0"))
        items = [
            {"metadata": {"name": name, "managedFields": [{"manager": "any"}]}} for name in names[start : start + 2]
        ]
        more = {"continue": str(start + 2)} if start + 2 < len(names) else {}
        return JSONResponse({"items": items, "metadata": {"resourceVersion": "7"} | more})

    with serve(Starlette(routes=[Route("/{path:path}", answer)])) as url:
        cluster = KubernetesCluster(client.Configuration(host=url))
        documents, version = await cluster.list_objects("AgentMemory")
        await cluster.close()

    assert [document["metadata"] for document in documents] == [{"name": name} for name in names]
    assert version == "7"
