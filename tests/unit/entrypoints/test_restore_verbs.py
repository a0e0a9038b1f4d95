"""The verb of restores on a folder of manifests, whose other side a test plays."""

from pathlib import Path
from typing import Any

import pytest

from agentmemory_operator.entrypoints.cli import job_commands
from agentmemory_operator.entrypoints.cli.snapshots import restore as restores
from agentmemory_operator.entrypoints.cli.snapshots.restore import find_last_restore
from tests.support.job.job_folder import JobFolder, condition

KIND = "MemoryRestore"
DONE = condition("Succeeded", "True", "Restored", "restored 7 memories")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A folder with two agents and a snapshot of one."""
    monkeypatch.setattr(job_commands, "POLL_S", 0.02)
    monkeypatch.setattr(restores, "POLL_S", 0.02)
    made = JobFolder(tmp_path, agents=("bot", "staging"))
    made.declare("MemorySnapshot", "before", {"agentMemoryRef": {"name": "bot"}})
    return made


def test_it_writes_a_restore_of_the_snapshot(folder: JobFolder) -> None:
    done = folder.run("restore", "bot", "--from", "before", "--mode", "InPlace")

    assert done.exit_code == 0, done.output
    made = folder.read_written(KIND)
    assert made["metadata"]["name"].startswith("bot-20")
    assert made["spec"] == {
        "target": {"name": "bot"},
        "source": {"snapshotRef": {"name": "before"}},
        "mode": "InPlace",
    }


def test_a_clone_goes_into_another_agent(folder: JobFolder) -> None:
    folder.run("restore", "bot", "--from", "before", "--into", "staging", "--name", "clone")

    made = folder.read_written(KIND)
    assert made["metadata"]["name"] == "clone"
    assert made["spec"]["target"] == {"name": "staging"}


def test_a_snapshot_of_another_agent_is_refused_with_the_command_for_a_clone(folder: JobFolder) -> None:
    done = folder.run("restore", "staging", "--from", "before")

    assert done.exit_code == 1
    assert "agents/before is of bot, not of staging" in done.output
    assert "agentmemory restore bot --from before --into staging" in done.output
    assert not list(folder.path.glob("*.memoryrestore.yaml"))


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("bot", "--from", "nothing"), "there is no MemorySnapshot agents/nothing"),
        (("bot", "--from", "before", "--into", "nobody"), "there is no AgentMemory agents/nobody"),
    ],
)
def test_what_does_not_exist_is_named_before_anything_is_created(
    folder: JobFolder, arguments: tuple[str, ...], missing: str
) -> None:
    done = folder.run("restore", *arguments)

    assert done.exit_code == 1
    assert missing in done.output
    assert not list(folder.path.glob("*.memoryrestore.yaml"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bot",), "give --from SNAPSHOT"),
        (("bot", "--rollback", "--from", "before"), "combined with --from and its options"),
    ],
)
def test_options_that_make_no_sense_are_refused(folder: JobFolder, arguments: tuple[str, ...], said: str) -> None:
    done = folder.run("restore", *arguments)

    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", "").split())


def test_waiting_shows_the_steps_and_ends_with_what_came_of_it(folder: JobFolder) -> None:
    with folder.report_statuses(
        KIND,
        {"progress": "step 1 of 8: Recover", "conditions": [condition("Progressing", "True")]},
        {"progress": "step 7 of 8: Switch", "conditions": [condition("Progressing", "True")]},
        {"progress": "done", "conditions": [DONE]},
    ):
        done = folder.run("restore", "bot", "--from", "before", "--name", "undo", "--wait")

    assert done.exit_code == 0, done.output
    assert "  step 1 of 8: Recover\n  step 7 of 8: Switch\n" in done.output
    assert done.output.endswith("MemoryRestore agents/undo has succeeded (Restored): restored 7 memories\n")


def restored(name: str, end: str, *, target: str = "bot", **previous: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "agents"},
        "spec": {"target": {"name": target}},
        "status": {"conditions": [DONE], "endTime": end, "previousCollection": previous or None},
    }


class TestRollback:
    def test_the_last_restore_that_can_be_taken_back_is_asked_to_be(self, folder: JobFolder) -> None:
        folder.run("restore", "bot", "--from", "before", "--name", "undo")
        folder.report(KIND, "undo", conditions=[DONE], previousCollection={"physical": "agent_memory_bot__1"})

        done = folder.run("restore", "--rollback", "bot")

        assert done.exit_code == 0, done.output
        assert "requested the rollback of MemoryRestore agents/undo" in done.output
        assert folder.read_written(KIND)["metadata"]["annotations"].keys() == {"agentmemory.dev/rollback"}

    @pytest.mark.parametrize(("status", "exit_code"), [("True", 0), ("False", 1)])
    def test_waiting_ends_with_what_came_of_it(self, folder: JobFolder, status: str, exit_code: int) -> None:
        folder.run("restore", "bot", "--from", "before", "--name", "undo")
        before = {"conditions": [DONE], "previousCollection": {"physical": "agent_memory_bot__1"}}
        folder.report(KIND, "undo", **before)
        ended = [DONE, condition("RolledBack", status, "Because", "agent_memory_bot__1 is live again")]

        with folder.report_statuses(KIND, before, before, before | {"conditions": ended}):
            done = folder.run("restore", "--rollback", "bot", "--wait")

        assert done.exit_code == exit_code, done.output
        assert "agent_memory_bot__1 is live again" in done.output

    def test_without_a_restore_the_way_out_is_said(self, folder: JobFolder) -> None:
        done = folder.run("restore", "--rollback", "bot")

        assert done.exit_code == 1
        assert "no restore into agents/bot can be rolled back" in done.output

    def test_one_into_the_collection_itself_can_be_taken_back_by_its_safety_snapshot(self) -> None:
        document = restored("in-place", "2026-11-22T00:00:00Z")
        document["status"]["safetySnapshot"] = {"name": "in-place-safety"}

        assert find_last_restore([document], "bot") is document

    def test_it_is_the_newest_of_the_agent_whose_collection_is_still_there(self) -> None:
        documents = [
            restored("old", "2026-11-20T00:00:00Z", physical="b__1"),
            restored("newest", "2026-11-22T00:00:00Z", physical="b__2"),
            restored("removed", "2026-11-23T00:00:00Z", physical="b__3", removedTime="2026-11-24T00:00:00Z"),
            restored("into nothing", "2026-11-24T00:00:00Z"),
            restored("elsewhere", "2026-11-25T00:00:00Z", target="other", physical="o__1"),
        ]

        found = find_last_restore(documents, "bot")

        assert found is not None
        assert found["metadata"]["name"] == "newest"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--all",),
        ("--all", "--connection", "main"),
        ("bot", "--all", "--connection", "main", "--latest-verified"),
        ("--all", "--connection", "main", "--latest-verified", "--from", "before"),
    ],
)
def test_everything_is_restored_only_where_that_is_said_in_full(folder: JobFolder, arguments: tuple[str, ...]) -> None:
    done = folder.run("restore", *arguments)

    assert done.exit_code == 2
    assert "--latest-verified" in done.output


def test_all_restores_what_a_connection_lost_and_fails_where_something_cannot_be(folder: JobFolder) -> None:
    folder.declare("QdrantConnection", "main", {"url": "http://127.0.0.1:1"})
    folder.report("QdrantConnection", "main", version="1.18.3")
    lost = [condition("Ready", "False", "CollectionLost", "gone") | {"lastTransitionTime": "2026-11-22T08:00:00Z"}]
    made = [condition("Succeeded", "True", "SnapshotTaken", ""), condition("Verified", "True", "Verified", "")]
    folder.report("AgentMemory", "bot", conditions=lost)
    folder.report("AgentMemory", "staging", conditions=lost)
    folder.report("MemorySnapshot", "before", conditions=made, qdrantVersion="1.18.3")

    with folder.report_statuses(KIND, {"conditions": [DONE]}):
        done = folder.run("restore", "--all", "--connection", "main", "--latest-verified", "-n", "agents")

    assert done.exit_code == 1
    assert "2 agents of QdrantConnection agents/main have lost" in done.output
    assert "agents/bot restored: MemoryRestore bot-20261122t080000z-" in done.output
    assert "1 of 2 agents were not restored: agents/staging" in done.output
