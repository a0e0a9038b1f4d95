"""Every status that the operator can produce, by its own functions over every reason, with the expected health."""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from agentmemory_operator.controllers.rules.status import (
    failed_connection_status,
    failed_status,
    suspended_status,
)
from agentmemory_operator.restores.rules import status as restores
from agentmemory_operator.restores.rules.swap_checks import RestoreIdentity, RestoreRecord, SwapStep
from agentmemory_operator.snapshots.rules import facts, steps
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, merge_conditions
from tests.support.programs import ROOT
from tests.support.spec.documents import Document

OUTCOMES: dict[str, str] = yaml.safe_load((ROOT / "tests" / "golden" / "health.yaml").read_text())["InSync"]
GENERATION, NOW = 3, "2026-03-04T05:06:07Z"
SERVES = ConditionState("Ready", True, Reason.SERVING, "agent_memory_bot__1 serves")
CONVERGED = ConditionState("InSync", True, Reason.CONVERGED, "the collection matches the spec")
AT = restores.StatusStamp(GENERATION, NOW)
KEPT = {"generation": GENERATION, "now": NOW}


@dataclass(frozen=True, slots=True)
class Case:
    """Status with the expected health in Argo CD, Flux and kstatus.

    Attributes:
        message: Part of Argo CD's message.
    """

    kind: str
    name: str
    status: Document
    argo: str
    flux: str
    kstatus: str
    message: str = ""

    @property
    def document(self) -> Document:
        """The object."""
        metadata = {"name": "bot", "namespace": "agents", "generation": GENERATION}
        return {"apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata, "spec": {}, "status": self.status}


def status_with(*states: ConditionState) -> Document:
    """Build a status with these conditions."""
    return {"observedGeneration": GENERATION, "conditions": merge_conditions([], states, **KEPT)}


IN_FLUX = {"Healthy": "Current", "Progressing": "InProgress", "Degraded": "Failed", "Suspended": "Failed"}


def of_agents() -> Iterator[Case]:
    """Yield the statuses of an AgentMemory."""
    kind, good = "AgentMemory", status_with(SERVES, CONVERGED)
    yield Case(kind, "converged", good, "Healthy", "Current", "Current", SERVES.message)
    yield Case(kind, "closed", good | {"closed": {"restore": "undo"}}, "Progressing", "InProgress", "Current", "503")
    for old, before in (({}, "InProgress"), (good, "Current")):
        status = suspended_status(old=old, **KEPT)
        yield Case(kind, f"suspended after {bool(old)}", status, "Suspended", "Current", before, "spec.suspend")
    for reason in Reason:
        stalled = failed_status(reason, "why", is_stalled=True, old=good, **KEPT)
        yield Case(kind, f"stalled {reason}", stalled, "Degraded", "Failed", "Failed", f"{reason}: why")
        tried = failed_status(reason, "why", is_stalled=False, old=good, **KEPT)
        yield Case(kind, f"reconciling {reason}", tried, "Progressing", "InProgress", "InProgress", f"{reason}: why")
        warned = status_with(
            SERVES, CONVERGED, *(ConditionState(one, False, reason, "why") for one in ("SnapshotFresh",))
        )
        yield Case(kind, f"serves beside {reason}", warned, "Healthy", "Current", "Current", f"{reason}: why")
        beside = status_with(SERVES, CONVERGED, ConditionState("Stalled", True, reason, "why"))
        yield Case(kind, f"serves, stalled {reason}", beside, "Degraded", "Failed", "Failed", f"{reason}: why")
    for reason, argo in OUTCOMES.items():
        left = ConditionState("InSync", False, Reason(reason), "why")
        yield Case(
            kind, f"InSync {reason}", status_with(SERVES, left), argo, IN_FLUX[argo], "Current", f"{reason}: why"
        )
        # An object whose collection never matched its spec is not served.
        unserved = status_with(ConditionState("Ready", False, Reason(reason), "why"), left)
        yield Case(kind, f"Ready {reason}", unserved, argo, IN_FLUX[argo], "InProgress", f"{reason}: why")


def of_connections() -> Iterator[Case]:
    """Yield the statuses of a QdrantConnection."""
    kind, answers = "QdrantConnection", ConditionState("Reachable", True, Reason.ANSWERS, "it answers")
    yield Case(kind, "answers", status_with(SERVES, answers), "Healthy", "Current", "Current", SERVES.message)
    for reason in Reason:
        stalled = failed_connection_status(reason, "why", is_stalled=True, old={}, **KEPT)
        yield Case(kind, f"stalled {reason}", stalled, "Degraded", "Failed", "Failed", f"{reason}: why")
        tried = failed_connection_status(reason, "why", is_stalled=False, old={}, **KEPT)
        yield Case(kind, f"reconciling {reason}", tried, "Progressing", "InProgress", "InProgress", f"{reason}: why")
        near = status_with(SERVES, answers, ConditionState("NearCapacity", True, reason, "why"))
        yield Case(kind, f"near {reason}", near, "Healthy", "Current", "Current", f"{reason}: why")


def of_snapshots() -> Iterator[Case]:
    """Yield the statuses of a MemorySnapshot; kstatus ignores its conditions and returns Current for each."""
    kind = "MemorySnapshot"
    for reason in Reason:
        runs = steps.running_status({}, reason=reason, detail="why", **KEPT)
        yield Case(kind, f"runs {reason}", runs, "Progressing", "InProgress", "Current", "why")
        failed = steps.failed_status({}, reason, "why", **KEPT)
        is_removing = reason is Reason.BEING_REMOVED
        argo = "Progressing" if is_removing else "Degraded"
        yield Case(kind, f"failed {reason}", failed, argo, IN_FLUX[argo], "Current", f"{reason}: why")
        for value in (True, False, None):
            made = steps.succeeded_status({}, ConditionState("Verified", value, reason, "why"), **KEPT)
            argo = "Healthy" if value or (value is None and reason is Reason.NOT_VERIFIED) else "Degraded"
            yield Case(kind, f"made {value} {reason}", made, argo, IN_FLUX[argo], "Current", f"{reason}: why")
    yield Case(kind, "lost", steps.lost_status({}, **KEPT), "Degraded", "Failed", "Current", "SnapshotLost")
    removing = facts.removal_status(made, "older than 7 days", **KEPT)
    yield Case(kind, "goes", removing, "Progressing", "InProgress", "Current", "older than 7 days")


def of_restores() -> Iterator[Case]:
    """Yield the statuses of a MemoryRestore; kstatus returns Current for each."""
    kind, connection = "MemoryRestore", {"namespace": "agents", "name": "main"}
    begun = restores.started_status({}, physical="b", previous="a", target_uid="u", connection=connection, at=AT)
    done = restores.succeeded_status(begun, "restored", AT, last_result="so")
    record = RestoreRecord(
        identity=RestoreIdentity(namespace="agents", name="undo", digest="0123456789ab"), source="s", applied_at=NOW
    )
    yield Case(kind, "begun", begun, "Progressing", "InProgress", "Current", "starting")
    for step in SwapStep:
        stepped = restores.step_status(begun, step, AT)
        yield Case(kind, f"at {step}", stepped, "Progressing", "InProgress", "Current", str(step))
    yield Case(kind, "done", done, "Healthy", "Current", "Current", "restored")
    applied = restores.applied_status({}, record, AT)
    yield Case(kind, "again", applied, "Healthy", "Current", "Current", "nothing was done")
    going_back = restores.rolling_back_status(done, AT)
    yield Case(kind, "going back", going_back, "Progressing", "InProgress", "Current", "taken back")
    back = restores.rolled_back_status(going_back, "it is back", AT, restored="b", removal_time=NOW, writes_since=0)
    yield Case(kind, "back", back, "Healthy", "Current", "Current", "it is back")
    yield Case(kind, "removed", restores.removed_status(back, AT), "Healthy", "Current", "Current", "it is back")
    for reason in Reason:
        waits = restores.waiting_status(begun, reason, "why", AT)
        yield Case(kind, f"waits {reason}", waits, "Progressing", "InProgress", "Current", f"{reason}: why")
        failed = restores.failed_status(begun, reason, "why", AT)
        yield Case(kind, f"failed {reason}", failed, "Degraded", "Failed", "Current", f"{reason}: why")
        stays = restores.not_rolled_back_status(done, reason, "why", AT)
        yield Case(kind, f"stays {reason}", stays, "Degraded", "Failed", "Current", f"{reason}: why")


CASES = {
    "AgentMemory": tuple(of_agents()),
    "QdrantConnection": tuple(of_connections()),
    "MemorySnapshot": tuple(of_snapshots()),
    "MemoryRestore": tuple(of_restores()),
}
