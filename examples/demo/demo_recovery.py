"""Last scene of the demo: a snapshot, the loss of the collection, a restore; each a manifest or a call to Qdrant."""

import shutil
import time
from pathlib import Path
from typing import Any

from demo_stack import AGENT, ALIAS, expect, wait_for
from demo_story import Story, changed_keys, read_answer_ids, read_memories, search
from demo_tables import details, say, say_in_detail, show_manifest

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
LIMIT_S = 60.0


def take_snapshot(story: Story) -> None:
    """Record all memories and answers, apply a MemorySnapshot, and check that it is verified."""
    story.snapshot_memories, story.snapshot_answers = read_memories(story), read_answer_ids(story)
    status = apply(story, "snapshot.yaml", kind="MemorySnapshot", name="before-upgrade")
    size, sha256 = f"{status['sizeBytes'] / 1e6:.1f} MB", status["sha256"]
    say(f"\nA MemorySnapshot was taken, {size}. It was restored beside the agent, compared, and is good.")
    say_in_detail(f"SHA-256 {sha256[:12]}…; the findings:")
    for finding in condition(status, "Verified")["message"].split("; "):
        say_in_detail(f"  {finding}")
    expect("condition Verified", expected="True", seen=condition(status, "Verified")["status"])
    expect("memories in the snapshot", expected=len(story.stored), seen=status["points"]["after"])


def lose_everything(story: Story) -> None:
    """Delete the collection in Qdrant, as a mistyped command does, and check that searches fail."""
    physical = story.qdrant.physical()
    story.qdrant.delete(str(physical))
    say_in_detail(f"DELETE {story.qdrant.http.base_url}/collections/{physical}")
    expect(f"where the alias {ALIAS} points", expected=None, seen=story.qdrant.physical())
    problem = story.api.search_problem(story.script["questions"][0])
    say("Then the whole collection is deleted in Qdrant, as by a mistyped command: searches fail.")
    say_in_detail(f"POST /v1/agents/{AGENT}/search: {problem['status']} {problem['title']}")
    expect("status of a search", expected=503, seen=problem["status"])
    say_in_detail("The snapshot is a file of that Qdrant: it outlives the collection, not the disk. With storage in")
    say_in_detail("the manifest (snapshots/schedule.yaml) it is copied to S3 as well, and outlives both.")


def restore(story: Story) -> None:
    """Apply a MemoryRestore; check that all memories and answers are as before."""
    started = time.perf_counter()
    status = apply(story, "restore.yaml", kind="MemoryRestore", name="undo")
    for step in status["steps"]:
        say_in_detail(f"  {step['name']:9} {step.get('message', '')}".rstrip())
    say_in_detail(condition(status, "Succeeded")["message"])
    wait_for(story.api.is_ready, description=f"the API serves {AGENT} again", limit_s=LIMIT_S)
    question = story.script["questions"][0]
    wait_for(lambda: search(story, question)["results"], description="an answer", limit_s=LIMIT_S)
    story.numbers["from restore to the first answer"] = f"{time.perf_counter() - started:.1f} s"
    expect(
        "memories that the restore lost or changed",
        expected=[],
        seen=changed_keys(story.snapshot_memories, read_memories(story)),
    )
    expect(
        "questions with other answers", expected=[], seen=changed_keys(story.snapshot_answers, read_answer_ids(story))
    )
    say_in_detail(f"alias {ALIAS} -> {story.qdrant.physical()}")
    say(f"A MemoryRestore brought it back: all {len(story.snapshot_memories)} memories that have not expired read as")
    say(f"before, and {len(story.snapshot_answers)} questions have the same answers.")


def apply(story: Story, manifest: str, *, kind: str, name: str) -> dict[str, Any]:
    """Copy a manifest into the watched folder; return the status of the object after it has succeeded."""
    show_manifest((SNAPSHOTS / manifest).read_text("utf-8"), to=details)
    started = time.perf_counter()
    # The rename is atomic: the stack reads no incomplete manifest.
    draft = story.stack.folder / manifest
    shutil.copy(SNAPSHOTS / manifest, draft)
    draft.replace(story.stack.manifests / manifest)

    def read_end() -> dict[str, Any] | None:
        status = story.stack.status(kind, name)
        return status if condition(status, "Succeeded").get("status") in ("True", "False") else None

    status = wait_for(read_end, description=f"{kind} {name} has ended", limit_s=LIMIT_S)
    took = f"{time.perf_counter() - started:.1f} s"
    succeeded = condition(status, "Succeeded")
    expect(f"{kind} {name}", expected="True", seen=f"{succeeded['status']}", is_met=succeeded["status"] == "True")
    story.numbers[f"{kind} {name}"] = f"done in {took}"
    say_in_detail(f"\n{kind} {name}: done in {took}")
    return status


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition, or {} if there is none."""
    return next((item for item in status.get("conditions") or [] if item["type"] == kind), {})
