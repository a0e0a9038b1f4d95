"""Fixtures: the installation, an agent on it, and a pod that calls it."""

import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.e2e.aged_pods import AgedPods, start_aged
from tests.e2e.installed import KUBECONFIG, QDRANT, Installed, RunningCluster, as_pods, as_processes, wait_installed
from tests.e2e.pods import CallerPod, QdrantPod, start_caller
from tests.e2e.served_agent import PRINTER, ServedAgent, serve_agent
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.workspace import Workspace


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
    workspace = Workspace(
        installed.control_plane, installed.control_plane.create_namespace("e2e-"), installed.qdrant_url
    )
    workspace.qdrant.headers["api-key"] = installed.qdrant_key
    with serve_agent(workspace, installed.api_url, connectionRef={"name": QDRANT, "namespace": NAMESPACE}) as made:
        yield made


@pytest.fixture
def cluster(installed: Installed) -> RunningCluster:
    """The cluster of `E2E_KUBECONFIG`."""
    assert isinstance(installed.control_plane, RunningCluster)
    return installed.control_plane


@pytest.fixture
def small_qdrant(cluster: RunningCluster) -> QdrantPod:
    """Qdrant with a small disk of its own, in a new namespace that has a connection to it."""
    workspace = Workspace(cluster, cluster.create_namespace("e2e-"), "http://only-in-the-cluster:6333")
    made = QdrantPod(workspace)
    made.start()
    made.connect()
    return made


@pytest.fixture
def caller(agent: ServedAgent) -> CallerPod:
    """A pod that searches continuously through the Service; it has received its first responses."""
    agent.store(PRINTER)
    made = start_caller(agent)
    made.wait_for_calls()
    assert made.lines("failed") == []
    return made


@pytest.fixture(scope="session")
def aged_pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgedPods]:
    """Pods with tokens of 10 minutes."""
    with as_pods(pathlib.Path(os.environ[KUBECONFIG]), tmp_path_factory.mktemp("aged")) as installed:
        wait_installed(installed)
        with start_aged(installed) as made:
            yield made


@pytest.fixture(scope="session", autouse=True)
def early_start(request: pytest.FixtureRequest) -> None:
    """Start `aged_pods` with the first test of the session, if any test needs them."""
    if KUBECONFIG in os.environ and any("aged_pods" in item.fixturenames for item in request.session.items):
        request.getfixturevalue("aged_pods")
