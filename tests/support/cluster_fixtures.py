"""Fixtures that need a cluster, for the folders whose conftest imports them."""

import os
import pathlib
from collections.abc import Iterator

import pytest

from agentmemory_operator.domain.resources import API_VERSION
from tests.controlplane.build import find_assets
from tests.support.controlplane import ControlPlane
from tests.support.operator import running, start_qdrant, wait_until
from tests.support.workspace import PLURALS

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
