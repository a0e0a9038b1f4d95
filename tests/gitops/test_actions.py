"""Argo CD's actions on an AgentMemory, compared with the commands, and the settings that contain them."""

import copy
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from agentmemory_operator.controllers.rules.approval import APPROVABLE, approval_annotations, find_pending_approval
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, CANCEL_REBUILD, ROLLBACK_REBUILD
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.parse import parse_snapshot
from tests.gitops.cases import CASES, SERVES, Case, status_with
from tests.gitops.tools import ARGO, list_actions, run_action
from tests.support.programs import ROOT
from tests.support.spec.documents import Document


def held_agent(reason: Reason = Reason.AWAITING_APPROVAL, **status: Any) -> Document:
    found = (
        status_with(SERVES, ConditionState("InSync", False, reason, "why"))
        | {"plan": {"digest": "0123456789ab"}}
        | status
    )
    return Case("AgentMemory", "held", found, "", "", "").document


@pytest.mark.parametrize("reason", Reason)
def test_approve_is_offered_for_pending_approvals(reason: Reason) -> None:
    found = held_agent(reason)
    assert list_actions(found) == {"approve": reason in APPROVABLE, "snapshot": True}
    assert (find_pending_approval(found) is not None) == (reason in APPROVABLE)


@pytest.mark.parametrize("found", [held_agent(), held_agent(rebuild={"state": "Held", "digest": "ba9876543210"})])
def test_approve_sets_the_commands_annotations_only(found: Document) -> None:
    found["metadata"]["annotations"] = {"team.example.com/own": "kept", CANCEL_REBUILD: "x", ROLLBACK_REBUILD: "y"}
    before = copy.deepcopy(found)
    waiting = find_pending_approval(found)
    assert waiting is not None

    after = run_action("approve", found)

    expected = {name: value for name, value in approval_annotations(waiting.value).items() if value is not None}
    assert after["metadata"].pop("annotations") == {"team.example.com/own": "kept"} | expected
    del before["metadata"]["annotations"]
    # Lua has one empty table for both {} and []; Argo CD restores empty values.
    assert {**after, "spec": {}} == before


def test_approve_works_without_annotations() -> None:
    assert run_action("approve", held_agent())["metadata"]["annotations"] == {APPROVE_PLAN: "0123456789ab"}


@pytest.mark.parametrize(
    "found",
    [
        CASES["AgentMemory"][0].document,
        {name: value for name, value in held_agent().items() if name != "status"},
        held_agent(observedGeneration=2),
        held_agent(plan="x"),
        held_agent(plan={"digest": 7}),
        held_agent(plan={"digest": {}}),
        held_agent(conditions="x"),
        held_agent(conditions=[7, {"type": "InSync", "reason": []}]),
        held_agent(rebuild={"state": "Held"}),
    ],
)
def test_approve_is_refused_without_pending_approval(found: Document) -> None:
    """The action is also refused if the status is forged or outdated."""
    assert list_actions(found)["approve"] is False
    with pytest.raises(ValueError, match="no plan is waiting for approval"):
        run_action("approve", found)


def test_deleted_object_offers_no_action() -> None:
    found = held_agent()
    found["metadata"]["deletionTimestamp"] = "2026-03-04T05:06:07Z"
    assert list_actions(found) == {"approve": False, "snapshot": False}


def test_snapshot_creates_a_valid_unowned_object() -> None:
    found = held_agent()
    found["metadata"] |= {"labels": {"app.kubernetes.io/instance": "memories"}, "annotations": {"a": "b"}}

    [impacted] = run_action("snapshot", found)

    made = impacted["resource"]
    assert impacted["operation"] == "create"
    assert set(made["metadata"]) == {"name", "namespace"}
    assert re.fullmatch(r"bot-\d{8}t\d{6}z", made["metadata"]["name"])
    assert parse_snapshot(made).spec.agent_memory_ref.name == "bot"


def test_argo_cd_settings_match_the_files() -> None:
    rendered = ROOT / "gitops" / "argocd" / "render.py"
    command = [sys.executable, "-c", f"import runpy; print(runpy.run_path({str(rendered)!r})['render'](), end='')"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == (rendered.parent / "argocd-cm.yaml").read_text(), "run `make gitops`"

    data = yaml.safe_load(output)["data"]
    for kind in CASES:
        health = data[f"resource.customizations.health.agentmemory.dev_{kind}"]
        assert health == (ARGO / kind / "health.lua").read_text()
    actions = yaml.safe_load(data["resource.customizations.actions.agentmemory.dev_AgentMemory"])
    assert [entry["name"] for entry in actions["definitions"]] == ["approve", "snapshot"]
    assert set(actions) == {"discovery.lua", "definitions"}
