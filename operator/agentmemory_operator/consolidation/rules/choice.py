"""Which memories are consolidated, and in which batches. Pure.

A batch is of one user or shared scope: nothing of one ever meets another's in a model's material.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentmemory_operator.consolidation.rules.answer import BATCH
from agentmemory_operator.memories.rules.filters import (
    IS_WORKING,
    NOT_SUPERSEDED,
    STORED,
    UNSEALED,
    Filter,
    both,
    equals_any,
)
from agentmemory_operator.memories.rules.record import (
    CONSOLIDATED_KEY,
    ITEM_NAMESPACE_KEY,
)
from agentmemory_operator.zones.rules.sealing import SEALED_KEY

Row = Mapping[str, Any]

CANDIDATE_KEYS = ("id", "userId", "type", "createdAt")
"""What is read of a memory to choose batches; no text."""

MATERIAL_CHARS = 120_000
"""Of contents in one batch."""


def candidates(created_before_ms: int, types: Sequence[str]) -> Filter:
    """The filter of memories that no run has looked at yet.

    Left out is what has a zone, what is an item or a working memory, and what has an end of its own: a fact made of it
    would outlive it.

    Args:
        types: those that are looked at; none is all.
    """
    unseen = [{"is_empty": {"key": key}} for key in (CONSOLIDATED_KEY, SEALED_KEY, ITEM_NAMESPACE_KEY, "expiresAt")]
    old = {"key": "createdAt", "range": {"lte": created_before_ms}}
    filter_ = both(STORED, UNSEALED, NOT_SUPERSEDED, *unseen, old, *([equals_any("type", types)] if types else []))
    return filter_ | {"must_not": [IS_WORKING]}


def is_candidate(row: Row) -> bool:
    """Whether a memory, read later, still is one."""
    gone = ("deletedAt", "pending", "supersededById", "zone", "expiresAt", "working")
    seen = (CONSOLIDATED_KEY, SEALED_KEY, ITEM_NAMESPACE_KEY)
    return not any(row.get(key) for key in (*gone, *seen)) and bool(row.get("content"))


def batches(rows: Iterable[Row], *, least: int) -> Iterator[list[str]]:
    """Yield the ids of batches, each of one user, oldest memories first; users in the order of their oldest.

    Args:
        rows: with `CANDIDATE_KEYS`.
        least: fewer memories of a user are left for another time.
    """
    of_user: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_user[row["userId"]].append(row)
    for own in sorted((sorted(rows, key=_age) for rows in of_user.values()), key=lambda own: _age(own[0])):
        if len(own) >= least:
            yield from ([row["id"] for row in own[at : at + BATCH]] for at in range(0, len(own), BATCH))


def within(rows: Sequence[Row], most: int = MATERIAL_CHARS) -> list[Row]:
    """The first rows whose contents are no longer together than a model is shown; at least one."""
    kept: list[Row] = []
    for row in rows:
        most -= len(row["content"])
        if most < 0 and kept:
            break
        kept.append(row)
    return kept


def _age(row: Row) -> tuple[int, str]:
    return row["createdAt"], row["id"]
