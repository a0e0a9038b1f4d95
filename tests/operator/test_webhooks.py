"""Webhooks from an object to a URL, with an operator, an API and a real control plane."""

import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.web.http_server import serve

pytestmark = pytest.mark.usefixtures("operator")

VECTOR = [1.0] * 8
KEY = "0123456789abcdef0123456789abcdef"


class Receiver:
    """Webhook receiver whose status a test sets."""

    def __init__(self) -> None:
        self.status = 503
        self.events: list[tuple[str, dict[str, Any]]] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/hook", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        if self.status == 200:
            self.events.append((request.headers["webhook-id"], json.loads(await request.body())))
        return Response(status_code=self.status)


def test_superseded_memory_is_delivered_after_failures(workspace: Workspace, api: httpx.Client) -> None:
    receiver = Receiver()
    path = f"/v1/agents/{workspace.slug}/memories"

    def store(content: str, **more: Any) -> str:
        memory = {"user_id": "u", "content": content, "vector": VECTOR, **more}
        answer = api.post(path, json=memory)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def webhook_status() -> dict[str, Any]:
        [webhook] = workspace.status().get("webhooks") or [{}]
        return dict(webhook)

    with serve(receiver.app()) as url:
        workspace.create_secret("hooks", key=KEY)
        workspace.connect(timeoutSeconds=1)
        events = ["memory_superseded", "erased"]
        hook = {"name": "ops", "url": f"{url}/hook", "events": events, "secretRef": {"name": "hooks", "key": "key"}}
        workspace.create(webhooks=[hook])
        workspace.wait_ready()
        wait_until(lambda: api.get(path, params={"user_id": "u"}).status_code == 200, seconds=10, what="the agent")
        wait_until(lambda: webhook_status().get("cursor"), seconds=30, what="where the webhook begins")
        old = store("lives in Rome")
        store("lives in Oslo", supersedes=old)
        wait_until(
            lambda: webhook_status().get("message") == "it answered 503", seconds=60, what="the failure in the status"
        )
        receiver.status = 200
        wait_until(lambda: receiver.events, seconds=60, what="the event")
        wait_until(lambda: webhook_status().get("delivered") == 1, seconds=30, what="the count in the status")
    [(_, event)] = receiver.events
    assert event["type"] == "memory_superseded"
    assert event["data"] == {"agent": workspace.slug, "id": old, "user_id": "u"}
    assert "message" not in webhook_status()
    assert KEY not in str(workspace.must_get())
