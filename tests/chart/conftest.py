"""Fixtures: a control plane for each test process, with the namespaces that the combinations of values name."""

from collections.abc import Iterator

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.fixtures import start_control_plane
from tests.support.cluster.installation import NAMESPACE

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def running_control_plane() -> Iterator[ControlPlane]:
    """A control plane of the chart's own: objects of examples/install have the same names and another owner."""
    with start_control_plane() as started:
        yield started


@pytest.fixture(scope="session")
def namespaces(running_control_plane: ControlPlane) -> None:
    """Namespaces that enforce the restricted Pod Security standard."""
    for name in (NAMESPACE, "agents", "infra", "agentmemory-zone-keys", "agents-keys"):
        document = {"metadata": {"name": name, "labels": RESTRICTED}}
        answer = running_control_plane.http.post("/api/v1/namespaces", json=document)
        # Tests that install the chart create some of them too.
        assert answer.status_code in (201, 409), answer.text
