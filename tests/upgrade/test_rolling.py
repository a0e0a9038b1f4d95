"""Upgrade and rollback under load, on a real API server: no request fails, and nothing acknowledged is lost."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.rollout import CURRENT, ProductVersion, Rollout, rollout
from tests.support.cluster.traffic.journal import Journal
from tests.support.cluster.traffic.witness import SPEC, Witness
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import find_built

# Pause of writers and readers between two calls, which leaves CPU time for the versions under test.
PACE_S = 0.02
# Memories before, between and after the changes.
STORED = 25
# Versions that are upgraded to the present one. There is no release before 0.1.0, so it is upgraded to itself.
BEFORE = (CURRENT,)


@pytest.fixture
def bare_control_plane() -> Iterator[ControlPlane]:
    """Control plane without our kinds."""
    with ControlPlane(find_built()) as started:
        yield started


def failures(journal: Journal) -> dict[str, int]:
    """Count the responses that are failures for a caller: none, temporarily refused, or a server error."""
    return {status: count for status, count in journal.statuses.items() if not status.startswith(("2", "404"))}


def is_served(installed: Rollout, workspace: Workspace) -> bool:
    return httpx.get(f"{installed.service.url}/v1/agents/{workspace.slug}").status_code == 200


@pytest.mark.parametrize("before", BEFORE, ids=lambda version: version.name)
def test_upgrade_and_rollback_under_load(
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
                # Only the new leader can apply this change.
                workspace.patch(scoring=SPEC["scoring"] | {"limit": limit})
                workspace.wait_condition("Ready", "True/Serving", seconds=20)
                witness.wait_for(STORED)
            witness.check(qdrant_url, workspace.alias)

        assert failures(witness.journal) == {}, installed.logs
        assert workspace.physicals() == [workspace.physical], "nothing was rebuilt"
        print(f"{before.name}: {sum(witness.journal.statuses.values())} requests, {dict(witness.journal.statuses)}")
        workspace.clean()
