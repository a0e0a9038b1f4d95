"""Access of the API to Qdrant: tokens for the points of one agent are renewed, replaced and revoked. The operator uses
shorter waiting times; the development Qdrant accepts tokens.
"""

import base64
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.adapters.kubernetes.agent_secret_store import SECRET_PREFIX
from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from agentmemory_operator.connections.rules.agent_secret_slots import slot_name
from agentmemory_operator.connections.rules.host_lists import destinations_of
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import SIZE, Workspace
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import ROOT, free_port, running, start_qdrant
from tests.support.web.http_server import serve
from tests.support.web.services import FakeOpenAI, failure

pytestmark = pytest.mark.usefixtures("quick_operator")

# Outside a cluster, operator and API use the namespace `default`.
SECRETS = "/api/v1/namespaces/default/secrets"
PERIODS = {"stalled_s": 1.0, "probe_s": 1.0, "resync_s": 1.0}
KEY, NEW_KEY = "a key of at least thirty-two characters", "another key of thirty-two characters"
KEY_REF = {"name": "qdrant-key", "key": "api-key"}
VECTOR = [1.0] * SIZE


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Development Qdrant server that accepts the key, and tokens."""
    program, url = start_qdrant(tmp_path_factory.mktemp("guarded"), api_key=KEY, has_jwt_rbac=True)
    with running(program):
        yield url


@pytest.fixture
def guarded(control_plane: ControlPlane, guarded_url: str, api: httpx.Client) -> Iterator[Workspace]:
    workspace = agent_on(control_plane, guarded_url)
    wait_until(lambda: is_served(api, workspace), seconds=10, what="the agent in the API")
    yield workspace
    workspace.clean()


def agent_on(control_plane: ControlPlane, url: str) -> Workspace:
    """Create a namespace with a connection that has a key, and an agent that is Ready."""
    workspace = Workspace(control_plane, control_plane.create_namespace(), url)
    workspace.qdrant.headers["api-key"] = KEY
    workspace.create_secret("qdrant-key", **{"api-key": KEY})
    workspace.connect(apiKeySecretRef=KEY_REF)
    workspace.create(scoring={"scoreThreshold": -1, "minSimilarity": -1})
    workspace.wait_ready(seconds=20)
    return workspace


def is_served(api: httpx.Client, workspace: Workspace) -> bool:
    search = {"user_id": "u", "vector": VECTOR}
    return api.post(f"/v1/agents/{workspace.slug}/search", json=search).status_code == 200


def handed_over(workspace: Workspace) -> str:
    """Return the credential that the API has instead of the connection's key."""
    return base64.b64decode(secret_of(workspace).json()["data"][slot(workspace)]).decode()


def slot(workspace: Workspace) -> str:
    """Return the name of the API's credential in the Secret."""
    return slot_name((workspace.namespace, "qdrant-key", "api-key"), destinations_of(workspace.qdrant_url))


def secret_of(workspace: Workspace) -> httpx.Response:
    return workspace.control_plane.http.get(f"{SECRETS}/{SECRET_PREFIX}{workspace.slug}")


def test_api_token_opens_only_its_agents_points(
    guarded: Workspace, control_plane: ControlPlane, guarded_url: str, api: httpx.Client
) -> None:
    other = agent_on(control_plane, guarded_url)
    memory = {"user_id": "u", "content": "the safe opens with 4711", "vector": VECTOR}
    assert api.post(f"/v1/agents/{guarded.slug}/memories", json=memory).status_code == 201
    token = handed_over(guarded)

    def ask(path: str) -> int:
        return httpx.post(f"{guarded_url}/collections/{path}", json={}, headers={"api-key": token}).status_code

    assert guarded.status()["access"]["qdrant"] == "Token"
    assert ask(f"{guarded.alias}/points/count") == 200
    assert ask(f"{guarded.physical}/points/count") == 403
    assert ask(f"{other.alias}/points/count") == 403
    assert ask("aliases") == 403
    assert KEY not in [base64.b64decode(value).decode() for value in secret_of(guarded).json()["data"].values()]
    other.clean()


def test_qdrant_client_reads_points_with_the_token(guarded: Workspace, guarded_url: str, api: httpx.Client) -> None:
    memory = {"user_id": "ada", "content": "pays by invoice", "tags": ["billing"], "vector": VECTOR}
    assert api.post(f"/v1/agents/{guarded.slug}/memories", json=memory).status_code == 201
    # The API's namespace is `default` in this test.
    [command] = read_commands("qdrant-client.md", "A token for one agent")
    command = command.replace("agentmemory-system", "default").replace("support-bot", guarded.slug)
    programs = [str(guarded.control_plane.assets), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KUBECONFIG": str(guarded.control_plane.kubeconfig),
        "QDRANT_URL": guarded_url,
        "EXAMPLE_AGENT": guarded.slug,
    }

    def run(command: str, **more: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment | more, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    token = run(command).strip()

    assert token == handed_over(guarded)
    assert run("python examples/qdrant-client/read.py", QDRANT_TOKEN=token) == "billing: 'pays by invoice'\nfact: 1\n"


def test_rotated_key_replaces_tokens(control_plane: ControlPlane, api: httpx.Client, tmp_path: pathlib.Path) -> None:
    port = free_port()
    program, url = start_qdrant(tmp_path, port=port, api_key=KEY, has_jwt_rbac=True)
    with running(program):
        workspace = agent_on(control_plane, url)
        wait_until(lambda: is_served(api, workspace), seconds=10, what="the agent in the API")
        before = handed_over(workspace)

    program, _ = start_qdrant(tmp_path, port=port, api_key=NEW_KEY, has_jwt_rbac=True)
    with running(program):
        workspace.change_secret("qdrant-key", **{"api-key": NEW_KEY})

        wait_until(lambda: is_served(api, workspace), seconds=15, what="a search with a new token")
        assert handed_over(workspace) != before
        assert QdrantTokens().expiry_s(handed_over(workspace), NEW_KEY, workspace.alias)
        workspace.qdrant.headers["api-key"] = NEW_KEY
        workspace.clean()


def test_rotated_embedding_key_reaches_the_api(workspace: Workspace, api: httpx.Client) -> None:
    provider = FakeOpenAI()
    workspace.create_secret("openai", key="old")
    with serve(provider.app()) as url:
        ref = {"name": "openai", "key": "key"}
        embedding = {"provider": "openai", "model": "m", "dimensions": SIZE, "baseURL": f"{url}/v1", "secretRef": ref}
        workspace.create_ready(embedding=embedding)
        wait_until(lambda: search(api, workspace, "one") == 200, seconds=10, what="the agent in the API")

        workspace.change_secret("openai", key="new")
        workspace.request_pass()
        in_place = base64.b64encode(b"new").decode()
        wait_until(
            lambda: in_place in secret_of(workspace).json()["data"].values(), seconds=10, what="the key in the Secret"
        )
        provider.faults = [failure(401)]

        assert search(api, workspace, "two") == 200
        assert provider.keys[-3:] == ["Bearer old", "Bearer old", "Bearer new"]


def search(api: httpx.Client, workspace: Workspace, query: str) -> int:
    return api.post(f"/v1/agents/{workspace.slug}/search", json={"user_id": "u", "query": query}).status_code
