"""Fixtures: one installation for all tests of this folder."""

import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.e2e.installed import KUBECONFIG, Installed, as_pods, as_processes, wait_installed


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The chart in the cluster of `E2E_KUBECONFIG`, or, without it, as processes on this machine."""
    folder = tmp_path_factory.mktemp("installed")
    kubeconfig = os.environ.get(KUBECONFIG)
    with as_pods(pathlib.Path(kubeconfig), folder) if kubeconfig else as_processes(folder) as made:
        wait_installed(made)
        yield made
