"""Health in Argo CD, Flux and kstatus: every status that the operator produces, and forged ones."""

import copy
import re
from collections.abc import Iterator

import pytest

from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.crds import KINDS
from tests.gitops.cases import CASES, GENERATION, OUTCOMES, Case, status_with
from tests.gitops.tools import ARGO, expressions, flux_status, healths, kstatus
from tests.support.programs import ROOT
from tests.support.spec.documents import Document

of_each_kind = pytest.mark.parametrize("kind", CASES)
ODD = (None, 1, -1.5, True, "", "x", [], {}, [None], ["x"], [[]], {"a": []})
MAIN = ("Ready", "InSync", "Succeeded")


def documents(kind: str) -> list[Document]:
    return copy.deepcopy([case.document for case in CASES[kind]])


def test_each_kind_has_a_health_check() -> None:
    kinds = {kind.name for kind in KINDS}
    assert set(CASES) == kinds
    assert {path.parent.name for path in ARGO.glob("*/health.lua")} == kinds
    assert set(expressions()) == kinds


def test_each_out_of_sync_reason_has_an_outcome() -> None:
    """Compares the golden file with docs/conditions.md."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+)\|", (ROOT / "docs" / "conditions.md").read_text(), flags=re.MULTILINE)
    documented = {reason for reason, where in rows if "InSync=False" in where}
    assert documented == set(OUTCOMES)
    # tests/unit/docs checks that the page lists every reason of the operator.
    assert {str(reason) for reason in Reason} <= {reason for reason, _ in rows}


@of_each_kind
def test_argo_cd_health(kind: str) -> None:
    found = healths(kind, documents(kind))
    wrong = [
        (case.name, case.argo, health)
        for case, health in zip(CASES[kind], found, strict=True)
        if health["status"] != case.argo or case.message not in health["message"]
    ]
    assert wrong == []


@of_each_kind
def test_flux_health(kind: str) -> None:
    found = {case.name: (case.flux, flux_status(case.document)) for case in CASES[kind]}
    assert {name: both for name, both in found.items() if both[0] != both[1]} == {}


@of_each_kind
def test_kstatus_health(kind: str) -> None:
    found = {case.name: (case.kstatus, kstatus(case.document)) for case in CASES[kind]}
    assert {name: both for name, both in found.items() if both[0] != both[1]} == {}


@of_each_kind
def test_unobserved_object_is_progressing(kind: str) -> None:
    unseen = [{name: value for name, value in CASES[kind][0].document.items() if name != "status"}]
    for found in documents(kind):
        unseen.append(copy.deepcopy(found))
        unseen[-1]["metadata"]["generation"] = GENERATION + 1
    assert {health["status"] for health in healths(kind, unseen)} == {"Progressing"}
    assert {flux_status(found) for found in unseen} == {"InProgress"}

    # Flux compares no generations without an observedGeneration.
    for found in documents(kind):
        del found["status"]["observedGeneration"]
        assert flux_status(found) != "Current"


@of_each_kind
def test_deleted_object_is_progressing(kind: str) -> None:
    deleted = documents(kind)
    for found in deleted:
        found["metadata"]["deletionTimestamp"] = "2026-03-04T05:06:07Z"
    health = healths(kind, deleted)
    assert {one["status"] for one in health} == {"Progressing"}
    assert all(one["message"].startswith("It is being deleted") for one in health)


def forge_statuses(case: Case) -> Iterator[Document]:
    """Yield copies of a healthy object with a value of another type in each place that its health is read from."""
    for odd in ODD:
        yield case.document | {"status": odd}
        for name in ("observedGeneration", "conditions"):
            yield case.document | {"status": case.status | {name: odd}}
        for number, condition in enumerate(case.status["conditions"]):
            is_main = condition["type"] in MAIN
            names = ["type", "status", "reason", "message", *(["observedGeneration"] if is_main else [])]
            for name in names:
                is_fitting = isinstance(odd, str) and name in ("reason", "message")
                if is_fitting or (name == "type" and not is_main):
                    continue
                conditions = copy.deepcopy(case.status["conditions"])
                conditions[number][name] = odd
                yield case.document | {"status": case.status | {"conditions": conditions}}
            conditions = copy.deepcopy(case.status["conditions"])
            conditions[number] = odd
            # For `#` and ipairs, a null ends a list; the rest is ignored.
            if is_main or odd is not None:
                yield case.document | {"status": case.status | {"conditions": conditions}}


@of_each_kind
def test_forged_status_is_never_healthy(kind: str) -> None:
    good = next(case for case in CASES[kind] if case.argo == "Healthy")
    objects = list(forge_statuses(good))
    assert healths(kind, [good.document])[0]["status"] == "Healthy"
    healthy = [
        found["status"]
        for found, health in zip(objects, healths(kind, objects), strict=True)
        if health["status"] not in ("Progressing", "Degraded") or not health["message"]
    ]
    assert healthy == []


def test_duplicate_condition_is_not_trusted() -> None:
    case = CASES["AgentMemory"][0]
    ready = case.status["conditions"][0]
    twice = status_with() | {"conditions": [{**ready, "status": "False"}, *case.status["conditions"]]}
    assert healths("AgentMemory", [case.document | {"status": twice}])[0]["status"] == "Degraded"
