"""The API shows the state of agents with the shipped account, which can read the objects and nothing more."""

import json
from typing import Any

import pytest

from tests.security.test_roles import RESOURCES, VERBS
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.tenants import Tenant
from tests.support.cluster.workspace import AGENT, PLURALS, Workspace
from tests.support.patience import wait_until

SHOWN_WITHIN_S = 20.0
MARKUP = "<script>alert(1)</script>"


def state_of(tenant: Tenant, slug: str) -> dict[str, Any]:
    answer = tenant.bot.http.get(f"{slug}/state")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_snapshots_and_restores_are_shown_to_readers(infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
    alpha.create_served(infra, slug, "the printer is broken")
    alpha.apply("MemorySnapshot", "monday", {"agentMemoryRef": {"name": AGENT}})
    alpha.apply("MemoryRestore", "back", {"target": {"name": AGENT}, "source": {"snapshotRef": {"name": "monday"}}})

    wait_until(lambda: state_of(alpha, slug)["last_proven"], seconds=SHOWN_WITHIN_S, what="the proven snapshot")
    wait_until(
        lambda: [each["phase"] for each in state_of(alpha, slug)["restores"]] == ["Succeeded"],
        seconds=SHOWN_WITHIN_S,
        what="the restore",
    )

    found = state_of(alpha, slug)
    assert (found["namespace"], found["name"]) == (alpha.namespace, AGENT)
    assert [each["name"] for each in found["snapshots"]] == ["monday"]
    assert found["conditions"][0]["type"] == "Ready"
    assert beta.bot.http.get(f"{slug}/state").status_code == 404
    # Both have an object of the same name.
    beta.create_served(infra, f"{slug}-b")
    assert state_of(beta, f"{slug}-b")["snapshots"] == []
    assert "monday" not in json.dumps(state_of(beta, f"{slug}-b"))


def test_shipped_account_of_the_api_lists_and_watches_only(infra: Workspace, control_plane: ControlPlane) -> None:
    def may(verb: str, resource: str) -> bool:
        plural, _, part = resource.partition("/")
        attributes = {"verb": verb, "group": "agentmemory.dev", "resource": plural, "subresource": part}
        user = f"system:serviceaccount:{NAMESPACE}:agentmemory-api"
        body = {"spec": {"user": user, "resourceAttributes": attributes | {"namespace": infra.namespace}}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(control_plane.http.post(path, json=body).json()["status"]["allowed"])

    allowed = {(verb, resource) for resource in RESOURCES for verb in VERBS if may(verb, resource)}

    assert allowed == {(verb, plural) for plural in PLURALS.values() for verb in ("list", "watch")}


@pytest.mark.parametrize("rights", ["everything"])
def test_forged_statuses_are_shown_as_texts(infra: Workspace, alpha: Tenant, slug: str) -> None:
    alpha.create_served(infra, slug)
    message = {"type": "Succeeded", "status": "False", "reason": "Forged", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    secret = {"type": "S3", "bucket": "copies", "endpoint": "https://key:word@storage", "secret": "s3-key"}
    alpha.apply("MemorySnapshot", "forged", {"agentMemoryRef": {"name": AGENT}, "verify": "None"})
    wait_until(
        lambda: [each["phase"] for each in state_of(alpha, slug)["snapshots"]] == ["Succeeded"],
        seconds=SHOWN_WITHIN_S,
        what="the snapshot",
    )

    forged = {"conditions": [message | {"message": MARKUP * 1000}], "locations": [secret], "progress": MARKUP}
    alpha.patch_status("MemorySnapshot", "forged", forged)

    wait_until(
        lambda: state_of(alpha, slug)["snapshots"][0]["reason"] == "Forged",
        seconds=SHOWN_WITHIN_S,
        what="the forged status",
    )
    [found] = state_of(alpha, slug)["snapshots"]
    assert found["message"].startswith(MARKUP)
    assert len(found["message"]) <= 2_000
    assert not [word for word in ("key:word", "s3-key") if word in json.dumps(found)]
