"""What the real API server takes and refuses, against what the offline parser does."""

import httpx
import pytest

from agentmemory_operator.domain.plan_status import PlannedChange, PlanStatus
from agentmemory_operator.domain.resources import API_VERSION
from agentmemory_operator.domain.status import (
    AgentMemoryStatus,
    CollectionStatus,
    Condition,
    EffectiveStatus,
    HnswStatus,
    QuantizationStatus,
)
from tests.support.controlplane import ControlPlane
from tests.support.manifests import ManifestCase, load_cases, manifest

FULL_STATUS = AgentMemoryStatus(
    observed_generation=3,
    agent="probe",
    conditions=(
        Condition(
            type="Ready",
            status="True",
            reason="Serving",
            message="serves",
            last_transition_time="2026-11-21T03:00:00Z",
            observed_generation=3,
        ),
    ),
    collection=CollectionStatus(alias="agent_memory_probe", points=7, state="green"),
    effective=EffectiveStatus(
        preset="cortex",
        hnsw=HnswStatus(m=16, ef_construct=128, full_scan_threshold_kb=10_000),
        quantization=QuantizationStatus(type="Scalar", quantile=0.99, always_ram=True),
    ),
    plan=PlanStatus(
        digest="abc",
        changes=(PlannedChange(change="resize", class_="Rebuild", from_="8", to="16", cost="a copy", held=True),),
        refusal="held",
    ),
)


def send(control_plane: ControlPlane, namespace: str, case: ManifestCase) -> httpx.Response:
    """Have the API server judge a manifest without keeping it."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/{case.plural}"
    return control_plane.http.post(path, params={"dryRun": "All", "fieldValidation": "Strict"}, json=case.document)


@pytest.mark.parametrize("case", load_cases("bad.yaml"), ids=lambda case: case.name)
def test_a_bad_manifest_is_refused_by_name_of_the_field(
    control_plane: ControlPlane, namespace: str, case: ManifestCase
) -> None:
    answer = send(control_plane, namespace, case)

    assert answer.status_code in (400, 422), answer.text
    message = answer.json()["message"]
    assert [word for word in case.words if word not in message] == [], message


@pytest.mark.parametrize("case", load_cases("good.yaml"), ids=lambda case: case.name)
def test_a_good_manifest_is_taken(control_plane: ControlPlane, namespace: str, case: ManifestCase) -> None:
    answer = send(control_plane, namespace, case)

    assert answer.status_code == 201, answer.text


def test_nothing_that_a_preset_decides_is_written_into_a_spec(control_plane: ControlPlane, namespace: str) -> None:
    case = ManifestCase("smallest", manifest(), ())

    stored = send(control_plane, namespace, case).json()

    assert stored["spec"] == {"connectionRef": {"name": "main"}}


@pytest.mark.parametrize(
    ("agents", "is_taken"),
    [
        pytest.param(("good", "other"), False, id="another agent"),
        pytest.param((None, "other"), False, id="an agent other than the name"),
        pytest.param(("other", None), False, id="no agent any more, other than the name"),
        pytest.param((None, "probe"), True, id="the name said aloud"),
        pytest.param(("probe", None), True, id="the name no longer said"),
        pytest.param(("good", "good"), True, id="the same agent"),
    ],
)
def test_the_agent_cannot_change(
    control_plane: ControlPlane, namespace: str, agents: tuple[str | None, str | None], is_taken: bool
) -> None:
    before, after = (manifest(**({"agent": agent} if agent else {})) for agent in agents)
    collection = f"/apis/{API_VERSION}/namespaces/{namespace}/agentmemories"
    created = control_plane.http.post(collection, json=before).raise_for_status().json()
    after["metadata"] = created["metadata"]

    answer = control_plane.http.put(f"{collection}/probe", json=after)

    assert answer.status_code == (200 if is_taken else 422), answer.text
    assert is_taken or "agent cannot change" in answer.json()["message"]


def test_kubectl_explains_every_field(control_plane: ControlPlane) -> None:
    for path in ("agentmemories.spec.scoring.weights", "agentmemories.spec", "qdrantconnections.spec"):
        done = control_plane.kubectl("explain", path, "--recursive=false")

        assert done.returncode == 0, done.stderr
        assert "DESCRIPTION" in done.stdout
        assert "<no description>" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("resource", "wide", "headings"),
    [
        ("amem", False, "NAME AGENT PRESET READY POINTS LAST-SNAPSHOT AGE"),
        ("amem", True, "NAME AGENT PRESET READY POINTS LAST-SNAPSHOT AGE ALIAS PHYSICAL STATE DRIFT GENERATION"),
        ("qconn", False, "NAME URL READY VERSION PEERS AGE"),
    ],
)
def test_kubectl_get_shows_the_columns(
    control_plane: ControlPlane, namespace: str, resource: str, wide: bool, headings: str
) -> None:
    for document in (manifest(), manifest("QdrantConnection", "main")):
        document["metadata"]["namespace"] = namespace
        control_plane.apply(document)

    done = control_plane.kubectl("get", resource, "-n", namespace, *(["-o", "wide"] if wide else []))

    assert done.stdout.splitlines()[0].split() == headings.split()


def test_all_kinds_are_one_category(control_plane: ControlPlane) -> None:
    done = control_plane.kubectl("api-resources", "--categories=memory", "-o", "name")

    plurals = ("agentmemories", "memoryrestores", "memorysnapshots", "qdrantconnections")
    assert sorted(done.stdout.split()) == [f"{plural}.agentmemory.dev" for plural in plurals]


def test_a_full_status_is_kept_as_written(control_plane: ControlPlane, namespace: str) -> None:
    status = FULL_STATUS.model_dump(by_alias=True, exclude_none=True, mode="json")
    collection = f"/apis/{API_VERSION}/namespaces/{namespace}/agentmemories"
    created = control_plane.http.post(collection, json=manifest()).raise_for_status().json()

    answer = control_plane.http.put(
        f"{collection}/probe/status", params={"fieldValidation": "Strict"}, json=created | {"status": status}
    )

    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == status
