"""A control plane and a development Qdrant per test process, a namespace per test, an operator per module."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_fixtures import control_plane, namespace, proxy, qdrant_url, workspace
from tests.support.controlplane import ControlPlane
from tests.support.operator import Program, running, start_operator

__all__ = ["control_plane", "namespace", "proxy", "qdrant_url", "workspace"]


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """`agentmemory operator` as people run it; one for each module, because it watches the whole cluster."""
    with running(start_operator(control_plane, tmp_path_factory.mktemp("operator"))) as program:
        yield program
        # In good order, so that the next module's need not wait for the end of the lease.
        program.stop()
