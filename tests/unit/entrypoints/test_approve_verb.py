"""The verb that approves, on a folder of manifests whose other side a test plays."""

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
    """A folder with an agent in a manifest that commands may change."""
    made = JobFolder(tmp_path, agents=())
    declare(made)
    return made


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


def test_a_held_plan_is_approved_and_shown_with_its_costs(folder: JobFolder) -> None:
    hold(folder)

    done = folder.run("approve", "bot")

    assert done.exit_code == 0, done.output
    assert annotations_of(folder) == {APPROVE_PLAN: DIGEST}
    assert f"AgentMemory agents/bot: approved {DIGEST}" in done.output
    assert "rebuild for index.distance Cosine -> Dot" in done.output
    assert "Costs: 41 points, 9 MiB of disk" in done.output
    assert "agentmemory rebuild bot" in done.output


def test_programs_get_what_was_approved(folder: JobFolder) -> None:
    hold(folder)

    done = folder.run("approve", "bot", "-o", "json")

    told = json.loads(done.output)
    assert told == {
        "agent": {"namespace": "agents", "name": "bot"},
        "approved": DIGEST,
        "changes": [CHANGE],
        "costs": {"points": 41, "diskMiB": 9},
    }


@pytest.mark.parametrize("reason", ["RebuildCancelled", "RolledBack"])
def test_what_stopped_it_or_took_it_back_is_taken_off(folder: JobFolder, reason: str) -> None:
    declare(folder, **{CANCEL_REBUILD: DIGEST, ROLLBACK_REBUILD: "x__2", "other": "stays"})
    hold(folder, reason)

    assert folder.run("approve", "bot").exit_code == 0

    assert annotations_of(folder) == {APPROVE_PLAN: DIGEST, "other": "stays"}


def test_a_drop_of_the_recall_is_approved_as_that(folder: JobFolder) -> None:
    rebuild = {"state": "Held", "digest": DIGEST, "message": "the recall drops by 7 points"}
    hold(folder, "RebuildRunning", rebuild=rebuild)

    assert folder.run("approve", "bot").exit_code == 0

    assert annotations_of(folder) == {APPROVE_PLAN: f"{DIGEST}-recall"}


def test_the_digest_that_was_looked_at_is_approved(folder: JobFolder) -> None:
    hold(folder)

    assert folder.run("approve", "bot", "--digest", DIGEST).exit_code == 0

    assert annotations_of(folder) == {APPROVE_PLAN: DIGEST}


def test_another_digest_than_was_looked_at_is_refused_with_the_new_one(folder: JobFolder) -> None:
    hold(folder)

    done = folder.run("approve", "bot", "--digest", "ba9876543210")

    assert done.exit_code == 1
    assert "the plan ba9876543210 is outdated" in done.output
    assert f"{DIGEST}: rebuild for index.distance Cosine -> Dot" in done.output
    assert annotations_of(folder) == {}


@pytest.mark.parametrize(
    "reason", ["RebuildRunning", "RebuildNotAllowed", "CannotRebuild", "InsufficientSpace", "ReindexQueued"]
)
def test_what_no_approval_lets_pass_is_not_approved(folder: JobFolder, reason: str) -> None:
    hold(folder, reason)

    done = folder.run("approve", "bot")

    assert done.exit_code == 1
    assert f"no plan is waiting for approval ({reason}: it waits)" in done.output
    assert annotations_of(folder) == {}


def test_a_plan_of_an_older_edit_is_not_approved(folder: JobFolder) -> None:
    hold(folder, observedGeneration=0)

    done = folder.run("approve", "bot")

    assert done.exit_code == 1
    assert "its last edit is not reconciled yet" in done.output


def test_an_object_that_nobody_has_looked_at_has_nothing_to_approve(folder: JobFolder) -> None:
    folder.report(KIND, "bot", observedGeneration=1)

    assert "no plan is waiting for approval (it has no collection yet)" in folder.run("approve", "bot").output


def test_a_plan_of_a_manifest_of_its_author_is_approved_beside_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    manifests = {path: path.read_bytes() for path in tmp_path.rglob("*.yaml")}
    hold(folder)

    done = folder.run("approve", "bot")

    assert done.exit_code == 0, done.output
    assert {path: path.read_bytes() for path in manifests} == manifests
    kept = [path.read_text() for path in (tmp_path / ".status" / "annotations").iterdir()]
    assert len(kept) == 1
    assert APPROVE_PLAN in kept[0]
    assert DIGEST in kept[0]


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
    ],
)
def test_options_that_mean_nothing_together_are_refused(folder: JobFolder, options: tuple[str, ...]) -> None:
    assert folder.run("approve", *options).exit_code == 2


def test_where_no_newer_revision_holds_anything_all_has_nothing_to_do(folder: JobFolder) -> None:
    hold(folder)

    done = folder.run("approve", "--all", "--preset", "cortex")

    assert done.exit_code == 0, done.output
    assert "0 AgentMemories wait for approval of a newer revision of preset cortex, 0 are in progress" in done.output
    assert annotations_of(folder) == {}
