"""Describe statuses in words, and the commands that they call for, for the command line and the API. Pure.

Users with write access to statuses can write any value that fits the schema: nothing here proves anything. Commands
quote every value, and there is none for a value with characters that a terminal could interpret.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.rebuild_record import RebuildStep
from agentmemory_operator.controllers.rules.approval import find_pending_approval
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, CANCEL_REBUILD, ROLLBACK_REBUILD
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState, is_active

Json = Mapping[str, Any]

MAX_APPROVAL_CHARS = 128
# Reasons of InSync whose plan can be approved, and annotations that must be removed for it, in kubectl's syntax.
APPROVABLE_REASONS: Mapping[str, tuple[str, ...]] = {
    Reason.AWAITING_APPROVAL: (),
    Reason.REBUILD_CANCELLED: (f"{CANCEL_REBUILD}-",),
    Reason.ROLLED_BACK: (f"{ROLLBACK_REBUILD}-",),
}
# Prefixes of fields that can be reset to their values in effect.
REVERTIBLE_PREFIXES = ("embedding.", "index.")
# Steps to show. Keep is left out: it only occurs if the source collection has the name of its alias.
STEPS = tuple(step for step in RebuildStep if step not in (RebuildStep.KEEP, RebuildStep.DONE))
# Texts for the fields of `status.plan.costs`.
COSTS = {
    "points": "{} points",
    "embeddingCalls": "{} embedding calls",
    "tokens": "about {} tokens",
    "price": "{} at the given price",
    "minutes": "at least {} min",
    "diskMiB": "{} MiB of disk",
    "ramMiB": "{} MiB of RAM",
}
COSTS_OF_NODES = {
    "nodes": "on {} nodes",
    "diskPerNodeMiB": "{} MiB of disk on each",
    "ramPerNodeMiB": "{} MiB of RAM on each",
}
SAME_DISK = "same disk"
_SHARE = re.compile(r"(\d{1,18}) of (\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stage:
    """Progress of a snapshot or restore.

    Attributes:
        text: Description for users; empty if there is none.
        done: Number of completed steps, bytes or points.
        total: Total number of them; 0 if unknown.
    """

    text: str
    done: int = 0
    total: int = 0


def summarise_agent(document: Json) -> tuple[str, str]:
    """Summarise an AgentMemory in a few words, with a mood for them: good, busy or bad."""
    status = document.get("status") or {}
    ready, in_sync = find_condition(status, "Ready"), find_condition(status, "InSync")
    if not status.get("conditions"):
        return "not reconciled yet", "busy"
    if document["metadata"].get("deletionTimestamp"):
        return f"being deleted ({ready.get('reason')})", "busy"
    if ready.get("status") != "True":
        return f"not ready ({ready.get('reason')})", "bad"
    if in_sync.get("status") != "True":
        return f"ready, not in sync ({in_sync.get('reason')})", "busy"
    return "ready", "good"


def held_changes(document: Json) -> list[Json]:
    """Return the changes of an AgentMemory's plan that are not applied yet."""
    plan = (document.get("status") or {}).get("plan") or {}
    return [change for change in plan.get("changes") or [] if change.get("held")]


def is_approvable(document: Json) -> bool:
    """Return whether an AgentMemory has held changes that an approval applies, or a rebuild that waits for one."""
    status = document.get("status") or {}
    if (status.get("rebuild") or {}).get("state") == RebuildState.HELD:
        return True
    return bool(held_changes(document)) and find_condition(status, "InSync").get("reason", "") in APPROVABLE_REASONS


def approve_command(document: Json, kubectl: str) -> str | None:
    """Return the command that approves what an AgentMemory waits for; None if nothing can be approved.

    Args:
        kubectl: kubectl command with options for the object's cluster.
    """
    pending, metadata = find_pending_approval(document), document["metadata"]
    if pending is None or not is_approvable(document):
        return None
    if not pending.value.isprintable() or len(pending.value) > MAX_APPROVAL_CHARS:
        return None
    reason = find_condition(document.get("status"), "InSync").get("reason", "")
    approval = shlex.quote(f"{APPROVE_PLAN}={pending.value}")
    arguments = f"-n {metadata['namespace']} annotate amem {metadata['name']} --overwrite {approval}"
    return " ".join((kubectl, arguments, *APPROVABLE_REASONS.get(reason, ())))


def undo_command(document: Json, kubectl: str) -> str | None:
    """Return the command that resets the fields of held changes to their values in effect; None if there is none."""
    spec: dict[str, Any] = {}
    for change in held_changes(document):
        path = change.get("field") or ""
        if not path.startswith(REVERTIBLE_PREFIXES):
            continue
        *parents, leaf = path.split(".")
        parent_object: Any = spec
        for parent in parents:
            parent_object = parent_object.setdefault(parent, {})
            if not isinstance(parent_object, dict):
                # No operator writes a field and a part of it.
                return None
        parent_object[leaf] = _typed(change.get("from"))
    if not spec:
        return None
    metadata, patch = document["metadata"], shlex.quote(json.dumps({"spec": spec}))
    return f"{kubectl} -n {metadata['namespace']} patch amem {metadata['name']} --type=merge -p {patch}"


def _typed(text: str | None) -> Any:
    """Convert text of a status to a manifest value: digits to an int, `None` to None, other text unchanged."""
    if text is None or text == "None":
        return None
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else text


def describe_costs(costs: Json) -> str:
    """Describe the costs of a plan, separated by commas; empty if it has none."""
    templates = COSTS | (COSTS_OF_NODES if (costs.get("nodes") or 1) > 1 else {})
    return ", ".join(text.format(costs[name]) for name, text in templates.items() if costs.get(name) is not None)


def headline(status: Json) -> str:
    """Describe the state of a rebuild in a few words: its step while it is active, else how it ended."""
    if not is_active(status):
        return str(status.get("state", "")).lower()
    step = status.get("step")
    if step is None:
        return str(status["state"]).lower()
    text = f"step {STEPS.index(RebuildStep(step)) + 1} of {len(STEPS)}, {step}" if step in STEPS else f"step {step}"
    return text if status["state"] == RebuildState.RUNNING else f"{status['state'].lower()} in {text}"


def read_stage(document: Json) -> Stage:
    """Read the progress of a job from `status.progress`, with numbers if the text contains `N of M`."""
    text = str((document.get("status") or {}).get("progress") or "")
    if match := _SHARE.search(text):
        return Stage(text, int(match[1]), int(match[2]))
    return Stage(text)


def start_time(document: Json) -> str:
    """Return the time at which a snapshot was started, or before that the creation time of its object, or ''."""
    started = (document.get("status") or {}).get("startTime")
    return str(started or document["metadata"].get("creationTimestamp") or "")


def describe_proof(document: Json) -> str:
    """Describe in a few words whether a snapshot is verified: yes, not finished, failed, not known, or no and why."""
    status = document.get("status") or {}
    succeeded, verified = find_condition(status, "Succeeded"), find_condition(status, "Verified")
    if succeeded.get("status", "Unknown") == "Unknown":
        return f"not finished: {status.get('progress') or 'waits for the operator'}"
    if succeeded["status"] == "False":
        return f"failed: {succeeded['reason']}"
    if verified.get("status", "Unknown") == "Unknown":
        return f"not known: {verified['reason']}" if verified else "not known"
    return "yes" if verified["status"] == "True" else f"no: {verified['reason']}"


def describe_locations(status: Json) -> str:
    """Describe where a snapshot's files are; '-' if no location is recorded.

    `SAME_DISK` means that the only copy is on the disk of the agent's own server.
    """
    locations = status.get("locations") or []
    buckets = [f"s3://{item.get('bucket', '?')}" for item in locations if item.get("type") == "S3"]
    on_server = ["Qdrant's S3" if "keptIn" in item else "Qdrant" for item in locations if item.get("type") == "Qdrant"]
    if on_server == ["Qdrant"] and not buckets:
        return SAME_DISK
    return " + ".join([*on_server, *buckets]) or "-"
