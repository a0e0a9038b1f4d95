"""An upgrade and the way back, under load, on a real API server: no request fails, and nothing acknowledged is lost."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.rollout import CURRENT, ProductVersion, Rollout, rollout
from tests.support.cluster.witness.journal import Journal
from tests.support.cluster.witness.witness import SPEC, Witness
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import find_built

# Writers and readers pause so long between two calls: what they take of the machine the versions have not.
PACE_S = 0.02
# Before, between and after.
STORED = 25
# The versions that go over to the present one. Nothing is released before 0.1.0, so it goes over to itself.
BEFORE = (CURRENT,)


@pytest.fixture
def bare_control_plane() -> Iterator[ControlPlane]:
    """A control plane without our kinds."""
    with ControlPlane(find_built()) as started:
        yield started


def failed(journal: Journal) -> dict[str, int]:
    """Return the answers that a caller would call a failure: none, refused for now, or the server's fault."""
    return {status: count for status, count in journal.statuses.items() if not status.startswith(("2", "404"))}


def is_served(installed: Rollout, workspace: Workspace) -> bool:
    return httpx.get(f"{installed.service.url}/v1/agents/{workspace.slug}").status_code == 200


@pytest.mark.parametrize("before", BEFORE, ids=lambda version: version.name)
def test_up_and_back_under_load(
    bare_control_plane: ControlPlane, qdrant_url: str, tmp_path: pathlib.Path, before: ProductVersion
) -> None:
    with rollout(bare_control_plane, tmp_path) as installed:
        installed.install(before)
        workspace = Workspace(bare_control_plane, bare_control_plane.create_namespace(), qdrant_url)
        workspace.create_ready(**SPEC)
        wait_until(lambda: is_served(installed, workspace), seconds=20, what="the agent in the API")
        with Witness([installed.service.url], workspace.slug, pace_s=PACE_S) as witness:
            witness.wait_for(STORED)
            for version, limit in ((CURRENT, 7), (before, 8)):
                installed.upgrade(version)
                # The new leader carries out what is asked of it.
                workspace.patch(scoring=SPEC["scoring"] | {"limit": limit})
                workspace.wait_condition("Ready", "True/Serving", seconds=20)
                witness.wait_for(STORED)
            witness.check(qdrant_url, workspace.alias)

        assert failed(witness.journal) == {}, installed.logs
        assert workspace.physicals() == [workspace.physical], "nothing was rebuilt"
        print(f"{before.name}: {sum(witness.journal.statuses.values())} requests, {dict(witness.journal.statuses)}")
        workspace.clean()
