"""`agentmemory rebuild` on a folder of manifests; the tests write the statuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentmemory_operator.entrypoints.cli import job_commands
from agentmemory_operator.entrypoints.cli.decide import rebuild as rebuilds
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, CANCEL_REBUILD, PAUSE_REBUILD, ROLLBACK_REBUILD
from tests.support.job.job_folder import NAMESPACE, JobFolder, condition

KIND = "AgentMemory"
STARTED = "2026-11-22T08:00:00.000Z"
COPYING = {
    "kind": "Rebuild",
    "state": "Running",
    "step": "Copy",
    "digest": "a1b2c3",
    "source": "agent_memory_bot__1",
    "target": "agent_memory_bot__2",
    "copied": 250,
    "total": 1000,
    "embeddingCalls": 4,
    "startTime": STARTED,
}
MOVED = COPYING | {"step": "Drain", "copied": 1000, "moveTime": "2026-11-22T08:01:00.000Z"}
DONE = MOVED | {
    "state": "Done",
    "step": "Done",
    "endTime": "2099-11-22T08:02:00.000Z",
    "message": "agent_memory_bot__2 is live and replaces agent_memory_bot__1",
}
ROLLED_BACK = DONE | {"kind": "Rollback", "source": "agent_memory_bot__2", "target": "agent_memory_bot__1"}
RESTARTED = {"startTime": "2026-11-22T09:00:00.000Z"}
HELD = {"digest": "d4e5f6", "changes": [{"class": "Rebuild", "change": "…", "cost": "…", "held": True}]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A folder with an agent whose manifest the commands may change."""
    monkeypatch.setattr(job_commands, "POLL_S", 0.02)
    monkeypatch.setattr(rebuilds, "POLL_S", 0.02)
    monkeypatch.setattr(rebuilds, "START_TIMEOUT_S", 2.0)
    job_folder = JobFolder(tmp_path, agents=())
    declare(job_folder)
    return job_folder


def declare(folder: JobFolder, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    metadata = {"name": "bot", "namespace": NAMESPACE, "annotations": annotations or {}}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    document["spec"] = {"connectionRef": {"name": "main"}} | spec
    (folder.path / f"{NAMESPACE}.bot.agentmemory.yaml").write_text(yaml.safe_dump(document))


def annotations_of(folder: JobFolder) -> dict[str, str]:
    found: dict[str, str] = folder.read_written(KIND)["metadata"].get("annotations") or {}
    return found


def test_progress_and_next_commands_are_shown(folder: JobFolder) -> None:
    declare(folder, rebuild={"maxEmbeddingCallsPerHour": 1000})
    folder.report(KIND, "bot", rebuild=COPYING)

    result = folder.run("rebuild", "bot")

    assert result.exit_code == 0, result.output
    assert "Rebuild of agents/bot: step 2 of 8, Copy" in result.output
    assert "250 of 1,000 points (25%)" in result.output
    assert "4, at most 1,000 an hour" in result.output
    assert f"cancel: agentmemory rebuild bot --manifests {folder.path} --cancel" in result.output


def test_reason_of_waiting_is_shown(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=COPYING | {"state": "Waiting", "message": "MemoryRestore undo goes first"})

    result = folder.run("rebuild", "bot")

    assert "waiting in step 2 of 8, Copy" in result.output
    assert "MemoryRestore undo goes first" in result.output


def test_json_output_contains_the_figures(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    document = json.loads(folder.run("rebuild", "bot", "-o", "json").output)

    assert document["rebuild"] == DONE
    assert document["previousCollection"] == {"physical": "agent_memory_bot__1", "until": "2099-11-23T08:02:00.000Z"}
    assert document["underWay"] is False


def test_held_plan_is_shown_without_a_rebuild(folder: JobFolder) -> None:
    folder.report(KIND, "bot", plan=HELD)

    result = folder.run("rebuild", "bot")

    assert "agents/bot has never been rebuilt" in result.output
    assert "plan d4e5f6 needs a Rebuild" in result.output
    assert "agentmemory approve bot" in result.output


def test_completed_rebuild_shows_the_rollback_deadline(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    result = folder.run("rebuild", "bot")

    assert "agent_memory_bot__1 until 2099-11-23T08:02:00.000Z" in result.output
    assert "--rollback" in result.output


def test_results_of_probe_searches_are_shown(folder: JobFolder) -> None:
    recall = {"probes": 48, "foundBefore": 1, "foundAfter": 0.95, "neighbours": 0.367}
    folder.report(KIND, "bot", rebuild=COPYING | {"step": "Verify", "recall": recall})

    result = folder.run("rebuild", "bot")

    message = "48 probe searches: found by their own text 100.0% -> 95.0%, 36.7% of the same nearest"
    assert message in result.output


def test_pause_and_resume_edit_the_annotation(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=COPYING)

    paused = folder.run("rebuild", "bot", "--pause")
    assert paused.exit_code == 0, paused.output
    assert annotations_of(folder).keys() == {PAUSE_REBUILD}
    folder.stack.scan()

    resumed = folder.run("rebuild", "bot", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert annotations_of(folder) == {}


def test_cancel_names_the_plan_and_removes_the_pause(folder: JobFolder) -> None:
    declare(folder, {PAUSE_REBUILD: "since yesterday"})
    folder.report(KIND, "bot", rebuild=COPYING | {"state": "Paused"})

    result = folder.run("rebuild", "bot", "--cancel")

    assert result.exit_code == 0, result.output
    assert annotations_of(folder) == {CANCEL_REBUILD: "a1b2c3"}
    assert "agent_memory_bot__2 is removed" in result.output


@pytest.mark.parametrize(
    ("rebuild", "option", "message"),
    [
        ({}, "--pause", "no rebuild in progress that can be paused"),
        (DONE, "--cancel", "no rebuild in progress that can be cancelled"),
        (MOVED, "--cancel", "the alias already points to agent_memory_bot__2"),
        ({"state": "Waiting", "message": "it waits its turn"}, "--cancel", "has not started yet: it waits its turn"),
        (COPYING, "--resume", "is not paused"),
        (COPYING, "--rollback", "--cancel stops it before the switch"),
        ({}, "--rollback", "has no previous collection"),
        (ROLLED_BACK, "--rollback", "is already rolled back"),
        (DONE | {"endTime": "2026-11-01T00:00:00.000Z"}, "--rollback", "was kept until 2026-11-02T00:00:00.000Z"),
    ],
)
def test_impossible_action_is_rejected_with_the_reason(
    folder: JobFolder, rebuild: dict[str, Any], option: str, message: str
) -> None:
    folder.report(KIND, "bot", rebuild=rebuild)

    result = folder.run("rebuild", "bot", option)

    assert result.exit_code == 1
    assert message in result.output
    assert annotations_of(folder) == {}


def test_two_actions_at_once_are_rejected(folder: JobFolder) -> None:
    result = folder.run("rebuild", "bot", "--pause", "--cancel")

    assert result.exit_code == 2
    assert "--pause, --cancel" in result.output


def test_rollback_requires_confirmation(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    result = folder.run("rebuild", "bot", "--rollback")

    assert result.exit_code == 2
    assert "agent_memory_bot__1 becomes live again instead of agent_memory_bot__2" in result.output
    assert "add --yes" in result.output
    assert annotations_of(folder) == {}


def test_no_wait_rollback_names_the_live_collection(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    result = folder.run("rebuild", "bot", "--rollback", "--yes", "--no-wait")

    assert result.exit_code == 0, result.output
    assert annotations_of(folder) == {ROLLBACK_REBUILD: "agent_memory_bot__2"}


def test_rollback_waits_for_the_live_collection(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)
    before, running = {"rebuild": DONE}, ROLLED_BACK | RESTARTED | {"state": "Running", "step": "CatchUp"}

    with folder.report_statuses(
        KIND, before, before, before, {"rebuild": running}, {"rebuild": ROLLED_BACK | RESTARTED}
    ):
        result = folder.run("rebuild", "bot", "--rollback", "--yes")

    assert result.exit_code == 0, result.output
    assert "Rollback done" in result.output


def test_rollback_without_an_operator_is_reported(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    result = folder.run("rebuild", "bot", "--rollback", "--yes")

    assert result.exit_code == 1
    assert "no rebuild has started: is an operator running?" in result.output


@pytest.mark.parametrize(
    ("end", "exit_code", "message"),
    [
        (DONE, 0, "Rebuild done: agent_memory_bot__2 is live"),
        (COPYING | {"state": "Failed", "message": "no room"}, 1, "Rebuild failed: no room"),
    ],
)
def test_watch_shows_each_step_and_the_result(
    folder: JobFolder, end: dict[str, Any], exit_code: int, message: str
) -> None:
    folder.report(KIND, "bot", rebuild=COPYING)
    steps = [{"rebuild": COPYING}, {"rebuild": COPYING | {"step": "Verify"}}, {"rebuild": MOVED}, {"rebuild": end}]

    with folder.report_statuses(KIND, *steps):
        result = folder.run("rebuild", "bot", "--watch")

    assert result.exit_code == exit_code, result.output
    assert "  step 2 of 8, Copy: 250 of 1,000 points\n" in result.output
    assert "  step 5 of 8, Verify\n" in result.output
    assert message in result.output


def test_watch_of_a_held_plan_waits_for_approval(folder: JobFolder) -> None:
    held = {"plan": HELD, "conditions": [condition("InSync", "False", "AwaitingApproval")]}
    folder.report(KIND, "bot", **held)

    with folder.report_statuses(KIND, held, held, held, held | {"rebuild": COPYING}, {"rebuild": DONE}):
        result = folder.run("rebuild", "bot", "--watch")

    assert result.exit_code == 0, result.output
    assert "plan d4e5f6 is waiting for approval: AwaitingApproval" in result.output


def test_foreign_manifest_is_paused_apart(tmp_path: Path) -> None:
    """The annotation is stored below `.status`."""
    (tmp_path / "other").mkdir()
    folder = JobFolder(tmp_path / "other")
    folder.report(KIND, "bot", rebuild=COPYING)

    result = folder.run("rebuild", "bot", "--pause")

    assert result.exit_code == 0, result.output
    [annotation_file] = (tmp_path / "other" / ".status" / "annotations").iterdir()
    assert PAUSE_REBUILD in annotation_file.read_text()
