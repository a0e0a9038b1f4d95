"""`agentmemory snapshot` on a folder of manifests; the tests write the statuses."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles
from agentmemory_operator.controllers.rules.status_words import describe_locations, describe_proof, read_stage
from agentmemory_operator.entrypoints.cli import job_commands
from agentmemory_operator.entrypoints.cli.job_progress import read_outcome
from agentmemory_operator.entrypoints.cli.snapshots import snapshot as snapshot_verbs
from agentmemory_operator.errors import TransientError
from agentmemory_operator.snapshots.rules.facts import RETENTION_LABEL, UNDER_RETENTION
from tests.support.job.job_folder import JobFolder, condition

KIND = "MemorySnapshot"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A folder with one agent."""
    monkeypatch.setattr(job_commands, "POLL_S", 0.02)
    return JobFolder(tmp_path)


class TestCreate:
    def test_object_gets_a_new_name(self, folder: JobFolder) -> None:
        result = folder.run("snapshot", "create", "bot")

        assert result.exit_code == 0, result.output
        document = folder.read_written(KIND)
        assert document["metadata"]["name"].startswith("bot-20")
        assert document["spec"] == {"agentMemoryRef": {"name": "bot"}}
        assert f"created MemorySnapshot agents/{document['metadata']['name']}" in result.output
        assert f"agentmemory snapshot list bot --manifests {folder.path}" in result.output

    def test_options_are_stored_in_the_object(self, folder: JobFolder) -> None:
        folder.run("snapshot", "create", "bot", "--name", "before-upgrade", "--verify", "Checksum")

        document = folder.read_written(KIND)
        assert document["metadata"]["name"] == "before-upgrade"
        assert document["spec"]["verify"] == "Checksum"

    def test_missing_agent_is_named(self, folder: JobFolder) -> None:
        result = folder.run("snapshot", "create", "nobody")

        assert result.exit_code == 1
        assert "there is no AgentMemory agents/nobody" in result.output
        assert not list(folder.path.glob("*.memorysnapshot.yaml"))

    def test_existing_name_is_rejected(self, folder: JobFolder) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")

        result = folder.run("snapshot", "create", "bot", "--name", "one")

        assert result.exit_code == 1
        assert "MemorySnapshot agents/one exists already: choose another --name" in result.output

    @pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
    def test_stdout_contains_only_the_object(self, folder: JobFolder, output: str, load: Any) -> None:
        result = folder.run("snapshot", "create", "bot", "--name", "one", "-o", output)

        document = load(result.stdout)
        assert (document["kind"], document["metadata"]["name"]) == (KIND, "one")
        assert document["spec"] == {"agentMemoryRef": {"name": "bot"}}
        assert "created MemorySnapshot agents/one" in result.stderr

    def test_wait_shows_each_step_and_the_result(self, folder: JobFolder) -> None:
        good = [condition("Succeeded", "True", "SnapshotTaken", "12 bytes"), condition("Verified", "True")]
        with folder.report_statuses(
            KIND,
            {"progress": "Qdrant is taking the snapshot", "conditions": [condition("Progressing", "True")]},
            {"progress": "verified: 3 of 4", "conditions": [condition("Progressing", "True")]},
            {"conditions": good},
        ):
            result = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")

        assert result.exit_code == 0, result.output
        assert "  Qdrant is taking the snapshot\n  verified: 3 of 4\n" in result.output
        assert result.output.endswith("MemorySnapshot agents/one has succeeded (SnapshotTaken): 12 bytes\n")

    def test_wait_fails_with_the_reason(self, folder: JobFolder) -> None:
        with folder.report_statuses(KIND, {"conditions": [condition("Succeeded", "False", "DiskFull", "free some")]}):
            result = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")

        assert result.exit_code == 1
        assert "agentmemory: MemorySnapshot agents/one failed (DiskFull): free some" in result.output

    def test_wait_ends_if_the_object_is_deleted(self, folder: JobFolder) -> None:
        def delete() -> None:
            while not list(folder.path.glob("*.memorysnapshot.yaml")):
                time.sleep(0.01)
            (folder.path / "agents.one.memorysnapshot.yaml").unlink()

        player = threading.Thread(target=delete)
        player.start()
        result = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")
        player.join()

        assert result.exit_code == 1
        assert "MemorySnapshot agents/one was deleted before it finished" in result.output

    def test_interrupt_keeps_the_object(self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        async def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("agentmemory_operator.entrypoints.cli.job_commands.follow", interrupt)
        result = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")

        assert result.exit_code == 130
        assert "the snapshot continues; `agentmemory snapshot list bot" in result.output
        assert folder.read_written(KIND)["metadata"]["name"] == "one"


def test_folder_and_context_exclude_each_other(folder: JobFolder) -> None:
    result = folder.run("snapshot", "list", "bot", "--context", "prod")

    assert result.exit_code == 2
    assert "omit --context" in " ".join(result.output.replace("│", "").split())


COMPLETED = {
    "conditions": [condition("Succeeded", "True"), condition("Verified", "True")],
    "points": {"before": 7, "after": 7},
    "sizeBytes": 12_345_678,
    "qdrantVersion": "1.18.3",
    "locations": [{"type": "Qdrant", "physical": "p", "name": "f"}],
}


def create_completed(folder: JobFolder, **start_times: str) -> None:
    """Create completed snapshots with these names and start times."""
    for name in start_times:
        folder.run("snapshot", "create", "bot", "--name", name)
        folder.report(KIND, name, **COMPLETED, startTime=start_times[name])


class TestList:
    def test_snapshots_are_listed_newest_first(self, folder: JobFolder) -> None:
        create_completed(folder, old="2026-11-21T03:00:00Z", new="2026-11-22T03:00:00Z")

        heading, *lines = folder.run("snapshot", "list", "bot").output.splitlines()

        assert heading.split() == ["SNAPSHOT", "TIME", "POINTS", "SIZE", "VERIFIED", "WHERE", "QDRANT", "KEPT"]
        assert lines[0].split() == [
            *("new", "2026-11-22T03:00:00Z", "7", "12.3", "MB", "yes", "same", "disk", "1.18.3", "no", "rules")
        ]
        assert lines[1].split()[0] == "old"

    def test_structured_output_contains_the_figures(self, folder: JobFolder) -> None:
        create_completed(folder, one="2026-11-22T03:00:00Z")

        (snapshot,) = json.loads(folder.run("snapshot", "list", "bot", "-o", "json").output)["snapshots"]
        from_yaml = yaml.safe_load(folder.run("snapshot", "list", "bot", "-o", "yaml").output)["snapshots"]

        assert (snapshot["name"], snapshot["points"], snapshot["sizeBytes"], snapshot["verified"]) == (
            "one",
            7,
            12_345_678,
            "True",
        )
        assert from_yaml == [snapshot]

    def test_retention_reason_is_shown(self, folder: JobFolder) -> None:
        retention = {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}
        spec = {"connectionRef": {"name": "main"}, "snapshots": {"retention": retention}}
        folder.declare("AgentMemory", "bot", spec)
        folder.declare("QdrantConnection", "main", {"url": "http://qdrant:6333"})
        folder.report("QdrantConnection", "main", version="1.18.3")
        create_completed(folder, old="2026-11-20T03:00:00Z", older="2026-11-19T03:00:00Z", new="2026-11-22T03:00:00Z")
        for name in ("old", "new"):
            folder.label(KIND, name, **{RETENTION_LABEL: UNDER_RETENTION})

        lines = folder.run("snapshot", "list", "bot").output.splitlines()[1:]
        listed = json.loads(folder.run("snapshot", "list", "bot", "-o", "json").output)["snapshots"]

        assert [line.partition("1.18.3")[2].strip() for line in lines] == [
            *(
                "the newest, the last verified snapshot that the server can restore, keepLast 1/1",
                "goes: no rule keeps it",
            ),
            "not taken by the schedule",
        ]
        assert [snapshot["kept"] for snapshot in listed] == [True, False, True]
        assert listed[2]["reasons"] == ["not taken by the schedule"]

    def test_snapshots_of_other_agents_are_omitted(self, folder: JobFolder) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")

        assert folder.run("snapshot", "list", "other").output.startswith("No snapshots found.")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], "not finished: waits for the operator"),
        ([condition("Succeeded", "Unknown"), condition("Progressing", "True")], "not finished: copying"),
        ([condition("Succeeded", "False", "DiskFull")], "failed: DiskFull"),
        ([condition("Succeeded", "True")], "not known"),
        ([condition("Succeeded", "True"), condition("Verified", "Unknown", "NoSpace")], "not known: NoSpace"),
        ([condition("Succeeded", "True"), condition("Verified", "False", "Different")], "no: Different"),
        ([condition("Succeeded", "True"), condition("Verified", "True")], "yes"),
    ],
)
def test_state_is_described_in_a_few_words(conditions: list[dict[str, Any]], expected: str) -> None:
    progress = {"progress": "copying"} if conditions else {}

    assert describe_proof({"status": {"conditions": conditions} | progress}) == expected


@pytest.mark.parametrize(
    ("locations", "expected"),
    [
        ([], "-"),
        ([{"type": "Qdrant"}], "same disk"),
        ([{"type": "Qdrant"}, {"type": "S3", "bucket": "backups"}], "Qdrant + s3://backups"),
        ([{"type": "S3", "bucket": "backups"}], "s3://backups"),
        ([{"type": "Qdrant", "keptIn": "ObjectStorage"}], "Qdrant's S3"),
    ],
)
def test_locations_are_described(locations: list[dict[str, str]], expected: str) -> None:
    assert describe_locations({"locations": locations}) == expected


@pytest.mark.parametrize(
    ("conditions", "has_succeeded"),
    [
        ([], None),
        ([condition("Progressing", "True")], None),
        ([condition("Succeeded", "Unknown")], None),
        ([condition("Succeeded", "True"), condition("Progressing", "True")], None),
        ([condition("Succeeded", "False")], False),
        ([condition("Succeeded", "True"), condition("Verified", "False")], False),
        ([condition("Succeeded", "True"), condition("Verified", "Unknown")], True),
        ([condition("Succeeded", "True")], True),
    ],
)
def test_outcome_is_known_once_succeeded_or_failed(
    conditions: list[dict[str, Any]], has_succeeded: bool | None
) -> None:
    outcome = read_outcome({"status": {"conditions": conditions}})

    assert (outcome and outcome.has_succeeded) is has_succeeded


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        ("", (0, 0)),
        ("step 3 of 8: Verify", (3, 8)),
        ("copied 10 of 40 bytes", (10, 40)),
        (f"{'1' * 5_000} of 2", (10**18 // 9, 2)),
    ],
)
def test_progress_is_parsed(progress: str, share: tuple[int, int]) -> None:
    stage = read_stage({"status": {"progress": progress}})

    assert (stage.text, stage.done, stage.total) == (progress, *share)


class TestDelete:
    def test_deletion_requires_confirmation(self, folder: JobFolder) -> None:
        create_completed(folder, one="2026-11-22T03:00:00Z")

        result = folder.run("snapshot", "delete", "one")

        assert result.exit_code == 2
        assert "Delete MemorySnapshot agents/one and its bytes (same disk)?" in result.output
        assert "add --yes" in result.output
        assert folder.read_written(KIND)["metadata"].get("annotations") is None

    def test_object_without_an_operator_is_not_deleted(
        self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snapshot_verbs, "FINALIZER_TIMEOUT_S", 0.1)
        create_completed(folder, one="2026-11-22T03:00:00Z")

        result = folder.run("snapshot", "delete", "one", "--yes")

        assert result.exit_code == 1
        assert "was not deleted: no operator acted on it" in result.output
        assert folder.read_written(KIND)["metadata"]["name"] == "one"

    def test_wait_continues_after_an_outage(self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")
        read_object, errors = ManifestFiles.read_object, [TransientError("the API server is away"), None]

        async def read(self: ManifestFiles, *key: str) -> Any:
            if error := errors.pop() if errors else None:
                raise error
            return await read_object(self, *key)

        monkeypatch.setattr(ManifestFiles, "read_object", read)
        result = folder.run("snapshot", "delete", "one", "--yes")

        assert result.exit_code == 0, result.output
        assert "the API server is away: waiting for at most 600 s" in result.output
        assert "deleted MemorySnapshot agents/one" in result.output


class TestVerify:
    def test_wait_ends_with_the_answer_to_this_request(self, folder: JobFolder) -> None:
        create_completed(folder, one="2026-11-22T03:00:00Z")

        def answer() -> None:
            while "annotations" not in folder.read_written(KIND)["metadata"]:
                time.sleep(0.01)
            request = folder.read_written(KIND)["metadata"]["annotations"]["agentmemory.dev/verify-requested-at"]
            bad = [condition("Succeeded", "True"), condition("Verified", "False", "SampleDiffers", "3 points differ")]
            folder.report(KIND, "one", **COMPLETED | {"conditions": bad, "verifyRequest": request})

        player = threading.Thread(target=answer)
        player.start()
        result = folder.run("snapshot", "verify", "bot", "one", "--wait")
        player.join()

        assert result.exit_code == 1
        assert "verification of MemorySnapshot agents/one" in result.output
        assert "was taken but not verified (SampleDiffers): 3 points differ" in result.output

    @pytest.mark.parametrize(
        ("agent", "status", "message"),
        [("other", "True", "is of bot, not of other"), ("bot", "False", "was not taken: see its conditions")],
    )
    def test_unverifiable_snapshot_is_reported(self, folder: JobFolder, agent: str, status: str, message: str) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")
        folder.report(KIND, "one", conditions=[condition("Succeeded", status)])

        result = folder.run("snapshot", "verify", agent, "one")

        assert result.exit_code == 1
        assert message in result.output
