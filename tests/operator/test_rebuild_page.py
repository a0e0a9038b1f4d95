"""Commands of docs/rebuild.md, run as written."""

import pathlib

import pytest

from tests.support.cluster.workspace import Workspace
from tests.support.pages import run_page
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

PAGE = "rebuild.md"
POINTS = 7


def hold_rebuild(workspace: Workspace) -> str:
    """Create an agent with points whose changed distance waits for an approval; return the plan's digest."""
    workspace.connect(timeoutSeconds=1)
    workspace.create()
    workspace.wait_ready()
    workspace.store_points(POINTS)
    workspace.patch(index={"distance": "Dot"})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    digest: str = workspace.status()["plan"]["digest"]
    return digest


def pause_rebuild(workspace: Workspace) -> None:
    """Create an agent with an approved and paused rebuild."""
    digest = hold_rebuild(workspace)
    workspace.annotate(pause_rebuild="yes", approve_plan=digest)
    wait_until(lambda: rebuild_of(workspace).get("state") == "Paused", seconds=20, what="the pause")


def rebuild_of(workspace: Workspace) -> dict[str, str]:
    found: dict[str, str] = workspace.status().get("rebuild") or {}
    return found


def test_held_rebuild_is_approved_and_rolled_back(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    hold_rebuild(workspace)

    _, shown, _, watched = run_page(workspace, PAGE, "One that needs an approval", folder=tmp_path)

    assert "needs a Rebuild" in shown
    assert f"Rebuild of {workspace.namespace}/memory: done" in watched
    assert workspace.config()["params"]["vectors"]["distance"] == "Dot"
    assert workspace.count_points() == POINTS

    back, _ = run_page(workspace, PAGE, "Roll back", folder=tmp_path)

    assert "Rollback done" in back
    assert workspace.aliases() == {workspace.alias: workspace.physical}
    assert workspace.count_points() == POINTS


def test_paused_rebuild_is_resumed(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    pause_rebuild(workspace)

    *_, watched = run_page(workspace, PAGE, "Pause and go on", folder=tmp_path)

    assert f"Rebuild of {workspace.namespace}/memory: done" in watched
