"""Counts of Events while the API server fails."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.kubernetes import events as module
from agentmemory_operator.adapters.kubernetes.events import BURST, KubernetesEvents
from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.web.http_server import serve

SUBJECT = Metadata(name="memory", namespace="agents", uid="u", resource_version="1")
NEWS = Event("Warning", "QdrantUnavailable", "Qdrant cannot be reached")


async def test_failed_write_keeps_the_count() -> None:
    now_s, posted = 0.0, list[dict[str, Any]]()

    async def answer(request: Request) -> Response:
        posted.append(await request.json())
        return JSONResponse(
            posted[-1], status_code=503 if posted[-1]["message"] == NEWS.message and now_s < 600 else 201
        )

    with serve(Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])) as url:
        transport = KubernetesTransport(Configuration(host=url))
        events = KubernetesEvents(transport, now_s=lambda: now_s)
        for number in range(BURST):
            await events.post("AgentMemory", SUBJECT, Event("Normal", "Applied", f"change {number}"))
        for _ in range(3):
            await events.post("AgentMemory", SUBJECT, NEWS)
        now_s = 300.0
        await events.post("AgentMemory", SUBJECT, NEWS)
        now_s = 600.0
        await events.post("AgentMemory", SUBJECT, NEWS)
        await transport.close()

    assert (posted[-1]["message"], posted[-1]["count"]) == (NEWS.message, 5)


async def test_counts_beyond_the_rate_limit_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTS", 10)
    transport = KubernetesTransport(Configuration(host="http://127.0.0.1:9"))
    events = KubernetesEvents(transport, now_s=lambda: 0.0)

    for number in range(BURST + 50):
        await events.post("AgentMemory", SUBJECT, Event("Normal", "Applied", f"change {number}"))
    await transport.close()

    assert len(events._dropped) <= 11
