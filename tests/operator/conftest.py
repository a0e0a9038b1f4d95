"""A control plane per test process, and a namespace per test."""

import os
import pathlib
from collections.abc import Iterator

import pytest
from tests.controlplane.build import find_assets
from tests.support.controlplane import ControlPlane

CRDS = pathlib.Path(__file__).resolve().parents[2] / "crds"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server with the project's kinds; one for each test process."""
    assets = find_assets(os.environ)
    if assets is None:
        pytest.fail("no kube-apiserver, etcd and kubectl yet: run `make controlplane` once (about 5 minutes)")
    with ControlPlane(assets) as running:
        if any(CRDS.glob("*.yaml")):
            running.apply_crds(CRDS)
        yield running


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A namespace no other test has seen; it stays, because nothing here would finish its deletion."""
    return control_plane.create_namespace()
