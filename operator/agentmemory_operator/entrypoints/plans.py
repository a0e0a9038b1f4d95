"""How `agentmemory plan` tells its previews: as JSON, as sections for people, as an exit status."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.plan_reporting import plan_status
from agentmemory_operator.entrypoints.tables import Section
from agentmemory_operator.services.preview import Outcome, Preview, worst_of

EXIT_STATUS = {
    Outcome.UNCHANGED: 0,
    Outcome.SUSPENDED: 0,
    Outcome.CHANGES: 2,
    Outcome.HELD: 3,
    Outcome.REFUSED: 3,
}
MOODS = {
    Outcome.UNCHANGED: "good",
    Outcome.SUSPENDED: "quiet",
    Outcome.CHANGES: "busy",
    Outcome.HELD: "bad",
    Outcome.REFUSED: "bad",
}
COUNTED = {
    Outcome.UNCHANGED: "as asked",
    Outcome.SUSPENDED: "suspended",
    Outcome.CHANGES: "to change",
    Outcome.HELD: "held",
    Outcome.REFUSED: "refused",
}
COLUMNS = ("CLASS", "CHANGE", "COST", "HELD")


def exit_status(previews: Sequence[Preview]) -> int:
    """Return 0 where nothing is to do, 2 for changes, 3 where something is held or refused."""
    return EXIT_STATUS[worst_of(previews)]


def plan_document(previews: Sequence[Preview], qdrant: str | None) -> dict[str, Any]:
    """Return the plans as JSON.

    Args:
        qdrant: the server's URL, None for an empty one.
    """
    return {
        "qdrant": qdrant,
        "outcome": str(worst_of(previews)),
        "plans": [_document(preview) for preview in previews],
    }


def _document(preview: Preview) -> dict[str, Any]:
    memory = preview.memory
    document: dict[str, Any] = {
        "namespace": memory.metadata.namespace,
        "name": memory.metadata.name,
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


def plan_sections(previews: Sequence[Preview], qdrant: str | None) -> list[Section]:
    """Return the plans for people; the last section counts them."""
    counted = Counter(preview.outcome for preview in previews)
    named = ", ".join(f"{counted[outcome]} {text}" for outcome, text in COUNTED.items() if counted[outcome])
    against = f"the Qdrant at {qdrant}" if qdrant else "an empty Qdrant"
    summary = f"Against {against}: {named or 'no AgentMemory'}. Nothing was changed."
    return [*map(_section, previews), Section(summary, MOODS[worst_of(previews)])]


def _section(preview: Preview) -> Section:
    told = _document(preview)
    named = f"AgentMemory {told['namespace']}/{told['name']}, collection {told.get('physical', told['alias'])}"
    digest = f", digest {told['digest']}" if "digest" in told else ""
    rows = tuple(
        (entry["class"], entry["change"], entry["cost"], "yes" if entry["held"] else "no") for entry in told["changes"]
    )
    return Section(
        f"{named}: {preview.outcome}{digest}",
        MOODS[preview.outcome],
        COLUMNS if rows else (),
        rows,
        notes=(told["refusal"],) if "refusal" in told else (),
    )
