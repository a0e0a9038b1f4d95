"""Changes made directly in Qdrant: effects of each drift policy, on a real API server."""

import re

import pytest

from tests.support.cluster.workspace import READY_WITHIN_S, Workspace, conditions_of
from tests.support.patience import wait_until
from tests.support.spec.documents import Document

pytestmark = pytest.mark.usefixtures("operator")

OURS, THEIRS = 16, 24


def change_m(workspace: Workspace, m: int = THEIRS) -> None:
    """Change the graph's m, as a user with a key could."""
    body = {"hnsw_config": {"m": m}}
    workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body).raise_for_status()


def m_of(workspace: Workspace) -> int:
    m: int = workspace.config()["hnsw_config"]["m"]
    return m


def drift(workspace: Workspace, policy: str) -> Document:
    """Create the object, change its collection and run a pass; return the object."""
    workspace.create_ready(driftPolicy=policy)
    change_m(workspace)
    workspace.run_pass()
    return workspace.must_get()


def wide_row(workspace: Workspace) -> dict[str, str]:
    printed = workspace.control_plane.kubectl("get", "amem", "-n", workspace.namespace, "-o", "wide").stdout
    heading, row = printed.splitlines()[:2]
    # Cells may be empty: split at the columns of the heading.
    starts = [found.start() for found in re.finditer(r"\S+", heading)]
    return {
        heading[start:end].strip(): row[start:end].strip()
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    }


def test_drift_is_corrected_by_default(workspace: Workspace) -> None:
    workspace.create_ready()
    change_m(workspace)

    workspace.request_pass()

    wait_until(lambda: m_of(workspace) == OURS, seconds=READY_WITHIN_S, what="m as it was")
    found = workspace.wait_ready()
    message = wait_until(lambda: workspace.events(kind="Normal").get("DriftCorrected"), seconds=5, what="the event")
    assert message == f"index.hnsw.m reset from {THEIRS} to {OURS}\n"
    assert "drift" not in found["status"]


def test_report_policy_shows_drift_once(workspace: Workspace) -> None:
    found = drift(workspace, "Report")
    (entry,) = found["status"]["drift"]
    workspace.run_pass()

    assert m_of(workspace) == THEIRS
    assert conditions_of(found) == {"Ready": "True/Serving", "InSync": "False/Drifted"}
    assert (entry["path"], entry["desired"], entry["observed"]) == ("index.hnsw.m", str(OURS), str(THEIRS))
    assert workspace.status()["drift"] == [entry]
    assert workspace.events()["Drifted"].count("index.hnsw.m is 24, expected 16") == 1
    assert (wide_row(workspace)["DRIFT"], found["status"]["effective"]["hnsw"]["m"]) == ("1", THEIRS)
