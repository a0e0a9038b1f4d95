"""`agentmemory approve` on a folder of manifests; the tests write the statuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, APPROVE_PLAN, CANCEL_REBUILD, ROLLBACK_REBUILD
from tests.support.job.job_folder import NAMESPACE, JobFolder, condition

KIND, DIGEST = "AgentMemory", "0123456789ab"
CHANGE = {
    "change": "rebuild for index.distance Cosine -> Dot",
    "class": "Rebuild",
    "cost": "a new collection; every memory is copied",
    "held": True,
}
PLAN = {"digest": DIGEST, "changes": [CHANGE], "costs": {"points": 41, "diskMiB": 9}, "refusal": "approve it"}
READY = condition("Ready", "True", "Serving")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A folder with an agent whose manifest the commands may change."""
    job_folder = JobFolder(tmp_path, agents=())
    declare(job_folder)
    return job_folder


def declare(folder: JobFolder, **annotations: str) -> None:
    metadata = {"name": "bot", "namespace": NAMESPACE, "annotations": annotations}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    document["spec"] = {"connectionRef": {"name": "main"}}
    (folder.path / f"{NAMESPACE}.bot.agentmemory.yaml").write_text(yaml.safe_dump(document))


def hold(folder: JobFolder, reason: str = "AwaitingApproval", **more: Any) -> None:
    states = [READY, condition("InSync", "False", reason, "it waits")]
    folder.report(KIND, "bot", **({"conditions": states, "observedGeneration": 1, "plan": PLAN} | more))


def annotations_of(folder: JobFolder) -> dict[str, str]:
    found: dict[str, str] = folder.read_written(KIND)["metadata"].get("annotations") or {}
    return found


def test_held_plan_is_approved_with_its_costs(folder: JobFolder) -> None:
    hold(folder)

    result = folder.run("approve", "bot")

    assert result.exit_code == 0, result.output
    assert annotations_of(folder) == {APPROVE_PLAN: DIGEST}
    assert f"AgentMemory agents/bot: approved {DIGEST}" in result.output
    assert "rebuild for index.distance Cosine -> Dot" in result.output
    assert "Costs: 41 points, 9 MiB of disk" in result.output
    assert "agentmemory rebuild bot" in result.output


def test_json_output_contains_the_approved_plan(folder: JobFolder) -> None:
    hold(folder)

    result = folder.run("approve", "bot", "-o", "json")

    document = json.loads(result.output)
    assert document == {
        "agent": {"namespace": "agents", "name": "bot"},
        "approved": DIGEST,
        "changes": [CHANGE],
        "costs": {"points": 41, "diskMiB": 9},
    }


@pytest.mark.parametrize("reason", ["RebuildCancelled", "RolledBack"])
def test_approval_removes_cancel_and_rollback(folder: JobFolder, reason: str) -> None:
    declare(folder, **{CANCEL_REBUILD: DIGEST, ROLLBACK_REBUILD: "x__2", "other": "stays"})
    hold(folder, reason)

    assert folder.run("approve", "bot").exit_code == 0

    assert annotations_of(folder) == {APPROVE_PLAN: DIGEST, "other": "stays"}


def test_recall_drop_needs_its_own_approval(folder: JobFolder) -> None:
    rebuild = {"state": "Held", "digest": DIGEST, "message": "the recall drops by 7 points"}
    hold(folder, "RebuildRunning", rebuild=rebuild)

    assert folder.run("approve", "bot").exit_code == 0

    assert annotations_of(folder) == {APPROVE_PLAN: f"{DIGEST}-recall"}


def test_current_digest_is_approved(folder: JobFolder) -> None:
    hold(folder)

    assert folder.run("approve", "bot", "--digest", DIGEST).exit_code == 0

    assert annotations_of(folder) == {APPROVE_PLAN: DIGEST}


def test_outdated_digest_is_rejected_with_the_new_plan(folder: JobFolder) -> None:
    hold(folder)

    result = folder.run("approve", "bot", "--digest", "ba9876543210")

    assert result.exit_code == 1
    assert "the plan ba9876543210 is outdated" in result.output
    assert f"{DIGEST}: rebuild for index.distance Cosine -> Dot" in result.output
    assert annotations_of(folder) == {}


@pytest.mark.parametrize(
    "reason", ["RebuildRunning", "RebuildNotAllowed", "CannotRebuild", "InsufficientSpace", "ReindexQueued"]
)
def test_plan_that_needs_no_approval_is_not_approved(folder: JobFolder, reason: str) -> None:
    hold(folder, reason)

    result = folder.run("approve", "bot")

    assert result.exit_code == 1
    assert f"no plan is waiting for approval ({reason}: it waits)" in result.output
    assert annotations_of(folder) == {}


def test_plan_of_an_older_generation_is_not_approved(folder: JobFolder) -> None:
    hold(folder, observedGeneration=0)

    result = folder.run("approve", "bot")

    assert result.exit_code == 1
    assert "its last edit is not reconciled yet" in result.output


def test_object_without_conditions_has_no_plan(folder: JobFolder) -> None:
    folder.report(KIND, "bot", observedGeneration=1)

    assert "no plan is waiting for approval (it has no collection yet)" in folder.run("approve", "bot").output


def test_foreign_manifest_is_approved_apart(tmp_path: Path) -> None:
    """The author's manifest stays unchanged."""
    folder = JobFolder(tmp_path)
    manifests = {path: path.read_bytes() for path in tmp_path.rglob("*.yaml")}
    hold(folder)

    result = folder.run("approve", "bot")

    assert result.exit_code == 0, result.output
    assert {path: path.read_bytes() for path in manifests} == manifests
    annotation_texts = [path.read_text() for path in (tmp_path / ".status" / "annotations").iterdir()]
    assert len(annotation_texts) == 1
    assert APPROVE_PLAN in annotation_texts[0]
    assert DIGEST in annotation_texts[0]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("bot", "--all", "--preset", "cortex"),
        ("--all",),
        ("--all", "--preset", "nonsense"),
        ("--all", "--preset", "cortex", "--digest", DIGEST),
        ("bot", "--preset", "cortex"),
        ("bot", "--keep-going"),
        ("bot", "--at-once", "2"),
        ("--all", "--preset", "cortex", "-n", ""),
        ("--all", "--preset", "cortex", "-o", "json"),
    ],
)
def test_conflicting_options_are_rejected(folder: JobFolder, options: tuple[str, ...]) -> None:
    assert folder.run("approve", *options).exit_code == 2


def test_all_approves_only_held_newer_revisions(folder: JobFolder) -> None:
    hold(folder)

    result = folder.run("approve", "--all", "--preset", "cortex")

    assert result.exit_code == 0, result.output
    assert "0 AgentMemories wait for approval of a newer revision of preset cortex, 0 are in progress" in result.output
    assert annotations_of(folder) == {}
