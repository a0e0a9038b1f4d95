"""The verb of rebuilds on a folder of manifests, whose other side a test plays."""

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
BEGUN = "2026-11-22T08:00:00.000Z"
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
    "startTime": BEGUN,
}
MOVED = COPYING | {"step": "Drain", "copied": 1000, "moveTime": "2026-11-22T08:01:00.000Z"}
DONE = MOVED | {
    "state": "Done",
    "step": "Done",
    "endTime": "2099-11-22T08:02:00.000Z",
    "message": "agent_memory_bot__2 is live and replaces agent_memory_bot__1",
}
BACK = DONE | {"kind": "Rollback", "source": "agent_memory_bot__2", "target": "agent_memory_bot__1"}
AGAIN = {"startTime": "2026-11-22T09:00:00.000Z"}
HELD = {"digest": "d4e5f6", "changes": [{"class": "Rebuild", "change": "…", "cost": "…", "held": True}]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A folder with an agent in a manifest that commands may change."""
    monkeypatch.setattr(job_commands, "POLL_S", 0.02)
    monkeypatch.setattr(rebuilds, "POLL_S", 0.02)
    monkeypatch.setattr(rebuilds, "START_TIMEOUT_S", 2.0)
    made = JobFolder(tmp_path, agents=())
    declare(made)
    return made


def declare(folder: JobFolder, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    metadata = {"name": "bot", "namespace": NAMESPACE, "annotations": annotations or {}}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    document["spec"] = {"connectionRef": {"name": "main"}} | spec
    (folder.path / f"{NAMESPACE}.bot.agentmemory.yaml").write_text(yaml.safe_dump(document))


def annotations_of(folder: JobFolder) -> dict[str, str]:
    found: dict[str, str] = folder.read_written(KIND)["metadata"].get("annotations") or {}
    return found


def test_it_shows_how_far_the_copy_is_and_what_can_be_done(folder: JobFolder) -> None:
    declare(folder, rebuild={"maxEmbeddingCallsPerHour": 1000})
    folder.report(KIND, "bot", rebuild=COPYING)

    done = folder.run("rebuild", "bot")

    assert done.exit_code == 0, done.output
    assert "Rebuild of agents/bot: step 2 of 8, Copy" in done.output
    assert "250 of 1,000 points (25%)" in done.output
    assert "4, at most 1,000 an hour" in done.output
    assert f"cancel: agentmemory rebuild bot --manifests {folder.path} --cancel" in done.output


def test_what_it_waits_for_is_said(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=COPYING | {"state": "Waiting", "message": "MemoryRestore undo goes first"})

    done = folder.run("rebuild", "bot")

    assert "waiting in step 2 of 8, Copy" in done.output
    assert "MemoryRestore undo goes first" in done.output


def test_programs_get_the_figures(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    told = json.loads(folder.run("rebuild", "bot", "-o", "json").output)

    assert told["rebuild"] == DONE
    assert told["previousCollection"] == {"physical": "agent_memory_bot__1", "until": "2099-11-23T08:02:00.000Z"}
    assert told["underWay"] is False


def test_one_that_was_never_rebuilt_shows_the_plan_that_is_held(folder: JobFolder) -> None:
    folder.report(KIND, "bot", plan=HELD)

    done = folder.run("rebuild", "bot")

    assert "agents/bot has never been rebuilt" in done.output
    assert "plan d4e5f6 needs a Rebuild" in done.output
    assert "agentmemory approve bot" in done.output


def test_after_the_end_it_says_until_when_there_is_a_way_back(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    done = folder.run("rebuild", "bot")

    assert "agent_memory_bot__1 until 2099-11-23T08:02:00.000Z" in done.output
    assert "--rollback" in done.output


def test_what_probe_searches_found_is_shown(folder: JobFolder) -> None:
    recall = {"probes": 48, "foundBefore": 1, "foundAfter": 0.95, "neighbours": 0.367}
    folder.report(KIND, "bot", rebuild=COPYING | {"step": "Verify", "recall": recall})

    done = folder.run("rebuild", "bot")

    said = "48 probe searches: found by their own text 100.0% -> 95.0%, 36.7% of the same nearest"
    assert said in done.output


def test_pausing_and_going_on_set_the_annotation_and_take_it_off(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=COPYING)

    paused = folder.run("rebuild", "bot", "--pause")
    assert paused.exit_code == 0, paused.output
    assert annotations_of(folder).keys() == {PAUSE_REBUILD}
    folder.stack.scan()

    resumed = folder.run("rebuild", "bot", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert annotations_of(folder) == {}


def test_cancelling_names_the_plan_and_lets_nothing_pause_it(folder: JobFolder) -> None:
    declare(folder, {PAUSE_REBUILD: "since yesterday"})
    folder.report(KIND, "bot", rebuild=COPYING | {"state": "Paused"})

    done = folder.run("rebuild", "bot", "--cancel")

    assert done.exit_code == 0, done.output
    assert annotations_of(folder) == {CANCEL_REBUILD: "a1b2c3"}
    assert "agent_memory_bot__2 is removed" in done.output


@pytest.mark.parametrize(
    ("rebuild", "option", "said"),
    [
        ({}, "--pause", "no rebuild in progress that can be paused"),
        (DONE, "--cancel", "no rebuild in progress that can be cancelled"),
        (MOVED, "--cancel", "the alias already points to agent_memory_bot__2"),
        ({"state": "Waiting", "message": "it waits its turn"}, "--cancel", "has not started yet: it waits its turn"),
        (COPYING, "--resume", "is not paused"),
        (COPYING, "--rollback", "--cancel stops it before the switch"),
        ({}, "--rollback", "has no previous collection"),
        (BACK, "--rollback", "is already rolled back"),
        (DONE | {"endTime": "2026-11-01T00:00:00.000Z"}, "--rollback", "was kept until 2026-11-02T00:00:00.000Z"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    folder: JobFolder, rebuild: dict[str, Any], option: str, said: str
) -> None:
    folder.report(KIND, "bot", rebuild=rebuild)

    done = folder.run("rebuild", "bot", option)

    assert done.exit_code == 1
    assert said in done.output
    assert annotations_of(folder) == {}


def test_two_actions_at_once_are_refused(folder: JobFolder) -> None:
    done = folder.run("rebuild", "bot", "--pause", "--cancel")

    assert done.exit_code == 2
    assert "--pause, --cancel" in done.output


def test_a_rollback_says_what_it_will_do_and_does_nothing_without_a_yes(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    done = folder.run("rebuild", "bot", "--rollback")

    assert done.exit_code == 2
    assert "agent_memory_bot__1 becomes live again instead of agent_memory_bot__2" in done.output
    assert "add --yes" in done.output
    assert annotations_of(folder) == {}


def test_a_rollback_that_nobody_waits_for_names_what_is_live(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    done = folder.run("rebuild", "bot", "--rollback", "--yes", "--no-wait")

    assert done.exit_code == 0, done.output
    assert annotations_of(folder) == {ROLLBACK_REBUILD: "agent_memory_bot__2"}


def test_a_rollback_is_waited_for_and_ends_with_what_is_live(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)
    before, running = {"rebuild": DONE}, BACK | AGAIN | {"state": "Running", "step": "CatchUp"}

    with folder.report_statuses(KIND, before, before, before, {"rebuild": running}, {"rebuild": BACK | AGAIN}):
        done = folder.run("rebuild", "bot", "--rollback", "--yes")

    assert done.exit_code == 0, done.output
    assert "Rollback done" in done.output


def test_a_rollback_that_no_operator_begins_is_told(folder: JobFolder) -> None:
    folder.report(KIND, "bot", rebuild=DONE)

    done = folder.run("rebuild", "bot", "--rollback", "--yes")

    assert done.exit_code == 1
    assert "no rebuild has started: is an operator running?" in done.output


@pytest.mark.parametrize(
    ("end", "exit_code", "said"),
    [
        (DONE, 0, "Rebuild done: agent_memory_bot__2 is live"),
        (COPYING | {"state": "Failed", "message": "no room"}, 1, "Rebuild failed: no room"),
    ],
)
def test_watching_shows_each_step_and_ends_with_what_came_of_it(
    folder: JobFolder, end: dict[str, Any], exit_code: int, said: str
) -> None:
    folder.report(KIND, "bot", rebuild=COPYING)
    steps = [{"rebuild": COPYING}, {"rebuild": COPYING | {"step": "Verify"}}, {"rebuild": MOVED}, {"rebuild": end}]

    with folder.report_statuses(KIND, *steps):
        done = folder.run("rebuild", "bot", "--watch")

    assert done.exit_code == exit_code, done.output
    assert "  step 2 of 8, Copy: 250 of 1,000 points\n" in done.output
    assert "  step 5 of 8, Verify\n" in done.output
    assert said in done.output


def test_watching_what_is_held_waits_for_the_approval_and_then_for_the_end(folder: JobFolder) -> None:
    held = {"plan": HELD, "conditions": [condition("InSync", "False", "AwaitingApproval")]}
    folder.report(KIND, "bot", **held)

    with folder.report_statuses(KIND, held, held, held, held | {"rebuild": COPYING}, {"rebuild": DONE}):
        done = folder.run("rebuild", "bot", "--watch")

    assert done.exit_code == 0, done.output
    assert "plan d4e5f6 is waiting for approval: AwaitingApproval" in done.output


def test_a_rebuild_of_a_manifest_of_its_author_is_paused_beside_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folder = JobFolder(tmp_path / "other")
    folder.report(KIND, "bot", rebuild=COPYING)

    done = folder.run("rebuild", "bot", "--pause")

    assert done.exit_code == 0, done.output
    [kept] = (tmp_path / "other" / ".status" / "annotations").iterdir()
    assert PAUSE_REBUILD in kept.read_text()
