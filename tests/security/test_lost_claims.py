"""Deleted claims are recreated: existing agents are served, and freed names are not given to other namespaces."""

from collections.abc import Iterator

import pytest

from agentmemory_operator.adapters.kubernetes.claim_config_maps import LABEL, PARTS, PREFIX, parse_claims
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import LEADING
from tests.support.cluster.workspace import Workspace, conditions_of
from tests.support.patience import wait_until
from tests.support.programs import Program

# Outside a pod the claims are in the namespace `default`.
CLAIMS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def workspaces(control_plane: ControlPlane, qdrant_url: str) -> Iterator[list[Workspace]]:
    """Three namespaces."""
    made = [Workspace(control_plane, control_plane.create_namespace(), qdrant_url) for _ in range(3)]
    yield made
    for workspace in made:
        workspace.clean()


def delete_claims(control_plane: ControlPlane, *parts: str) -> None:
    """Delete parts of the claims."""
    for part in parts:
        control_plane.http.delete(f"{CLAIMS}/{PREFIX}{part}").raise_for_status()


def test_start_without_claims_restores_ownership(
    control_plane: ControlPlane, operator: Program, workspaces: list[Workspace]
) -> None:
    served, freed, taker = workspaces
    for workspace in (served, freed):
        workspace.create_ready()
        workspace.store_points(3)
    freed.delete()
    freed.wait_deleted()
    operator.stop()
    delete_claims(control_plane, *PARTS)
    before = served.collection()
    assert before is not None
    thief = Workspace(control_plane, taker.namespace, taker.qdrant_url, claims=freed.slug)
    thief.connect()
    thief.create()
    operator.restart(LEADING)

    # The status from before the restart proves nothing.
    stamp = served.request_pass()
    wait_until(lambda: served.status().get("lastHandledReconcileAt") == stamp, seconds=15, what="a pass")
    found = served.wait_ready(seconds=15)
    thief.wait_condition("Stalled", "True/SlugTaken", seconds=15)

    assert conditions_of(found)["Ready"] == "True/Serving"
    assert served.count_points() == 3
    after = served.collection()
    assert after is not None
    assert {key: after["config"][key] for key in ("params", "hnsw_config", "quantization_config")} == {
        key: before["config"][key] for key in ("params", "hnsw_config", "quantization_config")
    }
    kept = parse_claims(control_plane.http.get(CLAIMS, params={"labelSelector": LABEL}).json()["items"])
    assert [kept.namespace_of(one.slug) for one in (served, freed)] == [served.namespace, freed.namespace]
    freed.create()
    freed.wait_ready(seconds=15)
    assert freed.count_points() == 3
    thief.qdrant.close()


def test_deleted_claims_return_at_next_start(
    control_plane: ControlPlane, operator: Program, workspaces: list[Workspace]
) -> None:
    (workspace, *_) = workspaces
    workspace.create_ready()
    workspace.store_points(1)
    workspace.delete()
    workspace.wait_deleted()
    delete_claims(control_plane, PARTS[0])

    operator.stop()
    operator.restart(LEADING)

    def is_kept() -> bool:
        items = control_plane.http.get(CLAIMS, params={"labelSelector": LABEL}).json()["items"]
        return len(items) == len(PARTS) and any(workspace.slug in item.get("data", {}) for item in items)

    wait_until(is_kept, seconds=15, what="the whole set")
