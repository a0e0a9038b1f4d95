"""The demo's last part: a snapshot, the loss of everything, a restore. Each is a manifest or one call to Qdrant."""

import shutil
import time
from pathlib import Path
from typing import Any

from demo_stack import AGENT, ALIAS, expect, wait_for
from demo_story import Story, all_answers, all_memories, ask, different
from demo_tables import details, say, say_in_detail, show_manifest

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
LIMIT_S = 60.0


def take_snapshot(story: Story) -> None:
    """Apply a MemorySnapshot; note what the agent knows, and wait until it is made and proven."""
    story.known, story.answered = all_memories(story), all_answers(story)
    status = apply(story, "snapshot.yaml", kind="MemorySnapshot", name="before-upgrade")
    size, sha256 = f"{status['sizeBytes'] / 1e6:.1f} MB", status["sha256"]
    say(f"\nA MemorySnapshot was taken, {size}. It was restored beside the agent, compared, and is good.")
    say_in_detail(f"SHA-256 {sha256[:12]}…; the findings:")
    for finding in condition(status, "Verified")["message"].split("; "):
        say_in_detail(f"  {finding}")
    expect("condition Verified", expected="True", seen=condition(status, "Verified")["status"])
    expect("memories in the snapshot", expected=len(story.stored), seen=status["points"]["after"])


def lose_everything(story: Story) -> None:
    """Delete the collection behind the operator's back, as a mistyped command does."""
    physical = story.qdrant.physical()
    story.qdrant.delete(str(physical))
    say_in_detail(f"DELETE {story.qdrant.http.base_url}/collections/{physical}")
    expect(f"where the alias {ALIAS} points", expected=None, seen=story.qdrant.physical())
    refused = story.api.refused(story.asked["questions"][0])
    say("Then the whole collection is deleted in Qdrant, as by a mistyped command: searches fail.")
    say_in_detail(f"POST /v1/agents/{AGENT}/search: {refused['status']} {refused['title']}")
    expect("status of a search", expected=503, seen=refused["status"])
    say_in_detail("The snapshot is a file of that Qdrant: it outlives the collection, not the disk. With storage in")
    say_in_detail("the manifest (snapshots/schedule.yaml) it is copied to S3 as well, and outlives both.")


def restore(story: Story) -> None:
    """Apply a MemoryRestore; every memory and every answer has to be as before."""
    begun = time.perf_counter()
    status = apply(story, "restore.yaml", kind="MemoryRestore", name="undo")
    for step in status["steps"]:
        say_in_detail(f"  {step['name']:9} {step.get('message', '')}".rstrip())
    say_in_detail(condition(status, "Succeeded")["message"])
    wait_for(story.api.is_ready, what=f"the API serves {AGENT} again", limit_s=LIMIT_S)
    question = story.asked["questions"][0]
    wait_for(lambda: ask(story, question)["results"], what="an answer", limit_s=LIMIT_S)
    story.numbers["from restore to the first answer"] = f"{time.perf_counter() - begun:.1f} s"
    expect("memories that the restore lost or changed", expected=[], seen=different(story.known, all_memories(story)))
    expect("questions with other answers", expected=[], seen=different(story.answered, all_answers(story)))
    say_in_detail(f"alias {ALIAS} -> {story.qdrant.physical()}")
    say(f"A MemoryRestore brought it back: all {len(story.known)} memories that have not expired read as")
    say(f"before, and {len(story.answered)} questions have the same answers.")


def apply(story: Story, manifest: str, *, kind: str, name: str) -> dict[str, Any]:
    """Put a manifest into the folder; return the object's status once it has succeeded."""
    show_manifest((SNAPSHOTS / manifest).read_text("utf-8"), to=details)
    begun = time.perf_counter()
    # Whole at once, as `mv` does.
    draft = story.stack.folder / manifest
    shutil.copy(SNAPSHOTS / manifest, draft)
    draft.replace(story.stack.manifests / manifest)

    def ended() -> dict[str, Any] | None:
        status = story.stack.status(kind, name)
        return status if condition(status, "Succeeded").get("status") in ("True", "False") else None

    status = wait_for(ended, what=f"{kind} {name} has ended", limit_s=LIMIT_S)
    took = f"{time.perf_counter() - begun:.1f} s"
    succeeded = condition(status, "Succeeded")
    expect(f"{kind} {name}", expected="True", seen=f"{succeeded['status']}", is_met=succeeded["status"] == "True")
    story.numbers[f"{kind} {name}"] = f"done in {took}"
    say_in_detail(f"\n{kind} {name}: done in {took}")
    return status


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition, an empty one where there is none."""
    return next((item for item in status.get("conditions") or [] if item["type"] == kind), {})
