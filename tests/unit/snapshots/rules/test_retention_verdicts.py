"""Reasons for keeping snapshots, from the objects that a command lists."""

from agentmemory_operator.snapshots.rules.retention_verdicts import judge_documents
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.job.schedule_world import ms, scheduled_agent, snapshot_document

NOW_MS = ms("2026-11-22T12:00:00Z")


def verdict_texts(**snapshots: object) -> dict[str, str]:
    found = judge_documents(
        parse_agent_memory(scheduled_agent(**snapshots)),
        [
            snapshot_document("c", begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"),
            snapshot_document("b", begun="2026-11-21T23:30:00Z", annotations={"agentmemory.dev/pin": "audit"}),
            snapshot_document("a", begun="2026-11-20T03:01:00Z", annotations={"agentmemory.dev/pin": "false"}),
            snapshot_document("made", begun="2026-11-01T03:01:00Z", is_scheduled=False),
            snapshot_document("old", begun="2026-10-01T03:01:00Z", version="1.17.4"),
        ],
        restores=[
            {
                "metadata": {"name": "undo"},
                "spec": {"source": {"snapshotRef": {"name": "made"}}},
                "status": {"conditions": [{"type": "Succeeded", "status": "Unknown"}]},
            }
        ],
        memories=[],
        running="1.18.3",
        now_ms=NOW_MS,
    )
    return {name: f"{'stays' if verdict.is_kept else 'goes'}: {verdict.text}" for name, verdict in found.items()}


def test_each_snapshot_has_its_reasons() -> None:
    rules = {"keepLast": 1, "daily": 1, "weekly": 0, "monthly": 0}

    assert verdict_texts(retention=rules, timeZone="Europe/Berlin") == {
        "c": "stays: the newest, the last verified snapshot that the server can restore, keepLast 1/1, daily "
        "2026-11-22",
        "b": "stays: pinned",
        "a": "goes: no rule keeps it",
        "made": "stays: in use by MemoryRestore undo, not taken by the schedule",
        "old": "goes: no rule keeps it",
    }


def test_missing_numbers_are_the_defaults() -> None:
    assert "keepLast 3/4, daily 2026-11-20" in verdict_texts()["a"]
