"""`agentmemory restore` on a folder of manifests; the tests write the statuses."""

from pathlib import Path
from typing import Any

import pytest

from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles
from agentmemory_operator.entrypoints.cli import job_commands
from agentmemory_operator.entrypoints.cli.snapshots import restore as restores
from agentmemory_operator.entrypoints.cli.snapshots.restore import find_last_restore
from agentmemory_operator.errors import TransientError
from agentmemory_operator.runtime import tasks
from tests.support.job.job_folder import JobFolder, condition

KIND = "MemoryRestore"
DONE = condition("Succeeded", "True", "Restored", "restored 7 memories")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A folder with two agents and a snapshot of one."""
    monkeypatch.setattr(job_commands, "POLL_S", 0.02)
    monkeypatch.setattr(restores, "POLL_S", 0.02)
    job_folder = JobFolder(tmp_path, agents=("bot", "staging"))
    job_folder.declare("MemorySnapshot", "before", {"agentMemoryRef": {"name": "bot"}})
    return job_folder


def test_restore_of_the_snapshot_is_created(folder: JobFolder) -> None:
    result = folder.run("restore", "bot", "--from", "before", "--mode", "InPlace")

    assert result.exit_code == 0, result.output
    document = folder.read_written(KIND)
    assert document["metadata"]["name"].startswith("bot-20")
    assert document["spec"] == {
        "target": {"name": "bot"},
        "source": {"snapshotRef": {"name": "before"}},
        "mode": "InPlace",
    }


def test_clone_targets_another_agent(folder: JobFolder) -> None:
    folder.run("restore", "bot", "--from", "before", "--into", "staging", "--name", "clone")

    document = folder.read_written(KIND)
    assert document["metadata"]["name"] == "clone"
    assert document["spec"]["target"] == {"name": "staging"}


def test_snapshot_of_another_agent_is_rejected(folder: JobFolder) -> None:
    """The message contains the command for a clone."""
    result = folder.run("restore", "staging", "--from", "before")

    assert result.exit_code == 1
    assert "agents/before is of bot, not of staging" in result.output
    assert "agentmemory restore bot --from before --into staging" in result.output
    assert not list(folder.path.glob("*.memoryrestore.yaml"))


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("bot", "--from", "nothing"), "there is no MemorySnapshot agents/nothing"),
        (("bot", "--from", "before", "--into", "nobody"), "there is no AgentMemory agents/nobody"),
    ],
)
def test_missing_object_is_named_before_creation(folder: JobFolder, arguments: tuple[str, ...], missing: str) -> None:
    result = folder.run("restore", *arguments)

    assert result.exit_code == 1
    assert missing in result.output
    assert not list(folder.path.glob("*.memoryrestore.yaml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bot",), "give --from SNAPSHOT"),
        (("bot", "--rollback", "--from", "before"), "combined with --from and its options"),
        (("bot", "--from", "before", "--connection", "main"), "give an AgentMemory, or --all"),
        (("bot", "--from", "before", "--latest-verified"), "give an AgentMemory, or --all"),
        (("bot", "--rollback", "--at-once", "2"), "give an AgentMemory, or --all"),
        (("bot", "--from", "before", "--into", ""), "--into is empty"),
    ],
)
def test_conflicting_options_are_rejected(folder: JobFolder, arguments: tuple[str, ...], message: str) -> None:
    result = folder.run("restore", *arguments)

    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", "").split())


def test_wait_shows_the_steps_and_the_result(folder: JobFolder) -> None:
    with folder.report_statuses(
        KIND,
        {"progress": "step 1 of 8: Recover", "conditions": [condition("Progressing", "True")]},
        {"progress": "step 7 of 8: Switch", "conditions": [condition("Progressing", "True")]},
        {"progress": "done", "conditions": [DONE]},
    ):
        result = folder.run("restore", "bot", "--from", "before", "--name", "undo", "--wait")

    assert result.exit_code == 0, result.output
    assert "  step 1 of 8: Recover\n  step 7 of 8: Switch\n" in result.output
    assert result.output.endswith("MemoryRestore agents/undo has succeeded (Restored): restored 7 memories\n")


def restore_of(name: str, end: str, *, target: str = "bot", **previous: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "agents"},
        "spec": {"target": {"name": target}},
        "status": {"conditions": [DONE], "endTime": end, "previousCollection": previous or None},
    }


class TestRollback:
    def test_last_restore_is_rolled_back(self, folder: JobFolder) -> None:
        folder.run("restore", "bot", "--from", "before", "--name", "undo")
        folder.report(KIND, "undo", conditions=[DONE], previousCollection={"physical": "agent_memory_bot__1"})

        result = folder.run("restore", "--rollback", "bot")

        assert result.exit_code == 0, result.output
        assert "requested the rollback of MemoryRestore agents/undo" in result.output
        assert folder.read_written(KIND)["metadata"]["annotations"].keys() == {"agentmemory.dev/rollback"}

    @pytest.mark.parametrize(("status", "exit_code"), [("True", 0), ("False", 1)])
    def test_wait_shows_the_result(self, folder: JobFolder, status: str, exit_code: int) -> None:
        folder.run("restore", "bot", "--from", "before", "--name", "undo")
        before = {"conditions": [DONE], "previousCollection": {"physical": "agent_memory_bot__1"}}
        folder.report(KIND, "undo", **before)
        ended = [DONE, condition("RolledBack", status, "Because", "agent_memory_bot__1 is live again")]

        with folder.report_statuses(KIND, before, before, before | {"conditions": ended}):
            result = folder.run("restore", "--rollback", "bot", "--wait")

        assert result.exit_code == exit_code, result.output
        assert "agent_memory_bot__1 is live again" in result.output

    def test_wait_continues_after_an_outage(self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.run("restore", "bot", "--from", "before", "--name", "undo")
        before = {"conditions": [DONE], "previousCollection": {"physical": "agent_memory_bot__1"}}
        folder.report(KIND, "undo", **before)
        read, errors = ManifestFiles.read_object, [TransientError("the API server is away")] * 2

        async def read_object(*arguments: Any) -> Any:
            if errors:
                raise errors.pop()
            return await read(*arguments)

        monkeypatch.setattr(ManifestFiles, "read_object", read_object)
        with folder.report_statuses(KIND, before, before | {"conditions": [DONE, condition("RolledBack", "True")]}):
            result = folder.run("restore", "--rollback", "bot", "--wait")

        assert (result.exit_code, errors) == (0, []), result.output
        assert result.output.count("the API server is away: waiting for at most 600 s") == 1

    def test_wait_ends_with_a_long_outage(self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.run("restore", "bot", "--from", "before", "--name", "undo")
        folder.report(KIND, "undo", conditions=[DONE], previousCollection={"physical": "agent_memory_bot__1"})

        async def read_object(*_: Any) -> Any:
            raise TransientError("the API server is away")

        monkeypatch.setattr(ManifestFiles, "read_object", read_object)
        monkeypatch.setattr(tasks, "MAX_OUTAGE_S", 0.0)
        result = folder.run("restore", "--rollback", "bot", "--wait")

        assert result.exit_code == 1
        assert "it could not be read for 0 s: the API server is away\n" in result.output

    def test_missing_restore_is_reported(self, folder: JobFolder) -> None:
        result = folder.run("restore", "--rollback", "bot")

        assert result.exit_code == 1
        assert "no restore into agents/bot can be rolled back" in result.output

    def test_in_place_restore_uses_its_safety_snapshot(self) -> None:
        document = restore_of("in-place", "2026-11-22T00:00:00Z")
        document["status"]["safetySnapshot"] = {"name": "in-place-safety"}

        assert find_last_restore([document], "bot") is document

    def test_newest_restore_with_a_collection_is_chosen(self) -> None:
        documents = [
            restore_of("old", "2026-11-20T00:00:00Z", physical="b__1"),
            restore_of("newest", "2026-11-22T00:00:00Z", physical="b__2"),
            restore_of("removed", "2026-11-23T00:00:00Z", physical="b__3", removedTime="2026-11-24T00:00:00Z"),
            restore_of("into nothing", "2026-11-24T00:00:00Z"),
            restore_of("elsewhere", "2026-11-25T00:00:00Z", target="other", physical="o__1"),
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
        ("--all", "--connection", "main", "--latest-verified", "-o", "json"),
    ],
)
def test_all_requires_connection_and_latest_verified(folder: JobFolder, arguments: tuple[str, ...]) -> None:
    result = folder.run("restore", *arguments)

    assert result.exit_code == 2
    assert "--latest-verified" in result.output


def test_all_restores_lost_agents_and_reports_failures(folder: JobFolder) -> None:
    folder.declare("QdrantConnection", "main", {"url": "http://127.0.0.1:1"})
    folder.report("QdrantConnection", "main", version="1.18.3")
    lost = [condition("Ready", "False", "CollectionLost", "gone") | {"lastTransitionTime": "2026-11-22T08:00:00Z"}]
    completed = [condition("Succeeded", "True", "SnapshotTaken", ""), condition("Verified", "True", "Verified", "")]
    folder.report("AgentMemory", "bot", conditions=lost)
    folder.report("AgentMemory", "staging", conditions=lost)
    folder.report("MemorySnapshot", "before", conditions=completed, qdrantVersion="1.18.3")

    with folder.report_statuses(KIND, {"conditions": [DONE]}):
        result = folder.run("restore", "--all", "--connection", "main", "--latest-verified", "-n", "agents")

    assert result.exit_code == 1
    assert "2 agents of QdrantConnection agents/main have lost" in result.output
    assert "agents/bot restored: MemoryRestore bot-20261122t080000z-" in result.output
    assert "1 of 2 agents were not restored: agents/staging" in result.output
