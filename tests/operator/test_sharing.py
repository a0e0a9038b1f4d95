"""A connection of another namespace serves an object only if it allows that namespace."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.support.cluster.operators import start_api
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import running, start_qdrant
from tests.support.spec.documents import allowed_namespaces

pytestmark = pytest.mark.usefixtures("quick_operator")

PERIODS = {"stalled_s": 1.0, "probe_s": 1.0}


@pytest.fixture
def infra(workspace: Workspace) -> Iterator[Workspace]:
    """Another namespace, with the connections."""
    made = Workspace(workspace.control_plane, workspace.control_plane.create_namespace(), workspace.qdrant_url)
    yield made
    made.clean()


def refer(workspace: Workspace, infra: Workspace) -> None:
    """Create the agent with a reference to the other namespace's connection."""
    workspace.create(connectionRef={"name": "main", "namespace": infra.namespace})


def test_connection_is_private_by_default(workspace: Workspace, infra: Workspace) -> None:
    infra.connect()
    refer(workspace, infra)
    condition = workspace.wait_condition("Stalled", "True/ConnectionNotAllowed")
    assert f"{infra.namespace}/main may not be used from namespace {workspace.namespace}" in condition["message"]
    assert workspace.physicals() == []

    infra.patch("main", kind="QdrantConnection", **allowed_namespaces("All"))

    workspace.wait_ready()


def test_revoked_connection_keeps_collection(workspace: Workspace, infra: Workspace) -> None:
    infra.connect(**allowed_namespaces("All"))
    refer(workspace, infra)
    workspace.wait_ready()

    infra.patch("main", kind="QdrantConnection", **allowed_namespaces("Same"))

    workspace.wait_condition("Stalled", "True/ConnectionNotAllowed")
    assert workspace.physicals() == [workspace.physical]


def test_key_is_read_in_connection_namespace(workspace: Workspace, infra: Workspace, tmp_path: pathlib.Path) -> None:
    program, url = start_qdrant(tmp_path / "qdrant", api_key="right")
    with running(program):
        workspace.create_secret("qdrant-key", key="wrong")
        infra.create_secret("qdrant-key", key="right")
        infra.connect(url=url, apiKeySecretRef={"name": "qdrant-key", "key": "key"}, **allowed_namespaces("All"))

        refer(workspace, infra)

        workspace.wait_ready()


def test_revoked_connection_stops_the_api(workspace: Workspace, infra: Workspace, tmp_path: pathlib.Path) -> None:
    infra.connect(**allowed_namespaces("All"))
    refer(workspace, infra)
    workspace.wait_ready()
    program, url = start_api(workspace.control_plane, tmp_path)
    with running(program):
        path, body = f"{url}/v1/agents/{workspace.slug}/search", {"vector": [1.0] * 8, "user_id": "u"}
        wait_until(lambda: httpx.post(path, json=body).status_code == 200, seconds=10, what="the search")

        infra.patch("main", kind="QdrantConnection", **allowed_namespaces("Same"))

        answer = wait_until(
            lambda: (found := httpx.post(path, json=body)).status_code == 503 and found, seconds=5, what="a refusal"
        )
        assert "may not be used from namespace" in answer.json()["detail"]
