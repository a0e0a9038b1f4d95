"""User agent, field manager and credentials of requests to the API server; a pod configuration that is unusable."""

import pathlib
from typing import Any

import kopf
import pytest
import trustme
from kopf._cogs.clients.auth import APIContext
from kubernetes.aio import client
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator import __version__
from agentmemory_operator.adapters.kubernetes import transport
from agentmemory_operator.adapters.kubernetes.transport import (
    API,
    CLI,
    OPERATOR,
    Configuration,
    KubernetesTransport,
    OwnConfiguration,
    user_agent,
)
from agentmemory_operator.entrypoints.operator.handlers import connection_info
from agentmemory_operator.errors import AgentMemoryError
from tests.support.web.http_server import serve

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


async def sent_by(configuration: Configuration, url: str) -> None:
    configuration.host = url
    sender = KubernetesTransport(configuration)
    for method in METHODS:
        await sender.call(method, "/x", None if method == "GET" else {}, query=[("limit", "1")])
    await sender.close()


@pytest.mark.parametrize("program", [OPERATOR, API, CLI])
async def test_each_program_names_itself(program: str) -> None:
    seen: dict[str, tuple[str, list[tuple[str, str]]]] = {}

    async def answer(request: Request) -> Response:
        seen[request.method] = request.headers["user-agent"], request.query_params.multi_items()
        return JSONResponse({})

    with serve(Starlette(routes=[Route("/{path:path}", answer, methods=METHODS)])) as url:
        await sent_by(OwnConfiguration(program), url)

    managed = [("limit", "1"), ("fieldManager", program)]
    assert {method: query for method, (_, query) in seen.items()} == {
        "GET": [("limit", "1")],
        "POST": managed,
        "PUT": managed,
        "PATCH": managed,
        "DELETE": [("limit", "1")],
    }
    assert all(agent.startswith(f"{program}/{__version__} (") for agent, _ in seen.values())


def test_default_user_agent_is_the_cli() -> None:
    assert user_agent(client.Configuration()).startswith("agentmemory-cli/")


async def test_kopf_sends_user_agent_and_credentials() -> None:
    given: dict[str, Any] = {"api_key": {"BearerToken": "Bearer t0ken"}}
    configuration = OwnConfiguration(OPERATOR, host="http://127.0.0.1:9", **given)
    info = await connection_info(configuration)
    assert isinstance(info, kopf.ConnectionInfo)

    context = APIContext(info)
    headers = context.session.headers
    await context.close()

    assert (headers["User-Agent"], headers["Authorization"]) == (user_agent(configuration), "Bearer t0ken")


async def test_kopf_sends_the_token_of_a_pod(tmp_path: pathlib.Path) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("t0ken")
    authority.write_text(trustme.CA().cert_pem.bytes().decode())
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"}
    configuration = OwnConfiguration(OPERATOR)
    InClusterConfigLoader(str(token), str(authority), environ=environ).load_and_set(configuration)

    info = await connection_info(configuration)

    assert (info.scheme, info.token) == ("Bearer", "t0ken")


async def test_unusable_pod_configuration_is_reported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (namespace := tmp_path / "namespace").write_text("agents")
    monkeypatch.setattr(transport, "POD_NAMESPACE", namespace)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(AgentMemoryError, match="the ServiceAccount of this pod cannot be used"):
        await transport.load_context(None)
