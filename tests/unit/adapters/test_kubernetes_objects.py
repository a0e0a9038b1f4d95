"""Stored parts of Kubernetes objects, and the result of a status write."""

import json
from typing import Any

import pytest
from kubernetes.aio import client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster, strip_managed_fields
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.web.http_server import serve

SENT = json.dumps(
    {
        "metadata": {"name": "a", "managedFields": [{"manager": "kubectl"}]},
        "status": {"conditions": [{"type": "Succeeded", "message": "made"}], "sizeBytes": 5},
    }
)


def test_managed_fields_are_stripped() -> None:
    assert strip_managed_fields("MemorySnapshot", json.loads(SENT)) == {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "MemorySnapshot",
        "metadata": {"name": "a"},
        "status": {"conditions": [{"type": "Succeeded", "message": "made"}], "sizeBytes": 5},
    }


def test_config_map_keeps_its_api_version() -> None:
    assert strip_managed_fields("ConfigMap", {"metadata": {"name": "a"}, "data": {}})["apiVersion"] == "v1"


def test_equal_strings_are_shared() -> None:
    one, other = (strip_managed_fields("MemorySnapshot", json.loads(SENT))["status"]["conditions"][0] for _ in range(2))

    assert one["message"] is other["message"]
    assert [id(key) for key in one] == [id(key) for key in other]


@pytest.mark.parametrize(
    ("code", "body", "version"),
    [
        (200, {"metadata": {"name": "a", "resourceVersion": "8"}, "status": {}}, "8"),
        (404, {"message": "not found"}, ""),
        (422, {"message": "the server rejected our request due to an error in our request"}, ""),
    ],
    ids=["it is there", "it is gone", "another one has its name"],
)
async def test_status_write_returns_the_new_version(code: int, body: dict[str, Any], version: str) -> None:
    async def answer(request: Request) -> Response:
        return JSONResponse(body, status_code=code)

    with serve(Starlette(routes=[Route("/{path:path}", answer, methods=["PATCH"])])) as url:
        cluster = KubernetesCluster(client.Configuration(host=url))
        found = await cluster.write_status("AgentMemory", Metadata(name="a", uid="u"), {"agent": "a"})
        await cluster.close()

    assert found == version
