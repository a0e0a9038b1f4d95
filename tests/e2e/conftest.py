"""Fixtures: the installation, and an agent on it."""

import os
import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.installed import KUBECONFIG, QDRANT, Installed, as_pods, as_processes, wait_installed
from tests.e2e.served_agent import WITHIN_S, ServedAgent
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.tenants import Account, Caller
from tests.support.cluster.workspace import Workspace, confirm_delete
from tests.support.patience import wait_until


def scope_of_installation(fixture_name: str, config: pytest.Config) -> str:
    """Return the scope: processes serve all tests, forwards to pods are opened for each."""
    return "function" if os.environ.get(KUBECONFIG) else "session"


@pytest.fixture(scope=scope_of_installation)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The chart in the cluster of `E2E_KUBECONFIG`, or, without it, as processes on this machine."""
    folder = tmp_path_factory.mktemp("installed")
    kubeconfig = os.environ.get(KUBECONFIG)
    with as_pods(pathlib.Path(kubeconfig), folder) if kubeconfig else as_processes(folder) as made:
        wait_installed(made)
        yield made


@pytest.fixture
def agent(installed: Installed) -> Iterator[ServedAgent]:
    """Agent with a namespace of its own, on the chart's Qdrant."""
    cluster = installed.control_plane
    workspace = Workspace(cluster, cluster.create_namespace("e2e-"), installed.qdrant_url)
    workspace.qdrant.headers["api-key"] = installed.qdrant_key
    bot = Account.create(cluster, workspace.namespace, "bot")
    head = {"Authorization": f"Bearer {bot.token()}"}
    workspace.create(
        connectionRef={"name": QDRANT, "namespace": NAMESPACE},
        embedding={"provider": "wordllama", "dimensions": 256},
        access={"subjects": [bot.subject("read", "write")]},
        scoring={"scoreThreshold": -1, "minSimilarity": -1},
        deletionPolicy="Delete",
        annotations=confirm_delete(workspace.alias),
    )
    with httpx.Client(base_url=f"{installed.api_url}/v1/agents/", headers=head, timeout=30) as http:
        made = ServedAgent(workspace, Caller(bot, http))
        workspace.wait_ready(seconds=WITHIN_S)
        wait_until(lambda: made.search().status_code == 200, seconds=WITHIN_S, what="the agent in the API")
        yield made
    workspace.clean()
