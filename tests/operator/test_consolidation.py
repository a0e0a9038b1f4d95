"""Consolidation on a live cluster with a model over HTTP: requested, undone, and reported in the status."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster.operators import run_command
from tests.support.cluster.workspace import Workspace, conditions_of
from tests.support.engine.language_models import merge_by_first_word
from tests.support.web.http_server import serve
from tests.support.web.language_models import Row, ScriptedModel

pytestmark = pytest.mark.usefixtures("operator")

DIMENSIONS = 256
EMBEDDING = {"provider": "wordllama", "dimensions": DIMENSIONS}
IDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(1, 4)]


def lying(rows: list[Row]) -> dict[str, Any]:
    return {"merged_facts": [{"content": "alpha costs 4711", "source_ids": [row["id"] for row in rows]}]}


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(answers={"perfect": merge_by_first_word, "lying": lying})


@pytest.fixture
def model_url(model: ScriptedModel) -> Iterator[str]:
    with serve(model.app()) as url:
        yield url


def store(workspace: Workspace, *contents: str) -> None:
    """Store facts in the format of the API."""
    now_ms = int(time.time() * 1000) - 10_000
    points = []
    for memory_id, content in zip(IDS, contents, strict=False):
        payload = {"id": memory_id, "agentId": "a", "userId": "u", "type": "fact", "content": content, "rev": 1}
        payload |= {"createdAt": now_ms, "updatedAt": now_ms, "importance": 0.5, "accessCount": 0, "pending": False}
        points.append({"id": memory_id, "vector": [1.0] * DIMENSIONS, "payload": payload})
    path = f"/collections/{workspace.alias}/points?wait=true"
    workspace.qdrant.put(path, json={"points": points}).raise_for_status()


def heads(workspace: Workspace) -> list[str]:
    empty = [{"is_empty": {"key": key}} for key in ("deletedAt", "supersededById")]
    body = {"filter": {"must": empty}, "limit": 100, "with_payload": True}
    answer = workspace.qdrant.post(f"/collections/{workspace.alias}/points/scroll", json=body).raise_for_status()
    return sorted(point["payload"]["content"] for point in answer.json()["result"]["points"])


def consolidate(workspace: Workspace, *options: str) -> dict[str, Any]:
    """Run the command and return its result."""
    command = ("consolidate", "memory", "-n", workspace.namespace, *options, "--wait", "-o", "json")
    status, output, error = run_command(workspace.control_plane, *command)
    assert status == 0, output + error
    found: dict[str, Any] = json.loads(output)
    return found


def create(workspace: Workspace, url: str, **consolidation: Any) -> None:
    named = {"model": {"baseURL": f"{url}/v1", "model": "m"}, "schedule": "Never"} | consolidation
    workspace.create_ready(preset="brain", embedding=EMBEDDING, consolidation=named)


def test_two_facts_are_merged_and_run_is_undone(workspace: Workspace, model_url: str) -> None:
    create(workspace, model_url)
    store(workspace, "alpha one", "alpha two", "beta alone")

    dry = consolidate(workspace, "--dry-run")
    assert (dry["action"], dry["counts"]["merged"], len(heads(workspace))) == ("DryRun", 1, 3)

    done = consolidate(workspace)

    assert done["counts"] | {"read": 3, "merged": 1, "superseded": 2} == done["counts"]
    assert (done["calls"], done["tokensIn"], done["tokensOut"]) == (1, 10, 5)
    assert heads(workspace) == ["alpha one alpha two", "beta alone"]
    assert conditions_of(workspace.must_get())["Consolidated"] == "True/ConsolidationDone"
    assert f"Run {done['run']}" in workspace.events(kind="Normal")["Consolidated"]

    undone = consolidate(workspace, "--undo", done["run"], "--yes")

    assert undone["counts"]["reactivated"] == 2
    assert heads(workspace) == ["alpha one", "alpha two", "beta alone"]


def test_facts_added_by_model_wait_for_approval(workspace: Workspace, model: ScriptedModel, model_url: str) -> None:
    model.mode = "lying"
    create(workspace, model_url)
    store(workspace, "alpha costs much", "alpha sells well")

    done = consolidate(workspace)

    assert done["counts"]["proposed"] == 1
    assert heads(workspace) == ["alpha costs much", "alpha sells well"]
    listed = run_command(
        workspace.control_plane, "consolidate", "memory", "-n", workspace.namespace, "--proposals", "-o", "json"
    )
    (waiting,) = json.loads(listed[1])["proposals"]
    assert (waiting["run"], waiting["missing"]) == (done["run"], ["4711"])
    event = workspace.events()["ConsolidationProposed"]
    assert done["run"] in event
    assert "alpha" not in event

    consolidate(workspace, "--approve", done["run"])

    assert heads(workspace) == ["alpha costs 4711"]


def test_unavailable_model_changes_nothing(workspace: Workspace) -> None:
    create(workspace, "http://127.0.0.1:9", model={"baseURL": "http://127.0.0.1:9/v1", "model": "m"})
    store(workspace, "alpha one", "alpha two")

    command = ("consolidate", "memory", "-n", workspace.namespace, "--wait", "-o", "json")
    status, output, _ = run_command(workspace.control_plane, *command)

    assert (status, json.loads(output)["reason"]) == (1, "ModelUnavailable")
    assert conditions_of(workspace.must_get())["Consolidated"] == "False/ModelUnavailable"
    assert heads(workspace) == ["alpha one", "alpha two"]
