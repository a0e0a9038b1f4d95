"""How `agentmemory plan` tells its previews: as JSON, as sections for people, as an exit status."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from agentmemory_operator.collections.rules.changes import CreateCollection
from agentmemory_operator.collections.rules.desired import connection_named, desired_collection
from agentmemory_operator.collections.rules.estimate import MIB, Estimate, estimates, layout_of
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.controllers.inspection import PassPreview, PreviewOutcome, worst_of
from agentmemory_operator.controllers.rules.plan_text import (
    compression_text,
    layout_text,
    payload_text,
    plan_status,
)
from agentmemory_operator.entrypoints.cli.look.status_view import PLAN_COLUMNS, change_rows
from agentmemory_operator.entrypoints.cli.tables import Section
from agentmemory_operator.spec.effective.settings import effective_tuning
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of

EXIT_STATUS = {
    PreviewOutcome.UNCHANGED: 0,
    PreviewOutcome.SUSPENDED: 0,
    PreviewOutcome.CHANGES: 2,
    PreviewOutcome.HELD: 3,
    PreviewOutcome.REFUSED: 3,
}
MOODS = {
    PreviewOutcome.UNCHANGED: "good",
    PreviewOutcome.SUSPENDED: "quiet",
    PreviewOutcome.CHANGES: "busy",
    PreviewOutcome.HELD: "bad",
    PreviewOutcome.REFUSED: "bad",
}
COUNTED = {
    PreviewOutcome.UNCHANGED: "as asked",
    PreviewOutcome.SUSPENDED: "suspended",
    PreviewOutcome.CHANGES: "to change",
    PreviewOutcome.HELD: "held",
    PreviewOutcome.REFUSED: "refused",
}

# How many agents the heading of a table of sizes names.
SIZES_NAMED = 3


def exit_status(previews: Sequence[PassPreview]) -> int:
    """0 where nothing is to do, 2 for changes, 3 where something is held or refused."""
    return EXIT_STATUS[worst_of(previews)]


def plan_document(previews: Sequence[PassPreview], qdrant: str | None) -> dict[str, Any]:
    """The plans as JSON.

    Args:
        qdrant: the URL of the one server that was asked; None for an empty one, or for those of connections.
    """
    return {
        "qdrant": qdrant,
        "outcome": str(worst_of(previews)),
        "plans": [_document(preview) for preview in previews],
    }


def _document(preview: PassPreview) -> dict[str, Any]:
    memory = preview.memory
    document: dict[str, Any] = {
        "namespace": memory.metadata.namespace,
        "name": memory.metadata.name,
        "connection": connection_named(memory),
        "alias": alias_of(memory.slug),
        "outcome": str(preview.outcome),
        "changes": [],
    }
    if preview.refused:
        reason, message = preview.refused
        return document | {"reason": reason, "refusal": message}
    if preview.draft is None:
        return document
    document["estimate"] = _sizes(preview)
    if not preview.draft.plan.changes:
        return document
    status = plan_status(preview.draft.plan, preview.draft.refusal)
    told = status.model_dump(mode="json", by_alias=True, exclude_none=True) if status else {}
    why = {"reason": preview.draft.refusal.reason} if preview.draft.refusal else {}
    return (
        document
        | {"physical": preview.draft.plan.physical}
        | told
        | why
        | {"notes": notes_of(memory, is_new=_makes_collection(preview.draft.plan))}
    )


def notes_of(memory: AgentMemory, *, is_new: bool) -> list[str]:
    """The costs and savings of RAM of the layout that an object requests, at the size that it is made for.

    Args:
        is_new: The plan makes the collection, so its figures are among the notes.
    """
    desired = desired_collection(memory, cluster_id="")
    layout = layout_of(desired)
    made = layout_text(desired) if is_new else None
    texts = (made, compression_text(layout, effective_tuning(memory).expected_memories), payload_text(layout))
    return [text for text in texts if text]


def _makes_collection(plan: Plan) -> bool:
    return any(isinstance(change, CreateCollection) for change in plan.changes)


def plan_sections(previews: Sequence[PassPreview], against: str) -> list[Section]:
    """The plans for people; the last section counts them.

    Args:
        against: where the collections are that were looked at.
    """
    counted = Counter(preview.outcome for preview in previews)
    named = ", ".join(f"{counted[outcome]} {text}" for outcome, text in COUNTED.items() if counted[outcome])
    summary = f"Against {against}: {named or 'no AgentMemory'}. Nothing was changed."
    return [*map(_section, previews), *_size_sections(previews), Section(summary, MOODS[worst_of(previews)])]


def _section(preview: PassPreview) -> Section:
    told = _document(preview)
    named = f"AgentMemory {told['namespace']}/{told['name']}, collection {told.get('physical', told['alias'])}"
    digest = f", digest {told['digest']}" if "digest" in told else ""
    rows = change_rows(told["changes"])
    return Section(
        f"{named}: {preview.outcome}{digest}",
        MOODS[preview.outcome],
        PLAN_COLUMNS if rows else (),
        rows,
        notes=(*((told["refusal"],) if "refusal" in told else ()), *told.get("notes", ())),
    )


def _sizes(preview: PassPreview) -> list[dict[str, Any]]:
    """What one copy of the collection will need, and what it would under each profile."""
    wish = preview.draft.wish if preview.draft else None
    if wish is None:
        return []
    rows = estimates(wish, effective_tuning(preview.memory).expected_memories)
    return [{"profile": profile, "sizes": [_size(*one) for one in sizes.items()]} for profile, sizes in rows.items()]


def _size(memories: int, size: Estimate) -> dict[str, int]:
    return {"memories": memories, "ramMiB": math.ceil(size.ram / MIB), "diskMiB": math.ceil(size.disk / MIB)}


def _size_sections(previews: Sequence[PassPreview]) -> Iterator[Section]:
    """Yield a table for each size; agents of one preset and profile share theirs."""
    named: dict[str, list[str]] = {}
    for preview in previews:
        memory = preview.memory.metadata
        named.setdefault(json.dumps(_sizes(preview)), []).append(f"{memory.namespace}/{memory.name}")
    for text, names in named.items():
        rows = json.loads(text)
        if not rows:
            continue
        told = ", ".join(names[:SIZES_NAMED]) + (f" and {len(names) - SIZES_NAMED} more" if names[SIZES_NAMED:] else "")
        columns = ("PROFILE", *(f"{size['memories']:,} MEMORIES" for size in rows[0]["sizes"]))
        yield Section(f"Size of one copy, estimated: {told}", "", columns, tuple(map(_size_row, rows)))


def _size_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["profile"], *(f"RAM {size['ramMiB']} MiB, disk {size['diskMiB']} MiB" for size in row["sizes"]))
