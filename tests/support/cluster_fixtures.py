"""Fixtures that need a cluster, for the folders whose conftest imports them."""

import os
import pathlib
from collections.abc import Iterator

import pytest

from agentmemory_operator.domain.resources import API_VERSION
from tests.controlplane.build import find_assets
from tests.support.controlplane import ControlPlane
from tests.support.operator import running, start_qdrant, wait_until
from tests.support.proxy import Proxy, proxying
from tests.support.workspace import PLURALS, Workspace

CRDS = pathlib.Path(__file__).resolve().parents[2] / "crds"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server with the project's kinds; one for each test process."""
    assets = find_assets(os.environ)
    if assets is None:
        pytest.fail("no kube-apiserver, etcd and kubectl yet: run `make controlplane` once (about 5 minutes)")
    with ControlPlane(assets) as started:
        started.apply_crds(CRDS)
        for plural in PLURALS.values():
            path = f"/apis/{API_VERSION}/{plural}"
            wait_until(lambda path=path: started.http.get(path).status_code == 200, seconds=20, what=path)
        yield started


@pytest.fixture(scope="session")
def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development Qdrant server; one for each test process."""
    program, url = start_qdrant(tmp_path_factory.mktemp("qdrant"))
    with running(program):
        yield url


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A namespace no other test has seen; it stays, because nothing here would finish its deletion."""
    return control_plane.create_namespace()


@pytest.fixture
def workspace(control_plane: ControlPlane, namespace: str, qdrant_url: str) -> Iterator[Workspace]:
    """The namespace and the Qdrant server; the namespace's objects go with the test."""
    made = Workspace(control_plane, namespace, qdrant_url)
    yield made
    made.clean()


@pytest.fixture
def proxy(qdrant_url: str) -> Iterator[Proxy]:
    """A proxy in front of the Qdrant server that writes down the calls."""
    with proxying(qdrant_url) as made:
        yield made
