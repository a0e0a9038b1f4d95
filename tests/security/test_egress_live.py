"""Objects of a tenant on the real API server: forbidden addresses are refused and reported."""

import pathlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_operator
from tests.support.cluster.workspace import CONNECTION, Workspace
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running

# Addresses of this machine, which represents the cluster, but no internet names.
ALLOWED = "127.0.0.1,localhost,*.qdrant.svc"


@pytest.fixture(scope="module", autouse=True)
def own_operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("operator")
    with running(start_operator(control_plane, folder, AGENTMEMORY_ALLOWED_HOSTS=ALLOWED)) as program:
        yield program
        program.stop()


@pytest.fixture(scope="module")
def api(
    control_plane: ControlPlane, qdrant_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """API that may connect to Qdrant only."""
    command = (*AGENTMEMORY, "api", "--source", "kubernetes", "--port", "0")
    environment = {"KUBECONFIG": str(control_plane.kubeconfig), "AGENTMEMORY_AUTH": "none"}
    log = tmp_path_factory.mktemp("api") / "api.log"
    listed = urlsplit(qdrant_url).netloc
    program = Program(log, *command, AGENTMEMORY_ALLOWED_HOSTS=listed, **environment)
    with running(program), httpx.Client(base_url=program.wait_for(r"API (http://\S+)")[1], timeout=30) as client:
        yield client


def api_server(control_plane: ControlPlane) -> str:
    return urlsplit(str(control_plane.http.base_url)).netloc


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[::ffff:169.254.169.254]", "metadata.google.internal", "10.1.2.3"],
)
def test_forbidden_connection_is_reported(workspace: Workspace, host: str) -> None:
    workspace.connect(url=f"http://{host}")
    workspace.create()

    condition = workspace.wait_condition("Stalled", "True/HostNotAllowed", name=CONNECTION, of="QdrantConnection")
    assert condition["message"].startswith("spec.url: ")
    assert workspace.wait_condition("Stalled", "True/HostNotAllowed")["message"] == condition["message"]


def test_api_server_is_refused_as_qdrant(workspace: Workspace, control_plane: ControlPlane) -> None:
    workspace.connect(url=f"https://{api_server(control_plane)}")
    workspace.create()
    condition = workspace.wait_condition("Stalled", "True/HostNotAllowed")
    assert "API server" in condition["message"]

    # Qdrant has the same address and another port.
    workspace.patch(CONNECTION, kind="QdrantConnection", url=workspace.qdrant_url)

    workspace.wait_ready()


def test_forbidden_embedder_is_refused_by_both(workspace: Workspace, api: httpx.Client) -> None:
    """The collection exists and names the embedder, as after an upgrade."""
    embedding = {"provider": "openai", "model": "m", "dimensions": 8, "baseURL": "http://127.0.0.1:9/v1"}
    workspace.connect()
    workspace.create(embedding=embedding)
    workspace.wait_ready()
    search = f"/v1/agents/{workspace.slug}/search"
    by_text, by_vector = {"user_id": "u", "query": "q"}, {"user_id": "u", "vector": [1.0] * 8}
    wait_until(lambda: api.post(search, json=by_vector).status_code == 200, seconds=10, what="a search by a vector")
    answer = api.post(search, json=by_text)
    assert answer.status_code == 503
    assert "spec.embedding.baseURL: connections to 127.0.0.1:9 are blocked" in answer.json()["detail"]

    workspace.patch(embedding=embedding | {"baseURL": "http://169.254.169.254/latest"})

    condition = workspace.wait_condition("Stalled", "True/HostNotAllowed")
    assert condition["message"].startswith("spec.embedding.baseURL: connections to 169.254.169.254:80 are blocked")


def test_unlisted_embedder_is_reported(workspace: Workspace) -> None:
    embedding = {"provider": "openai", "model": "m", "dimensions": 8, "baseURL": "http://127.0.0.1:9/v1"}
    workspace.connect()
    workspace.create(embedding=embedding)
    workspace.wait_ready()
    workspace.patch(embedding=embedding | {"baseURL": "http://10.9.9.9/v1"})
    condition = workspace.wait_condition("Stalled", "True/HostNotAllowed")
    assert "AGENTMEMORY_ALLOWED_HOSTS" in condition["message"]


def test_forbidden_restore_source_and_storage_fail(workspace: Workspace) -> None:
    workspace.connect(url=workspace.qdrant_url, restoreSources=["10.9.9.9"])
    workspace.create()
    workspace.wait_ready()
    source = {"url": "https://10.9.9.9/a.snapshot", "sha256": "0" * 64}
    workspace.create_restore("by-url", source)

    condition = workspace.wait_condition("Succeeded", "False/HostNotAllowed", name="by-url", of="MemoryRestore")
    assert condition["message"].startswith("source.url: connections to 10.9.9.9:443 are blocked")

    workspace.create_secret("s3", **{"access-key-id": "a", "secret-access-key": "b"})
    place = {"endpoint": "http://169.254.169.254", "bucket": "backups", "key": "a", "secretRef": {"name": "s3"}}
    workspace.create_restore("from-s3", {"s3": place | {"sha256": "0" * 64}})

    condition = workspace.wait_condition("Succeeded", "False/HostNotAllowed", name="from-s3", of="MemoryRestore")
    assert condition["message"].startswith("endpoint: connections to 169.254.169.254:80 are blocked")


def test_invalid_setting_ends_the_command(control_plane: ControlPlane, tmp_path: pathlib.Path) -> None:
    program = Program(
        tmp_path / "log", *AGENTMEMORY, "operator", AGENTMEMORY_ALLOWED_HOSTS="http://a.example", KUBECONFIG="/nowhere"
    )
    with running(program):
        program.wait_for(r"agentmemory: AGENTMEMORY_ALLOWED_HOSTS: 'http://a.example' is not a network")
