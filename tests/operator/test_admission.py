"""Manifests at a real API server: accepted and rejected as by the offline parser."""

from typing import Any

import httpx
import pytest

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.status_agent_memory import (
    AgentMemoryCondition,
    AgentMemoryStatus,
    CollectionStatus,
    EffectiveStatus,
    HnswStatus,
    QuantizationStatus,
)
from agentmemory_operator.spec.kinds.status_plan import PlannedChange, PlanStatus
from tests.support.cluster.controlplane import ControlPlane
from tests.support.patience import wait_until
from tests.support.spec.golden import ManifestCase, load_cases, manifest

FULL_STATUS = AgentMemoryStatus(
    observed_generation=3,
    agent="probe",
    conditions=(
        AgentMemoryCondition(
            type="Ready",
            status="True",
            reason="Serving",
            message="serves",
            last_transition_time="2026-11-21T03:00:00Z",
            observed_generation=3,
        ),
    ),
    collection=CollectionStatus(alias="agent_memory_probe", memories=7, points=9, state="green"),
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
    """Validate a manifest at the API server, by a dry run."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/{case.plural}"
    return control_plane.http.post(path, params={"dryRun": "All", "fieldValidation": "Strict"}, json=case.document)


@pytest.mark.parametrize("case", load_cases("bad.yaml"), ids=lambda case: case.name)
def test_bad_manifest_is_rejected_by_field(control_plane: ControlPlane, namespace: str, case: ManifestCase) -> None:
    answer = send(control_plane, namespace, case)

    assert answer.status_code in (400, 422), answer.text
    message = answer.json()["message"]
    assert [word for word in case.words if word not in message] == [], message


@pytest.mark.parametrize("case", [*load_cases("good.yaml"), *load_cases("by_preset.yaml")], ids=lambda case: case.name)
def test_good_manifest_is_accepted(control_plane: ControlPlane, namespace: str, case: ManifestCase) -> None:
    """Manifests that only a preset's values make invalid are accepted too: the operator reports them in the status."""
    answer = send(control_plane, namespace, case)

    assert answer.status_code == 201, answer.text


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
def test_agent_is_immutable(
    control_plane: ControlPlane, namespace: str, agents: tuple[str | None, str | None], is_taken: bool
) -> None:
    before, after = (manifest(**({"agent": agent} if agent else {})) for agent in agents)
    collection = f"/apis/{API_VERSION}/namespaces/{namespace}/agentmemories"
    created = control_plane.http.post(collection, json=before).raise_for_status().json()
    after["metadata"] = created["metadata"]

    answer = control_plane.http.put(f"{collection}/probe", json=after)

    assert answer.status_code == (200 if is_taken else 422), answer.text
    assert is_taken or "agent cannot change" in answer.json()["message"]


def test_new_rule_tolerates_existing_value(control_plane: ControlPlane, namespace: str) -> None:
    """After an upgrade, an object that violates a new rule can be changed as long as the invalid value is unchanged."""
    collection = f"/apis/{API_VERSION}/namespaces/{namespace}/agentmemories"
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agentmemories.agentmemory.dev"
    rules = ["spec", "snapshots", "storage", "s3", "prefix", "x-kubernetes-validations"]
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/" + "/properties/".join(rules[:-1]) + f"/{rules[-1]}"
    rules_before = control_plane.http.get(definition).json()
    for step in path.strip("/").split("/"):
        rules_before = rules_before[int(step)] if step == "0" else rules_before[step]

    def copying_to(prefix: str) -> dict[str, Any]:
        return manifest(snapshots={"storage": {"s3": {"bucket": "copies", "prefix": prefix}}})

    def is_taken() -> bool:
        params = {"dryRun": "All"}
        return control_plane.http.post(collection, params=params, json=copying_to("a/../b")).status_code == 201

    def change(**patch: Any) -> httpx.Response:
        head = {"content-type": "application/merge-patch+json"}
        return control_plane.http.patch(f"{collection}/probe", json=patch, headers=head)

    def amend(*operations: dict[str, Any]) -> None:
        head = {"content-type": "application/json-patch+json"}
        control_plane.http.patch(definition, json=list(operations), headers=head).raise_for_status()

    assert not is_taken()
    amend({"op": "remove", "path": path})
    try:
        wait_until(is_taken, seconds=20, what="the definition of before")
        control_plane.http.post(collection, json=copying_to("a/../b")).raise_for_status()
    finally:
        amend({"op": "add", "path": path, "value": rules_before})
    wait_until(lambda: not is_taken(), seconds=20, what="the definition of now")

    assert change(metadata={"labels": {"a": "b"}}).status_code == 200
    assert change(spec={"suspend": True}).status_code == 200
    head = {"content-type": "application/merge-patch+json"}
    status_patch = {"status": {"agent": "probe"}}
    assert control_plane.http.patch(f"{collection}/probe/status", json=status_patch, headers=head).status_code == 200
    refused = change(spec=copying_to("../b")["spec"])
    assert refused.status_code == 422
    assert "remove it" in refused.json()["message"]
    assert change(spec=copying_to("b")["spec"]).status_code == 200


def test_kubectl_explains_every_field(control_plane: ControlPlane) -> None:
    for path in ("agentmemories.spec.scoring.weights", "agentmemories.spec", "qdrantconnections.spec"):
        done = control_plane.kubectl("explain", path, "--recursive=false")

        assert done.returncode == 0, done.stderr
        assert "DESCRIPTION" in done.stdout
        assert "<no description>" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("resource", "wide", "headings"),
    [
        ("amem", False, "NAME READY SYNCED REASON MEMORIES LAST-SNAPSHOT AGE"),
        (
            "amem",
            True,
            "NAME READY SYNCED REASON MEMORIES LAST-SNAPSHOT AGE AGENT PRESET ALIAS PHYSICAL STATE DRIFT GENERATION",
        ),
        ("qconn", False, "NAME URL READY VERSION PEERS AGE"),
    ],
)
def test_kubectl_get_shows_columns(
    control_plane: ControlPlane, namespace: str, resource: str, wide: bool, headings: str
) -> None:
    for document in (manifest(), manifest("QdrantConnection", "main")):
        document["metadata"]["namespace"] = namespace
        control_plane.apply(document)

    done = control_plane.kubectl("get", resource, "-n", namespace, *(["-o", "wide"] if wide else []))

    assert done.stdout.splitlines()[0].split() == headings.split()


def test_full_status_is_stored_unchanged(control_plane: ControlPlane, namespace: str) -> None:
    status = FULL_STATUS.model_dump(by_alias=True, exclude_none=True, mode="json")
    collection = f"/apis/{API_VERSION}/namespaces/{namespace}/agentmemories"
    created = control_plane.http.post(collection, json=manifest()).raise_for_status().json()

    answer = control_plane.http.put(
        f"{collection}/probe/status", params={"fieldValidation": "Strict"}, json=created | {"status": status}
    )

    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == status
