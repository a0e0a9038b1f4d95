"""Changes that somebody makes in Qdrant, past the object: what each policy makes of them, on a real API server."""

import re

import pytest

from tests.support.cluster.workspace import READY_WITHIN_S, Workspace, conditions_of
from tests.support.patience import wait_until
from tests.support.spec.documents import Document

pytestmark = pytest.mark.usefixtures("operator")

OURS, THEIRS = 16, 24


def change_m(workspace: Workspace, m: int = THEIRS) -> None:
    """Change the graph's m as somebody with a key would."""
    body = {"hnsw_config": {"m": m}}
    workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body).raise_for_status()


def m_of(workspace: Workspace) -> int:
    m: int = workspace.config()["hnsw_config"]["m"]
    return m


def drift(workspace: Workspace, policy: str) -> Document:
    """Create the object, change its collection, ask for a pass; return the object when it is over."""
    workspace.create_ready(driftPolicy=policy)
    change_m(workspace)
    workspace.look()
    return workspace.must_get()


def wide_row(workspace: Workspace) -> dict[str, str]:
    printed = workspace.control_plane.kubectl("get", "amem", "-n", workspace.namespace, "-o", "wide").stdout
    heading, row = printed.splitlines()[:2]
    # A column may be empty.
    starts = [found.start() for found in re.finditer(r"\S+", heading)]
    return {
        heading[start:end].strip(): row[start:end].strip()
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    }


def test_without_a_policy_drift_is_corrected_and_told(workspace: Workspace) -> None:
    workspace.create_ready()
    change_m(workspace)

    workspace.request_pass()

    wait_until(lambda: m_of(workspace) == OURS, seconds=READY_WITHIN_S, what="m as it was")
    found = workspace.wait_ready()
    told = wait_until(lambda: workspace.events(kind="Normal").get("DriftCorrected"), seconds=5, what="the event")
    assert told == f"index.hnsw.m reset from {THEIRS} to {OURS}\n"
    assert "drift" not in found["status"]


def test_reported_drift_stays_and_is_shown_and_told_once(workspace: Workspace) -> None:
    found = drift(workspace, "Report")
    (shown,) = found["status"]["drift"]
    workspace.look()

    assert m_of(workspace) == THEIRS
    assert conditions_of(found) == {"Ready": "True/Serving", "InSync": "False/Drifted"}
    assert (shown["path"], shown["desired"], shown["observed"]) == ("index.hnsw.m", str(OURS), str(THEIRS))
    assert workspace.status()["drift"] == [shown]
    assert workspace.events()["Drifted"].count("index.hnsw.m is 24, expected 16") == 1
    assert (wide_row(workspace)["DRIFT"], found["status"]["effective"]["hnsw"]["m"]) == ("1", THEIRS)


def test_ignored_drift_stays_and_is_not_shown(workspace: Workspace) -> None:
    found = drift(workspace, "Ignore")

    assert m_of(workspace) == THEIRS
    assert conditions_of(found) == {"Ready": "True/Serving", "InSync": "True/Converged"}
    assert "drift" not in found["status"]
    assert (workspace.events(), wide_row(workspace)["DRIFT"]) == ({}, "0")


def test_reported_drift_ends_when_somebody_sets_it_back(workspace: Workspace) -> None:
    drift(workspace, "Report")

    change_m(workspace, OURS)
    workspace.request_pass()

    assert "drift" not in workspace.wait_ready()["status"]


def test_reported_drift_ends_when_the_object_asks_for_it(workspace: Workspace) -> None:
    drift(workspace, "Report")

    workspace.patch(index={"hnsw": {"m": THEIRS}})

    assert "drift" not in workspace.wait_ready()["status"]
    assert m_of(workspace) == THEIRS


def test_reported_drift_is_corrected_once_the_policy_says_so(workspace: Workspace) -> None:
    drift(workspace, "Report")

    workspace.patch(driftPolicy="Correct")

    assert "drift" not in workspace.wait_ready()["status"]
    assert m_of(workspace) == OURS


@pytest.mark.parametrize("policy", ["Report", "Ignore"])
def test_what_the_object_asks_for_is_done_whatever_the_policy(workspace: Workspace, policy: str) -> None:
    workspace.create_ready(driftPolicy=policy)

    workspace.patch(index={"hnsw": {"efConstruct": 200}})

    workspace.wait_ready()
    assert workspace.config()["hnsw_config"]["ef_construct"] == 200


@pytest.mark.parametrize("policy", ["Report", "Ignore"])
def test_an_empty_collection_that_was_deleted_is_made_anew_only_where_drift_is_corrected(
    workspace: Workspace, policy: str
) -> None:
    workspace.create_ready(driftPolicy=policy)
    workspace.qdrant.delete(f"/collections/{workspace.physical}").raise_for_status()
    workspace.request_pass()
    condition = workspace.wait_condition("Stalled", "True/CollectionLost")
    assert f"driftPolicy {policy}" in condition["message"]
    assert workspace.physicals() == []

    workspace.patch(driftPolicy="Correct")

    workspace.wait_ready()
    assert workspace.physicals() == [f"{workspace.alias}__2"]
