"""What the operator reports of the rebuild that runs, or of the last one. Pure: the clock is an argument."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep, recall_to_json
from agentmemory_operator.spec.kinds.rebuild import RebuildState, RebuildStatus, RecallStatus, is_under_way
from agentmemory_operator.spec.printable import printable_lines
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]


def rebuild_status(record: RebuildRecord, state: RebuildState, message: str, *, ended: str | None = None) -> Json:
    """A rebuild as people see it.

    Args:
        message: what it does or waits for; empty says nothing.
        ended: when it ended, RFC 3339 UTC.
    """
    status = RebuildStatus(
        kind=record.kind,
        state=state,
        step=record.step,
        digest=record.digest,
        source=record.source,
        target=record.target,
        copied=record.copied,
        total=record.total,
        embedding_calls=record.calls,
        recall=RecallStatus.model_validate(recall_to_json(record.recall)) if record.recall else None,
        start_time=render_time(record.begun_ms),
        move_time=render_time(record.moved_ms) if record.moved_ms is not None else None,
        end_time=ended,
        pause_ms=record.pause_ms,
        message=printable_lines(message) or None,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def is_moving(told: Mapping[str, Any]) -> bool:
    """Whether a status tells of a rebuild that is about to move the alias, or has moved it and has not ended."""
    return is_under_way(told) and told.get("step") in (
        RebuildStep.KEEP,
        RebuildStep.MOVE,
        RebuildStep.DRAIN,
        RebuildStep.SETTLE,
    )
