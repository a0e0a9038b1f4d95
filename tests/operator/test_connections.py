"""QdrantConnections: TLS, key rotation, deletion and recreation. The operator uses shorter waiting times."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.support.cluster.workspace import CONNECTION, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, free_port, running, start_qdrant
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import Authority

pytestmark = pytest.mark.usefixtures("quick_operator")

PERIODS = {"stalled_s": 1.0, "probe_s": 1.0}
KEY = {"name": "qdrant-key", "key": "api-key"}
PICKED_UP_WITHIN_S = 5.0
TLS = {"caSecretRef": {"name": "qdrant-ca", "key": "ca.crt"}}


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    """Authority that issues the server's certificate."""
    return Authority(tmp_path)


@pytest.fixture
def tls_url(authority: Authority, tmp_path: pathlib.Path) -> Iterator[str]:
    """Development Qdrant server with TLS."""
    with dev_qdrant(tmp_path / "qdrant", tls=authority.issue()) as url:
        yield url


class TestTls:
    def test_wrong_ca_is_reported_until_replaced(
        self, workspace: Workspace, authority: Authority, tls_url: str, tmp_path: pathlib.Path
    ) -> None:
        workspace.create_secret("qdrant-ca", **{"ca.crt": Authority(tmp_path).pem})
        workspace.connect(url=tls_url, tls=TLS)
        workspace.create()
        condition = workspace.wait_condition("Ready", "False/TLSFailed")
        assert "spec.tls.caSecretRef" in condition["message"]
        workspace.wait_condition("Stalled", "True/TLSFailed", name=CONNECTION, of="QdrantConnection")

        workspace.change_secret("qdrant-ca", **{"ca.crt": authority.pem})

        workspace.wait_ready()


def is_served(api: httpx.Client, workspace: Workspace) -> bool:
    """Return whether the API answers a search of the workspace's agent."""
    query = {"user_id": "u", "vector": [1.0] * 8}
    return api.post(f"/v1/agents/{workspace.slug}/search", json=query).status_code == 200


class TestRotation:
    def test_new_key_is_used_without_restart(
        self, workspace: Workspace, api: httpx.Client, api_program: Program, tmp_path: pathlib.Path
    ) -> None:
        port = free_port()
        program, url = start_qdrant(tmp_path, port=port, api_key="first")
        workspace.create_secret("qdrant-key", **{"api-key": "first"})
        workspace.connect(url=url, apiKeySecretRef=KEY)
        workspace.create()
        workspace.wait_ready()
        wait_until(lambda: is_served(api, workspace), seconds=5, what="the agent in the API")
        program.stop()

        program, _ = start_qdrant(tmp_path, port=port, api_key="second")
        with running(program):
            workspace.wait_condition("Stalled", "True/QdrantRejected")
            assert not is_served(api, workspace)
            workspace.change_secret("qdrant-key", **{"api-key": "second"})

            wait_until(lambda: is_served(api, workspace), seconds=PICKED_UP_WITHIN_S, what="a search with the new key")
            workspace.patch(index={"hnsw": {"m": 24}})
            workspace.wait_ready(seconds=PICKED_UP_WITHIN_S)

        assert api_program.returncode is None

    def test_new_ca_is_used_without_restart(
        self, workspace: Workspace, api: httpx.Client, authority: Authority, tmp_path: pathlib.Path
    ) -> None:
        port, second = free_port(), Authority(tmp_path)
        workspace.create_secret("qdrant-ca", **{"ca.crt": authority.pem})
        with dev_qdrant(tmp_path / "data", port=port, tls=authority.issue()) as url:
            workspace.connect(url=url, tls=TLS)
            workspace.create()
            workspace.wait_ready()
            wait_until(lambda: is_served(api, workspace), seconds=5, what="the agent in the API")

        with dev_qdrant(tmp_path / "data", port=port, tls=second.issue()):
            workspace.wait_condition("Stalled", "True/TLSFailed")
            assert not is_served(api, workspace)
            workspace.change_secret("qdrant-ca", **{"ca.crt": second.pem})

            wait_until(lambda: is_served(api, workspace), seconds=PICKED_UP_WITHIN_S, what="a search")
            workspace.wait_ready(seconds=PICKED_UP_WITHIN_S)


class TestGoingAway:
    def test_deleted_connection_keeps_collections(self, workspace: Workspace) -> None:
        workspace.create_ready()
        before = workspace.status()["collection"]

        workspace.delete(CONNECTION, "QdrantConnection")

        condition = workspace.wait_condition("Ready", "False/ConnectionNotFound")
        assert f"{workspace.namespace}/{CONNECTION}" in condition["message"]
        assert workspace.status()["collection"] == before
        assert workspace.physicals() == [workspace.physical]
        workspace.connect()
        workspace.wait_ready()
        assert workspace.status()["collection"] == before
