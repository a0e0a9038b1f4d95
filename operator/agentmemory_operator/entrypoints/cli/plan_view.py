"""How `agentmemory plan` tells its previews: as JSON, as sections for people, as an exit status."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentmemory_operator.collections.rules.desired import connection_named
from agentmemory_operator.controllers.preview import PassPreview, PreviewOutcome, worst_of
from agentmemory_operator.controllers.rules.plan_text import plan_status
from agentmemory_operator.entrypoints.cli.status_view import PLAN_COLUMNS, change_rows
from agentmemory_operator.entrypoints.cli.tables import Section
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
    if preview.draft is None or not preview.draft.plan.changes:
        return document
    status = plan_status(preview.draft.plan, preview.draft.refusal)
    told = status.model_dump(mode="json", by_alias=True, exclude_none=True) if status else {}
    why = {"reason": preview.draft.refusal.reason} if preview.draft.refusal else {}
    return document | {"physical": preview.draft.plan.physical} | told | why


def plan_sections(previews: Sequence[PassPreview], against: str) -> list[Section]:
    """The plans for people; the last section counts them.

    Args:
        against: where the collections are that were looked at.
    """
    counted = Counter(preview.outcome for preview in previews)
    named = ", ".join(f"{counted[outcome]} {text}" for outcome, text in COUNTED.items() if counted[outcome])
    summary = f"Against {against}: {named or 'no AgentMemory'}. Nothing was changed."
    return [*map(_section, previews), Section(summary, MOODS[worst_of(previews)])]


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
        notes=(told["refusal"],) if "refusal" in told else (),
    )
