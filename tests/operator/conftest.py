"""A control plane and a development Qdrant per test process, a namespace per test, an operator per module."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_fixtures import control_plane, qdrant_url
from tests.support.controlplane import ControlPlane
from tests.support.operator import Program, running, start_operator
from tests.support.proxy import Proxy, proxying
from tests.support.workspace import Workspace

__all__ = ["control_plane", "qdrant_url"]


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A namespace no other test has seen; it stays, because nothing here would finish its deletion."""
    return control_plane.create_namespace()


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """`agentmemory operator` as people run it; one for each module, because it watches the whole cluster."""
    with running(start_operator(control_plane, tmp_path_factory.mktemp("operator"))) as program:
        yield program
        # In good order, so that the next module's need not wait for the end of the lease.
        program.stop()


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
