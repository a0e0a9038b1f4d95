"""What docs/rebuild.md says to do, done as a person would who copies its commands."""

import pathlib

import pytest

from tests.support.cluster.workspace import Workspace
from tests.support.pages import run_page
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

PAGE = "rebuild.md"
POINTS = 7


def held(workspace: Workspace) -> str:
    """Have an agent with points whose changed distance waits for an approval; return the plan's digest."""
    workspace.connect(timeoutSeconds=1)
    workspace.create()
    workspace.wait_ready()
    workspace.store_points(POINTS)
    workspace.patch(index={"distance": "Dot"})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    digest: str = workspace.status()["plan"]["digest"]
    return digest


def paused(workspace: Workspace) -> None:
    """Have one that is approved, and stands still."""
    digest = held(workspace)
    workspace.annotate(pause_rebuild="yes", approve_plan=digest)
    wait_until(lambda: rebuild_of(workspace).get("state") == "Paused", seconds=20, what="the pause")


def rebuild_of(workspace: Workspace) -> dict[str, str]:
    found: dict[str, str] = workspace.status().get("rebuild") or {}
    return found


def test_a_held_rebuild_is_approved_watched_to_its_end_and_rolled_back(
    workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    held(workspace)

    _, shown, _, watched = run_page(workspace, PAGE, "One that needs an approval", folder=tmp_path)

    assert "needs a Rebuild" in shown
    assert f"Rebuild of {workspace.namespace}/memory: done" in watched
    assert workspace.config()["params"]["vectors"]["distance"] == "Dot"
    assert workspace.count_points() == POINTS

    back, _ = run_page(workspace, PAGE, "Roll back", folder=tmp_path)

    assert "Rollback done" in back
    assert workspace.aliases() == {workspace.alias: workspace.physical}
    assert workspace.count_points() == POINTS


def test_one_is_paused_and_goes_on_to_its_end(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    paused(workspace)

    *_, watched = run_page(workspace, PAGE, "Pause and go on", folder=tmp_path)

    assert f"Rebuild of {workspace.namespace}/memory: done" in watched
