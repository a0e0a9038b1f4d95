"""The verbs of snapshots on a folder of manifests, whose other side a test plays."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentmemory_operator.entrypoints.cli import job_commands
from agentmemory_operator.entrypoints.cli.job_progress import read_outcome, read_stage
from agentmemory_operator.entrypoints.cli.snapshots import delete as snapshot_deletion
from agentmemory_operator.entrypoints.cli.snapshots.listing import describe_locations, describe_state
from agentmemory_operator.snapshots.rules.facts import RETENTION_LABEL, UNDER_RETENTION
from tests.support.job.job_folder import JobFolder, condition

KIND = "MemorySnapshot"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A folder with one agent."""
    monkeypatch.setattr(job_commands, "POLL_S", 0.02)
    return JobFolder(tmp_path)


class TestCreate:
    def test_it_writes_an_object_of_a_new_name_and_says_how_to_see_it(self, folder: JobFolder) -> None:
        done = folder.run("snapshot", "create", "bot")

        assert done.exit_code == 0, done.output
        made = folder.read_written(KIND)
        assert made["metadata"]["name"].startswith("bot-20")
        assert made["spec"] == {"agentMemoryRef": {"name": "bot"}}
        assert f"created MemorySnapshot agents/{made['metadata']['name']}" in done.output
        assert f"agentmemory snapshot list bot --manifests {folder.path}" in done.output

    def test_its_options_become_the_object(self, folder: JobFolder) -> None:
        folder.run("snapshot", "create", "bot", "--name", "before-upgrade", "--verify", "Checksum")

        made = folder.read_written(KIND)
        assert made["metadata"]["name"] == "before-upgrade"
        assert made["spec"]["verify"] == "Checksum"

    def test_an_agent_that_does_not_exist_is_named_and_nothing_is_created(self, folder: JobFolder) -> None:
        done = folder.run("snapshot", "create", "nobody")

        assert done.exit_code == 1
        assert "there is no AgentMemory agents/nobody" in done.output
        assert not list(folder.path.glob("*.memorysnapshot.yaml"))

    def test_a_name_that_is_taken_is_refused(self, folder: JobFolder) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")

        done = folder.run("snapshot", "create", "bot", "--name", "one")

        assert done.exit_code == 1
        assert "MemorySnapshot agents/one exists already: choose another --name" in done.output

    @pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
    def test_programs_get_the_object_alone(self, folder: JobFolder, output: str, load: Any) -> None:
        done = folder.run("snapshot", "create", "bot", "--name", "one", "-o", output)

        made = load(done.stdout)
        assert (made["kind"], made["metadata"]["name"]) == (KIND, "one")
        assert made["spec"] == {"agentMemoryRef": {"name": "bot"}}
        assert "created MemorySnapshot agents/one" in done.stderr

    def test_waiting_tells_each_step_and_the_end(self, folder: JobFolder) -> None:
        good = [condition("Succeeded", "True", "SnapshotTaken", "12 bytes"), condition("Verified", "True")]
        with folder.report_statuses(
            KIND,
            {"progress": "Qdrant is taking the snapshot", "conditions": [condition("Progressing", "True")]},
            {"progress": "verified: 3 of 4", "conditions": [condition("Progressing", "True")]},
            {"conditions": good},
        ):
            done = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")

        assert done.exit_code == 0, done.output
        assert "  Qdrant is taking the snapshot\n  verified: 3 of 4\n" in done.output
        assert done.output.endswith("MemorySnapshot agents/one has succeeded (SnapshotTaken): 12 bytes\n")

    def test_waiting_for_what_fails_ends_with_the_reason(self, folder: JobFolder) -> None:
        with folder.report_statuses(KIND, {"conditions": [condition("Succeeded", "False", "DiskFull", "free some")]}):
            done = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")

        assert done.exit_code == 1
        assert "agentmemory: MemorySnapshot agents/one failed (DiskFull): free some" in done.output

    def test_an_object_that_is_deleted_meanwhile_ends_the_waiting(self, folder: JobFolder) -> None:
        def delete() -> None:
            while not list(folder.path.glob("*.memorysnapshot.yaml")):
                time.sleep(0.01)
            (folder.path / "agents.one.memorysnapshot.yaml").unlink()

        player = threading.Thread(target=delete)
        player.start()
        done = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")
        player.join()

        assert done.exit_code == 1
        assert "MemorySnapshot agents/one was deleted before it finished" in done.output

    def test_ctrl_c_leaves_the_object_and_says_so(self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        async def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("agentmemory_operator.entrypoints.cli.job_commands.follow", interrupt)
        done = folder.run("snapshot", "create", "bot", "--name", "one", "--wait")

        assert done.exit_code == 130
        assert "the snapshot continues; `agentmemory snapshot list bot" in done.output
        assert folder.read_written(KIND)["metadata"]["name"] == "one"


def test_a_folder_and_a_context_exclude_each_other(folder: JobFolder) -> None:
    done = folder.run("snapshot", "list", "bot", "--context", "prod")

    assert done.exit_code == 2
    assert "omit --context" in " ".join(done.output.replace("│", "").split())


MADE = {
    "conditions": [condition("Succeeded", "True"), condition("Verified", "True")],
    "points": {"before": 7, "after": 7},
    "sizeBytes": 12_345_678,
    "qdrantVersion": "1.18.3",
    "locations": [{"type": "Qdrant", "physical": "p", "name": "f"}],
}


def make(folder: JobFolder, **begun: str) -> None:
    """Have snapshots that were made, by their names and when."""
    for name in begun:
        folder.run("snapshot", "create", "bot", "--name", name)
        folder.report(KIND, name, **MADE, startTime=begun[name])


class TestList:
    def test_it_is_a_line_a_snapshot_newest_first(self, folder: JobFolder) -> None:
        make(folder, old="2026-11-21T03:00:00Z", new="2026-11-22T03:00:00Z")

        heading, *lines = folder.run("snapshot", "list", "bot").output.splitlines()

        assert heading.split() == ["SNAPSHOT", "TIME", "POINTS", "SIZE", "VERIFIED", "WHERE", "QDRANT", "KEPT"]
        assert lines[0].split() == [
            *("new", "2026-11-22T03:00:00Z", "7", "12.3", "MB", "yes", "same", "disk", "1.18.3", "no", "rules")
        ]
        assert lines[1].split()[0] == "old"

    def test_programs_get_figures(self, folder: JobFolder) -> None:
        make(folder, one="2026-11-22T03:00:00Z")

        (one,) = json.loads(folder.run("snapshot", "list", "bot", "-o", "json").output)["snapshots"]
        also = yaml.safe_load(folder.run("snapshot", "list", "bot", "-o", "yaml").output)["snapshots"]

        assert (one["name"], one["points"], one["sizeBytes"], one["verified"]) == ("one", 7, 12_345_678, "True")
        assert also == [one]

    def test_it_is_said_why_each_is_kept_and_what_goes(self, folder: JobFolder) -> None:
        retention = {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}
        spec = {"connectionRef": {"name": "main"}, "snapshots": {"retention": retention}}
        folder.declare("AgentMemory", "bot", spec)
        folder.declare("QdrantConnection", "main", {"url": "http://qdrant:6333"})
        folder.report("QdrantConnection", "main", version="1.18.3")
        make(folder, old="2026-11-20T03:00:00Z", older="2026-11-19T03:00:00Z", new="2026-11-22T03:00:00Z")
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
        assert [one["kept"] for one in listed] == [True, False, True]
        assert listed[2]["reasons"] == ["not taken by the schedule"]

    def test_another_agent_s_are_left_out(self, folder: JobFolder) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")

        assert folder.run("snapshot", "list", "other").output.startswith("No snapshots found.")


@pytest.mark.parametrize(
    ("conditions", "told"),
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
def test_a_few_words_say_whether_it_is_proven(conditions: list[dict[str, Any]], told: str) -> None:
    progress = {"progress": "copying"} if conditions else {}

    assert describe_state({"status": {"conditions": conditions} | progress}) == told


@pytest.mark.parametrize(
    ("locations", "told"),
    [
        ([], "-"),
        ([{"type": "Qdrant"}], "same disk"),
        ([{"type": "Qdrant"}, {"type": "S3", "bucket": "backups"}], "Qdrant + s3://backups"),
        ([{"type": "S3", "bucket": "backups"}], "s3://backups"),
        ([{"type": "Qdrant", "keptIn": "ObjectStorage"}], "Qdrant's S3"),
    ],
)
def test_where_the_bytes_are(locations: list[dict[str, str]], told: str) -> None:
    assert describe_locations({"locations": locations}) == told


@pytest.mark.parametrize(
    ("conditions", "is_good"),
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
def test_it_has_ended_once_it_is_said_to_have_succeeded_or_failed(
    conditions: list[dict[str, Any]], is_good: bool | None
) -> None:
    outcome = read_outcome({"status": {"conditions": conditions}})

    assert (outcome and outcome.has_succeeded) is is_good


@pytest.mark.parametrize(
    ("progress", "share"), [("", (0, 0)), ("step 3 of 8: Verify", (3, 8)), ("copied 10 of 40 bytes", (10, 40))]
)
def test_a_share_of_the_whole_is_read_from_the_progress(progress: str, share: tuple[int, int]) -> None:
    stage = read_stage({"status": {"progress": progress}})

    assert (stage.text, stage.done, stage.total) == (progress, *share)


class TestDelete:
    def test_nothing_goes_without_a_yes(self, folder: JobFolder) -> None:
        make(folder, one="2026-11-22T03:00:00Z")

        done = folder.run("snapshot", "delete", "one")

        assert done.exit_code == 2
        assert "Delete MemorySnapshot agents/one and its bytes (same disk)?" in done.output
        assert "add --yes" in done.output
        assert folder.read_written(KIND)["metadata"].get("annotations") is None

    def test_an_object_that_no_operator_holds_is_not_deleted(
        self, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snapshot_deletion, "FINALIZER_TIMEOUT_S", 0.1)
        make(folder, one="2026-11-22T03:00:00Z")

        done = folder.run("snapshot", "delete", "one", "--yes")

        assert done.exit_code == 1
        assert "was not deleted: no operator acted on it" in done.output
        assert folder.read_written(KIND)["metadata"]["name"] == "one"


class TestVerify:
    def test_it_asks_for_a_verification_and_waits_for_the_answer_to_this_request(self, folder: JobFolder) -> None:
        make(folder, one="2026-11-22T03:00:00Z")

        def answer() -> None:
            while "annotations" not in folder.read_written(KIND)["metadata"]:
                time.sleep(0.01)
            request = folder.read_written(KIND)["metadata"]["annotations"]["agentmemory.dev/verify-requested-at"]
            bad = [condition("Succeeded", "True"), condition("Verified", "False", "SampleDiffers", "3 points differ")]
            folder.report(KIND, "one", **MADE | {"conditions": bad, "verifyRequest": request})

        player = threading.Thread(target=answer)
        player.start()
        done = folder.run("snapshot", "verify", "bot", "one", "--wait")
        player.join()

        assert done.exit_code == 1
        assert "verification of MemorySnapshot agents/one" in done.output
        assert "was taken but not verified (SampleDiffers): 3 points differ" in done.output

    @pytest.mark.parametrize(
        ("agent", "status", "said"),
        [("other", "True", "is of bot, not of other"), ("bot", "False", "was not taken: see its conditions")],
    )
    def test_what_cannot_be_verified_is_said(self, folder: JobFolder, agent: str, status: str, said: str) -> None:
        folder.run("snapshot", "create", "bot", "--name", "one")
        folder.report(KIND, "one", conditions=[condition("Succeeded", status)])

        done = folder.run("snapshot", "verify", agent, "one")

        assert done.exit_code == 1
        assert said in done.output
