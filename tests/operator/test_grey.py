"""A collection that is grey after a restart of Qdrant is woken by the operator."""

import pathlib

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import Workspace
from tests.support.programs import free_port, running, start_qdrant

PERIODS = {"stalled_s": 1.0, "probe_s": 0.5, "busy_s": 0.5}
POINTS = 2000
# 2,000 vectors x 8 dimensions are 62 KiB.
THRESHOLD_KB = 10
GREEN_WITHIN_S = 40.0


@pytest.mark.usefixtures("quick_operator")
def test_grey_collection_is_woken_and_indexed(
    control_plane: ControlPlane, namespace: str, tmp_path: pathlib.Path
) -> None:
    port = free_port()
    program, url = start_qdrant(tmp_path / "qdrant", port=port)
    workspace = Workspace(control_plane, namespace, url)
    with running(program):
        workspace.create_ready(index={"optimizers": {"indexingThresholdKB": THRESHOLD_KB}})
        workspace.store_points(POINTS)
        program.kill()
        workspace.wait_condition("Ready", "False/QdrantUnavailable")
    program, _ = start_qdrant(tmp_path / "qdrant", port=port)
    with running(program):
        workspace.wait_condition("InSync", "False/Indexing", seconds=10)
        woken_at = workspace.status()["collection"].get("wokenAt")

        found = workspace.wait_ready(seconds=GREEN_WITHIN_S)

        collection = found["status"]["collection"]
        assert woken_at
        assert (collection["state"], collection["indexed"], "wokenAt" in collection) == ("green", POINTS, False)
        assert workspace.events(kind="Normal")["OptimizersWoken"].count("was grey") == 1
        workspace.clean()
