"""Fixtures that need a cluster. They are a plugin: a module that imported them would start servers of its own."""

import contextlib
import pathlib
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.support.cluster.controlplane import SHARED_OPERATORS, ControlPlane
from tests.support.cluster.operators import SERVING, ForkedOperator, OperatorForks, start_api, start_operator
from tests.support.cluster.workspace import PLURALS, Workspace, remove_objects
from tests.support.patience import wait_until
from tests.support.programs import Program, find_built, running, start_qdrant
from tests.support.web.qdrant_proxy import Proxy, serve_proxy

CRDS = pathlib.Path(__file__).resolve().parents[3] / "crds"


def _is_served(control_plane: ControlPlane, path: str) -> bool:
    return bool(control_plane.http.get(path).status_code == 200)


@contextlib.contextmanager
def start_control_plane() -> Iterator[ControlPlane]:
    """Start a real API server with the project's CRDs."""
    with ControlPlane(find_built()) as started:
        started.apply_crds(CRDS)
        for plural in PLURALS.values():
            path = f"/apis/{API_VERSION}/{plural}"
            wait_until(partial(_is_served, started, path), seconds=20, what=path)
        yield started


@pytest.fixture(scope="session")
def running_control_plane() -> Iterator[ControlPlane]:
    """The API server of a test process."""
    with start_control_plane() as started:
        yield started


@pytest.fixture(scope="module")
def control_plane(running_control_plane: ControlPlane, request: pytest.FixtureRequest) -> ControlPlane:
    """The API server without objects of earlier modules: a dead connection would delay the first set of claims.

    A shared operator ends before a module that uses none.
    """
    module = [item for item in request.session.items if item.path == request.path]
    names = {name for item in module if isinstance(item, pytest.Function) for name in item.fixturenames}
    if names.isdisjoint(SHARED_OPERATORS):
        running_control_plane.watcher.end()
    remove_objects(running_control_plane)
    return running_control_plane


@pytest.fixture(scope="session")
def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development Qdrant server; one per test process."""
    program, url = start_qdrant(tmp_path_factory.mktemp("qdrant"))
    with running(program):
        yield url


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace. It is not deleted, because no controller would complete the deletion."""
    return control_plane.create_namespace()


@pytest.fixture
def workspace(control_plane: ControlPlane, namespace: str, qdrant_url: str) -> Iterator[Workspace]:
    """The namespace with the Qdrant server. Its objects are removed after the test."""
    made = Workspace(control_plane, namespace, qdrant_url)
    yield made
    made.clean()


@pytest.fixture
def proxy(qdrant_url: str) -> Iterator[Proxy]:
    """A proxy in front of the Qdrant server that records the calls."""
    with serve_proxy(qdrant_url) as made:
        yield made


@contextlib.contextmanager
def _running_operator(control_plane: ControlPlane, folder: pathlib.Path) -> Iterator[Program]:
    with running(start_operator(control_plane, folder)) as program:
        yield program
        # A regular stop releases the lease, so the next operator need not wait until it expires.
        program.stop()


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """`agentmemory operator` as users run it. The modules of a test process share one, until another one starts."""
    folder = tmp_path_factory.mktemp("operator")
    made = control_plane.watcher.get("operator", lambda: _running_operator(control_plane, folder))
    if made.returncode is not None:
        # The next module starts another one.
        control_plane.watcher.end()
        pytest.fail(f"the operator ended in an earlier module: {made.log[-1500:]}")
    return made


@pytest.fixture(scope="module")
def nursery(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorForks]:
    """Server that forks operators, one at a time."""
    made = OperatorForks(control_plane, tmp_path_factory.mktemp("operators"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def quick_operator(nursery: OperatorForks, request: pytest.FixtureRequest) -> ForkedOperator:
    """The operator with the module's `PERIODS`, which are shorter than the defaults."""
    return nursery.start(periods=request.module.PERIODS)


@pytest.fixture(scope="module")
def api_program(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """`agentmemory api` on the cluster, without authentication."""
    program, _ = start_api(control_plane, tmp_path_factory.mktemp("api"))
    with running(program):
        yield program


@pytest.fixture(scope="module")
def api(api_program: Program) -> Iterator[httpx.Client]:
    """HTTP client of `api_program`."""
    with httpx.Client(base_url=api_program.wait_for(SERVING)[1], timeout=30) as client:
        yield client
