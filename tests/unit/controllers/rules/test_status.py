"""Status objects built from the outcome of a pass."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.changes import Change, Rebuild, UpdateHnsw, WakeOptimizers
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.drift import Difference
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.plan import Plan, plan_changes
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.refusals import find_refusal
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.controllers.rules.status import (
    connection_status,
    converged_status,
    failed_connection_status,
    failed_status,
)
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.status_agent_memory import AgentMemoryStatus
from agentmemory_operator.spec.kinds.status_connection import QdrantConnectionStatus
from agentmemory_operator.spec.presets import CORTEX
from tests.support.spec.plans import ALIAS, desired_of, observed_of, probe

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
DOT = {"index": {"distance": "Dot"}}
NO_COPY = {"index": {"quantization": {"type": "None"}}}

REJECTED = {"scoring": {"model": "Expression", "expression": "similarty"}}


def status_of(
    spec: Mapping[str, Any] | None = None,
    live: Collection | None = None,
    *,
    old: Mapping[str, Any] | None = None,
    now: str = NOW,
    applied: tuple[Change, ...] = (),
    drift: tuple[Difference, ...] = (),
    **observed: Any,
) -> dict[str, Any]:
    """Return the status of agents/probe over `live`, by default a converged collection."""
    found = observed_of(live or desired_of(spec), **observed)
    plan = plan_changes(desired_of(spec), found, alias=ALIAS, physical="x")
    done = PassOutcome(found, plan, find_refusal(plan, found), Plan("x", applied), drift=drift)
    return converged_status(effective_settings(probe(spec)), done, old=old or {}, now=now)


def nulls_of(value: Any, path: str = "") -> list[str]:
    """Return the paths of every null."""
    match value:
        case dict():
            return [found for key, child in value.items() for found in nulls_of(child, f"{path}.{key}")]
        case list():
            return [found for number, child in enumerate(value) for found in nulls_of(child, f"{path}[{number}]")]
        case _:
            return [path] if value is None else []


def short_conditions(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(entry["type"], entry["status"], entry["reason"]) for entry in status["conditions"]]


STATUSES = {
    "converged": status_of(points=5),
    "busy": status_of(is_busy=True),
    "woken": status_of(applied=(WakeOptimizers(),), state="yellow"),
    "drifted": status_of(drift=(Difference("index.hnsw.m", "16", "24"),)),
    "held": status_of(DOT, desired_of(), points=5),
    "without compressed copies": status_of(NO_COPY),
    "ranked by confidence": status_of({"scoring": {"model": "Confidence"}}),
    "ranked by priority": status_of({"scoring": {"model": "Priority"}}),
    "ranked by importance": status_of({"scoring": {"model": "Importance"}}),
    "ranked by an expression": status_of({"scoring": {"model": "Expression", "expression": "similarity"}}),
    "with a rejected expression": status_of(REJECTED),
    "unmarked and held": status_of(DOT, replace(desired_of(), marker=None)),
    "failed at first": failed_status("InvalidSpec", "m", is_stalled=True, old={}, generation=1, now=NOW),
    "failed later": failed_status("X", "m", is_stalled=False, old=status_of(points=5), generation=2, now=LATER),
}


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)
def test_status_matches_schema_without_nulls(status: dict[str, Any]) -> None:
    parsed = AgentMemoryStatus.model_validate(status, by_alias=True, by_name=False)

    assert parsed.model_dump(mode="json", by_alias=True, exclude_none=True) == status
    assert nulls_of(status) == []


def test_converged_collection_is_ready_and_in_sync() -> None:
    assert short_conditions(status_of()) == [("Ready", "True", "Serving"), ("InSync", "True", "Converged")]


def test_rejected_expression_stalls_serving_object() -> None:
    """The message shows the position and the model in use."""
    status = status_of(REJECTED)

    assert short_conditions(status) == [
        ("Ready", "True", "Serving"),
        ("InSync", "True", "Converged"),
        ("Stalled", "True", "ScoringRejected"),
    ]
    lines = status["conditions"][2]["message"].splitlines()
    assert lines[0] == ('spec.scoring.expression: character 1: "similarty" is not a variable: did you mean similarity?')
    assert lines[1:3] == ["  similarty", "  ^"]
    assert "the preset's model" in lines[3]
    assert status["scoring"] == {}
    assert status["effective"]["scoring"]["model"] == "Weighted"


def test_indexing_collection_is_ready_not_in_sync() -> None:
    assert short_conditions(status_of(is_busy=True)) == [("Ready", "True", "Serving"), ("InSync", "False", "Indexing")]


@pytest.mark.parametrize("spec", [None, DOT])
def test_red_collection_shows_engine_error(
    spec: Mapping[str, Any] | None,
) -> None:
    status = status_of(spec, desired_of(), state="red", fault="no space left on device")

    assert short_conditions(status) == [("Ready", "True", "Serving"), ("InSync", "False", "CollectionRed")]
    assert "no space left on device" in status["conditions"][1]["message"]


def test_woken_time_is_shown_until_green() -> None:
    woken = status_of(applied=(WakeOptimizers(),), state="grey")
    busy = status_of(old=woken, now=LATER, state="yellow")
    green = status_of(old=busy, now=LATER)

    assert [status["collection"].get("wokenAt") for status in (woken, busy, green)] == [NOW, NOW, None]
    assert short_conditions(woken)[1] == ("InSync", "False", "Indexing")


def test_withheld_plan_is_ready_and_awaits_approval() -> None:
    status = status_of(DOT, desired_of(), is_busy=True, points=1)

    assert short_conditions(status) == [("Ready", "True", "Serving"), ("InSync", "False", "AwaitingApproval")]


def test_never_converged_collection_is_not_ready() -> None:
    status = status_of(DOT, replace(desired_of(), marker=None))

    assert short_conditions(status) == [("Ready", "False", "AwaitingApproval"), ("InSync", "False", "AwaitingApproval")]


DRIFT = Difference("index.hnsw.m", "16", "24")


def test_drift_has_start_time() -> None:
    first = status_of(drift=(DRIFT,))
    second = status_of(drift=(DRIFT, Difference("index.distance", "Cosine", "Dot")), old=first, now=LATER)
    third = status_of(drift=(replace(DRIFT, observed="32"),), old=second, now=LATER)

    assert short_conditions(first) == [("Ready", "True", "Serving"), ("InSync", "False", "Drifted")]
    assert first["drift"] == [{"path": "index.hnsw.m", "desired": "16", "observed": "24", "since": NOW}]
    assert ([entry["since"] for entry in second["drift"]], second["driftCount"]) == ([NOW, LATER], 2)
    assert third["drift"][0]["since"] == LATER


def test_resolved_drift_is_removed() -> None:
    status = status_of(old=status_of(drift=(DRIFT,)))

    assert ("drift" in status, status["driftCount"]) == (False, 0)


def test_drift_list_is_limited_and_counted() -> None:
    status = status_of(drift=tuple(Difference(f"index.payloadIndexes[f{n}]", "keyword", "None") for n in range(70)))

    AgentMemoryStatus.model_validate(status, by_alias=True, by_name=False)
    assert (len(status["drift"]), status["driftCount"]) == (64, 70)


def test_withheld_plan_shows_change_cost_and_refusal() -> None:
    plan = status_of(DOT, desired_of(), points=5)["plan"]

    assert plan["changes"] == [
        {
            "change": "rebuild for index.distance Cosine -> Dot",
            "class": "Rebuild",
            "field": "index.distance",
            "from": "Cosine",
            "to": "Dot",
            "cost": "a new collection; every memory is embedded or copied again",
            "held": True,
        }
    ]
    assert "5 points" in plan["refusal"]
    assert len(plan["digest"]) == 12


def test_other_changes_are_not_withheld() -> None:
    found = observed_of(desired_of(), points=1)
    rebuild = Rebuild("index.distance", "Cosine", "Dot")
    plan = Plan("p", (rebuild, UpdateHnsw(m=4)))

    done = PassOutcome(found, plan, find_refusal(plan, found), Plan("p", ()))
    status = converged_status(effective_settings(probe()), done, old={}, now=NOW)

    assert [(change["class"], change["held"]) for change in status["plan"]["changes"]] == [
        ("Rebuild", True),
        ("Reindex", False),
    ]
    assert "field" not in status["plan"]["changes"][1]


def test_allowed_plan_has_no_refusal() -> None:
    done = PassOutcome(observed_of(desired_of()), Plan("p", (UpdateHnsw(m=4),)), None, Plan("p", ()))

    status = converged_status(effective_settings(probe()), done, old={}, now=NOW)

    assert "refusal" not in status["plan"]
    assert status["plan"]["changes"][0]["held"] is False


def test_converged_object_has_no_plan() -> None:
    assert "plan" not in status_of()


def test_collection_shows_observed_state() -> None:
    desired = desired_of()
    assert desired.marker is not None

    assert status_of(points=5)["collection"] == {
        "alias": ALIAS,
        "physical": f"{ALIAS}__1",
        "points": 5,
        "indexed": 5,
        "state": "green",
        "configHash": desired.marker.config_hash,
    }


@pytest.mark.parametrize(
    ("number", "moved_ms", "rebuilt_at"), [(1, 1_000, "1970-01-01T00:00:01.000Z"), (2, 1_000, None), (1, None, None)]
)
def test_rebuild_time_is_shown_on_target_only(number: int, moved_ms: int | None, rebuilt_at: str | None) -> None:
    target = f"{ALIAS}__{number}"
    record = RebuildRecord(source="x", target=target, digest="d", started_ms=1, since_ms=1, moved_ms=moved_ms)

    assert status_of(record=record)["collection"].get("rebuiltTime") == rebuilt_at


def test_effective_settings_mix_collection_and_spec() -> None:
    """Layout comes from the collection, ranking from the object."""
    spec = {"scoring": {"limit": 3}}

    effective = status_of(spec, replace(desired_of(), size=1, distance="Dot"))["effective"]

    assert effective == {
        "preset": "cortex",
        "presetRevision": CORTEX.revision,
        "embedding": {"provider": "wordllama", "model": "l2_supercat", "dimensions": 256},
        "hnsw": {"m": 16, "efConstruct": 128, "fullScanThresholdKB": 10000},
        "distance": "Dot",
        "quantization": {
            "type": "Scalar",
            "quantile": 0.99,
            "alwaysRam": True,
            "rescore": True,
            "oversampling": 1.0,
        },
        "vectors": {"datatype": "Float32", "memory": "Cached"},
        "sharding": {},
        "strictMode": {},
        "optimizers": {"defaultSegmentNumber": 2, "indexingThresholdKB": 20000},
        "scoring": {
            "model": "Weighted",
            "weights": {"similarity": 0.5, "recency": 0.3, "utility": 0.2},
            "utilityNorm": 3.0,
            "limit": 3,
            "scoreThreshold": 0.3,
            "minSimilarity": 0.1,
        },
    }


def test_keyword_vectors_are_shown() -> None:
    spec = {"index": {"keyword": {"enabled": True, "language": "dutch"}}}

    effective = status_of(spec, desired_of(spec))["effective"]

    assert effective["keyword"] == {"language": "dutch", "window": 2}


def test_scoring_has_generation() -> None:
    assert status_of()["scoring"] == {"generation": 1}
    assert status_of()["observedGeneration"] == 1


def test_transition_times_follow_changes() -> None:
    first = status_of()

    second = status_of(is_busy=True, old=first, now=LATER)

    assert [entry["lastTransitionTime"] for entry in second["conditions"]] == [NOW, LATER]


@pytest.mark.parametrize(("is_stalled", "action"), [(True, "Stalled"), (False, "Reconciling")])
def test_failure_is_not_ready(is_stalled: bool, action: str) -> None:
    status = failed_status("QdrantUnavailable", "away", is_stalled=is_stalled, old={}, generation=3, now=NOW)

    assert short_conditions(status) == [("Ready", "False", "QdrantUnavailable"), (action, "True", "QdrantUnavailable")]
    assert status["observedGeneration"] == 3


def test_failure_keeps_last_observed_state() -> None:
    before = status_of(points=5)

    after = failed_status("QdrantUnavailable", "away", is_stalled=False, old=before, generation=2, now=LATER)

    assert {key: after[key] for key in ("collection", "effective", "agent")} == {
        key: before[key] for key in ("collection", "effective", "agent")
    }


def test_recovery_clears_failure_conditions() -> None:
    failed = failed_status("QdrantUnavailable", "away", is_stalled=False, old={}, generation=1, now=NOW)

    assert [entry["type"] for entry in status_of(old=failed)["conditions"]] == ["Ready", "InSync"]


def test_connection_shows_server() -> None:
    status = connection_status(ServerCapabilities("1.18.3", 3, True), old={}, generation=2, now=NOW)

    QdrantConnectionStatus.model_validate(status, by_alias=True, by_name=False)
    assert (status["version"], status["peers"]) == ("1.18.3", 3)
    assert {"formula", "jwtRbac"} <= set(status["capabilities"])
    assert short_conditions(status) == [("Ready", "True", "Serving"), ("Reachable", "True", "Answers")]
    assert nulls_of(status) == []


@pytest.mark.parametrize(
    ("reason", "reached"),
    [
        ("QdrantUnavailable", "False"),
        ("TLSFailed", "False"),
        ("QdrantRejected", "True"),
        ("QdrantTooOld", "True"),
        ("SecretNotFound", "Unknown"),
        ("InvalidCA", "Unknown"),
        ("InvalidSpec", "Unknown"),
    ],
)
def test_failed_connection_reports_reachability(reason: str, reached: str) -> None:
    before = connection_status(ServerCapabilities("1.18.3", 1), old={}, generation=1, now=NOW)

    status = failed_connection_status(reason, "m", is_stalled=True, old=before, generation=1, now=LATER)

    QdrantConnectionStatus.model_validate(status, by_alias=True, by_name=False)
    assert short_conditions(status) == [
        ("Ready", "False", reason),
        ("Stalled", "True", reason),
        ("Reachable", reached, reason),
    ]
    since = next(entry["lastTransitionTime"] for entry in status["conditions"] if entry["type"] == "Reachable")
    assert since == (NOW if reached == "True" else LATER)
    assert status["version"] == "1.18.3", "the last version stays"
