"""Argo CD's actions on an AgentMemory, against what the command line does; and the settings that bring them."""

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
from tests.gitops.cases import CASES, SERVES, Case, says
from tests.gitops.tools import ARGO, offered, run_action
from tests.support.programs import ROOT
from tests.support.spec.documents import Document


def held(reason: Reason = Reason.AWAITING_APPROVAL, **status: Any) -> Document:
    found = says(SERVES, ConditionState("InSync", False, reason, "why")) | {"plan": {"digest": "0123456789ab"}} | status
    return Case("AgentMemory", "held", found, "", "", "").document


@pytest.mark.parametrize("reason", Reason)
def test_approve_is_offered_where_the_command_would_approve(reason: Reason) -> None:
    found = held(reason)
    assert offered(found) == {"approve": reason in APPROVABLE, "snapshot": True}
    assert (find_pending_approval(found) is not None) == (reason in APPROVABLE)


@pytest.mark.parametrize("found", [held(), held(rebuild={"state": "Held", "digest": "ba9876543210"})])
def test_approve_sets_the_annotations_that_the_command_sets_and_nothing_else(found: Document) -> None:
    found["metadata"]["annotations"] = {"team.example.com/own": "kept", CANCEL_REBUILD: "x", ROLLBACK_REBUILD: "y"}
    before = copy.deepcopy(found)
    waiting = find_pending_approval(found)
    assert waiting is not None

    after = run_action("approve", found)

    wanted = {name: value for name, value in approval_annotations(waiting.value).items() if value is not None}
    assert after["metadata"].pop("annotations") == {"team.example.com/own": "kept"} | wanted
    del before["metadata"]["annotations"]
    # Lua has one empty table for both {} and []; Argo CD puts back what was empty before.
    assert {**after, "spec": {}} == before


def test_approve_of_an_object_without_annotations_sets_its_own() -> None:
    assert run_action("approve", held())["metadata"]["annotations"] == {APPROVE_PLAN: "0123456789ab"}


@pytest.mark.parametrize(
    "found",
    [
        CASES["AgentMemory"][0].document,
        {name: value for name, value in held().items() if name != "status"},
        held(observedGeneration=2),
        held(plan="x"),
        held(plan={"digest": 7}),
        held(plan={"digest": {}}),
        held(conditions="x"),
        held(conditions=[7, {"type": "InSync", "reason": []}]),
        held(rebuild={"state": "Held"}),
    ],
)
def test_nothing_is_approved_where_nothing_waits_or_the_status_is_forged_or_behind(found: Document) -> None:
    assert offered(found)["approve"] is False
    with pytest.raises(ValueError, match="no plan is waiting for approval"):
        run_action("approve", found)


def test_what_is_being_deleted_is_neither_approved_nor_kept() -> None:
    found = held()
    found["metadata"]["deletionTimestamp"] = "2026-03-04T05:06:07Z"
    assert offered(found) == {"approve": False, "snapshot": False}


def test_snapshot_creates_a_valid_object_that_the_application_does_not_own() -> None:
    found = held()
    found["metadata"] |= {"labels": {"app.kubernetes.io/instance": "memories"}, "annotations": {"a": "b"}}

    [impacted] = run_action("snapshot", found)

    made = impacted["resource"]
    assert impacted["operation"] == "create"
    assert set(made["metadata"]) == {"name", "namespace"}
    assert re.fullmatch(r"bot-\d{8}t\d{6}z", made["metadata"]["name"])
    assert parse_snapshot(made).spec.agent_memory_ref.name == "bot"


def test_the_settings_of_argo_cd_are_made_of_the_files() -> None:
    rendered = ROOT / "gitops" / "argocd" / "render.py"
    command = [sys.executable, "-c", f"import runpy; print(runpy.run_path({str(rendered)!r})['render'](), end='')"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told == (rendered.parent / "argocd-cm.yaml").read_text(), "run `make gitops`"

    data = yaml.safe_load(told)["data"]
    for kind in CASES:
        health = data[f"resource.customizations.health.agentmemory.dev_{kind}"]
        assert health == (ARGO / kind / "health.lua").read_text()
    actions = yaml.safe_load(data["resource.customizations.actions.agentmemory.dev_AgentMemory"])
    assert [entry["name"] for entry in actions["definitions"]] == ["approve", "snapshot"]
    assert set(actions) == {"discovery.lua", "definitions"}
