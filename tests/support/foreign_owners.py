"""Collections that belong to another owner than the object that asks for them."""

from typing import Any

from tests.support.workspace import Workspace

OLD_UID = "5c9a7f3e-0000-4000-8000-000000000001"
OLD_CLUSTER = "old-cluster"


def leave_behind(workspace: Workspace, **owner: str) -> None:
    """Leave the workspace's collection with three memories to another owner, and its object gone."""
    workspace.create_ready()
    workspace.store_points(3)
    workspace.delete()
    workspace.wait_gone()
    mark(workspace, uid=OLD_UID, **owner)


def mark(workspace: Workspace, **owner: str) -> None:
    """Change the marker in the collection's metadata."""
    marker: dict[str, Any] = workspace.config()["metadata"]["agentmemory"] | owner
    body = {"metadata": {"agentmemory": marker}}
    workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body).raise_for_status()


def marker_of(workspace: Workspace) -> dict[str, Any]:
    marker: dict[str, Any] = workspace.config()["metadata"]["agentmemory"]
    return marker
