"""Choose the memories to consolidate, and group them into batches. Pure.

A batch contains memories of one user or shared scope, so a model never sees memories of two users together.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentmemory_operator.consolidation.rules.model_findings import MAX_BATCH_MEMORIES
from agentmemory_operator.memories.rules.filters import (
    IS_WORKING,
    NOT_SUPERSEDED,
    STORED_FILTER,
    UNSEALED,
    Filter,
    equals_any,
    narrow,
)
from agentmemory_operator.memories.rules.record import CONSOLIDATED_KEY, ITEM_NAMESPACE_KEY
from agentmemory_operator.zones.rules.sealing import SEALED_KEY

Row = Mapping[str, Any]

CANDIDATE_KEYS = ("id", "userId", "type", "createdAt")
"""Payload keys read to choose batches. None of them contains text."""

MAX_MATERIAL_CHARS = 120_000
"""Maximum number of characters of the contents in one batch. A single longer memory is a batch of its own."""


def candidate_filter(created_before_ms: int, types: Sequence[str]) -> Filter:
    """Build the filter for memories that no run has read yet.

    The filter excludes superseded memories, memories of a privacy zone and items under keys. It also excludes working
    memories of a session and memories with an expiry time, because a fact made from such a memory would outlive it.

    Args:
        created_before_ms: Only memories created by then, Unix milliseconds.
        types: Only memories of these types. Empty for all.
    """
    fresh = [{"is_empty": {"key": key}} for key in (CONSOLIDATED_KEY, SEALED_KEY, ITEM_NAMESPACE_KEY, "expiresAt")]
    age = {"key": "createdAt", "range": {"lte": created_before_ms}}
    base = narrow(STORED_FILTER, UNSEALED, NOT_SUPERSEDED, *fresh, age, *([equals_any("type", types)] if types else []))
    return base | {"must_not": [IS_WORKING]}


def is_candidate(row: Row) -> bool:
    """Return whether a memory, read in full before the model call, has content and nothing that excludes candidates.

    Its type and age are not checked again.
    """
    hidden_keys = ("deletedAt", "pending", "supersededById", "zone", "expiresAt", "working")
    read_keys = (CONSOLIDATED_KEY, SEALED_KEY, ITEM_NAMESPACE_KEY)
    return not any(row.get(key) for key in (*hidden_keys, *read_keys)) and bool(row.get("content"))


def split_batches(rows: Iterable[Row], *, min_memories: int) -> Iterator[list[str]]:
    """Yield batches of at most 50 ids of one user, oldest memories first. Users are ordered by their oldest memory.

    Args:
        rows: Rows with `CANDIDATE_KEYS`.
        min_memories: Minimum number of memories of a user; a user with fewer is skipped.
    """
    rows_by_user: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_by_user[row["userId"]].append(row)
    for user_rows in sorted(
        (sorted(rows, key=_age) for rows in rows_by_user.values()), key=lambda user_rows: _age(user_rows[0])
    ):
        if len(user_rows) >= min_memories:
            yield from (
                [row["id"] for row in user_rows[start : start + MAX_BATCH_MEMORIES]]
                for start in range(0, len(user_rows), MAX_BATCH_MEMORIES)
            )


def limit_rows(rows: Sequence[Row], max_chars: int = MAX_MATERIAL_CHARS) -> list[Row]:
    """Return the first rows with contents of at most `max_chars` characters in total, but at least one row."""
    selected: list[Row] = []
    for row in rows:
        max_chars -= len(row["content"])
        if max_chars < 0 and selected:
            break
        selected.append(row)
    return selected


def _age(row: Row) -> tuple[int, str]:
    return row["createdAt"], row["id"]
