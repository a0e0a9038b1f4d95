"""Health in Argo CD, Flux and kstatus: every status that the operator produces, and what else a tenant may write."""

import copy
import re
from collections.abc import Iterator

import pytest

from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.crds import KINDS
from tests.gitops.cases import CASES, GENERATION, OUTCOMES, Case, says
from tests.gitops.tools import ARGO, expressions, flux_status, healths, kstatus
from tests.support.programs import ROOT
from tests.support.spec.documents import Document

of_each_kind = pytest.mark.parametrize("kind", CASES)
ODD = (None, 1, -1.5, True, "", "x", [], {}, [None], ["x"], [[]], {"a": []})
MAIN = ("Ready", "InSync", "Succeeded")


def documents(kind: str) -> list[Document]:
    return copy.deepcopy([case.document for case in CASES[kind]])


def test_there_is_a_health_for_each_kind() -> None:
    kinds = {kind.name for kind in KINDS}
    assert set(CASES) == kinds
    assert {path.parent.name for path in ARGO.glob("*/health.lua")} == kinds
    assert set(expressions()) == kinds


def test_each_reason_of_conditions_md_that_keeps_an_agent_out_of_sync_has_an_outcome() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+)\|", (ROOT / "docs" / "conditions.md").read_text(), flags=re.MULTILINE)
    documented = {reason for reason, where in rows if "InSync=False" in where}
    assert documented == set(OUTCOMES)
    # With that page every reason of the operator has its place (tests/unit/docs).
    assert {str(reason) for reason in Reason} <= {reason for reason, _ in rows}


@of_each_kind
def test_argo_cd_says_what_each_status_means(kind: str) -> None:
    found = healths(kind, documents(kind))
    wrong = [
        (case.name, case.argo, told)
        for case, told in zip(CASES[kind], found, strict=True)
        if told["status"] != case.argo or case.told not in told["message"]
    ]
    assert wrong == []


@of_each_kind
def test_flux_says_what_each_status_means(kind: str) -> None:
    found = {case.name: (case.flux, flux_status(case.document)) for case in CASES[kind]}
    assert {name: both for name, both in found.items() if both[0] != both[1]} == {}


@of_each_kind
def test_kstatus_says_what_each_status_means(kind: str) -> None:
    found = {case.name: (case.kstatus, kstatus(case.document)) for case in CASES[kind]}
    assert {name: both for name, both in found.items() if both[0] != both[1]} == {}


@of_each_kind
def test_nothing_is_healthy_before_the_operator_has_seen_it(kind: str) -> None:
    unseen = [{name: value for name, value in CASES[kind][0].document.items() if name != "status"}]
    for found in documents(kind):
        unseen.append(copy.deepcopy(found))
        unseen[-1]["metadata"]["generation"] = GENERATION + 1
    assert {told["status"] for told in healths(kind, unseen)} == {"Progressing"}
    assert {flux_status(found) for found in unseen} == {"InProgress"}

    # Flux compares nothing where the operator has not said which generation it has seen.
    for found in documents(kind):
        del found["status"]["observedGeneration"]
        assert flux_status(found) != "Current"


@of_each_kind
def test_what_is_being_deleted_is_progressing(kind: str) -> None:
    going = documents(kind)
    for found in going:
        found["metadata"]["deletionTimestamp"] = "2026-03-04T05:06:07Z"
    told = healths(kind, going)
    assert {one["status"] for one in told} == {"Progressing"}
    assert all(one["message"].startswith("It is being deleted") for one in told)


def forged(case: Case) -> Iterator[Document]:
    """Yield a good object with something of another type in each place that its health is read from."""
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
            # For `#` and ipairs a null ends a list, which is what is left of it then.
            if is_main or odd is not None:
                yield case.document | {"status": case.status | {"conditions": conditions}}


@of_each_kind
def test_a_forged_status_is_no_error_and_never_healthy(kind: str) -> None:
    good = next(case for case in CASES[kind] if case.argo == "Healthy")
    objects = list(forged(good))
    assert healths(kind, [good.document])[0]["status"] == "Healthy"
    healthy = [
        found["status"]
        for found, told in zip(objects, healths(kind, objects), strict=True)
        if told["status"] not in ("Progressing", "Degraded") or not told["message"]
    ]
    assert healthy == []


def test_a_condition_that_stands_twice_is_not_believed() -> None:
    case = CASES["AgentMemory"][0]
    ready = case.status["conditions"][0]
    twice = says() | {"conditions": [{**ready, "status": "False"}, *case.status["conditions"]]}
    assert healths("AgentMemory", [case.document | {"status": twice}])[0]["status"] == "Degraded"
