"""Read the versions of a memory: its chain, oldest first.

Before a merged version come the chains of all its predecessors.

A chain is read link by link while writers change it. A cleanup may remove a version in between and link its neighbours,
or a new head may be added. If a link points to a version that does not link back, the whole chain is read again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.links import predecessors, successors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, MemoryRecord, Payload, record_of
from agentmemory_operator.memories.stored_memories import read_own_row

MAX_VERSIONS = 2_000
# Usually, a further reading means that another writer changed the chain in the meantime.
MAX_READINGS = 5

_Row = Mapping[str, Any]
_Links = Callable[[_Row], Sequence[str]]


@dataclass(frozen=True, slots=True)
class History:
    """Versions, oldest first.

    Attributes:
        is_truncated: True if the chain has more than 2,000 versions.
    """

    records: tuple[MemoryRecord, ...]
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Walk:
    """Rows, nearest first. is_broken: True if the next version does not exist or does not link back."""

    rows: list[Payload]
    has_more: bool = False
    is_broken: bool = False


async def read_history(agent: Agent, memory_id: str, *, user_id: str) -> History:
    """Read the chain of a memory, at most 2,000 versions; expired ones are omitted.

    If concurrent changes break 5 readings in a row, return the versions read last.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
    """
    for _ in range(MAX_READINGS):
        row = await read_own_row(agent, memory_id, user_id=user_id)
        before = await _walk(agent, row, predecessors, successors, room=MAX_VERSIONS - 1)
        after = await _walk(agent, row, successors, predecessors, room=MAX_VERSIONS - 1 - len(before.rows))
        if not (before.is_broken or after.is_broken):
            break
    rows = [*reversed(before.rows), row, *after.rows]
    types, now_ms = agent.settings.ranking.endings, agent.clock.now_ms()
    visible_rows = [version for version in rows if not is_expired(version, types, now_ms)]
    return History(tuple(map(record_of, visible_rows)), is_truncated=before.has_more or after.has_more)


async def read_version_ids(agent: Agent, row: _Row) -> list[str]:
    """Return the ids of a memory's versions, oldest first, expired ones included; at most 2,000.

    Unlike in `read_history`, a concurrent change of the chain is not detected: versions behind it are missing.
    """
    before = await _walk(agent, row, predecessors, successors, room=MAX_VERSIONS - 1)
    after = await _walk(agent, row, successors, predecessors, room=MAX_VERSIONS - 1 - len(before.rows))
    return [version["id"] for version in (*reversed(before.rows), row, *after.rows)]


async def _walk(agent: Agent, row: _Row, links: _Links, back: _Links, *, room: int) -> _Walk:
    """Read rows by following links; for several links, each branch completely before the next.

    Args:
        links: Returns the links to follow.
        back: Returns the links of which one must point back.
        room: Maximum number of rows.
    """
    found: list[Payload] = []
    pending = [(row["id"], link) for link in links(row)]
    while pending:
        from_id, next_id = pending.pop()
        if len(found) == room:
            return _Walk(found, has_more=True)
        next_row = await chains.read_completed(agent, next_id)
        if next_row is None or from_id not in back(next_row):
            return _Walk(found, is_broken=True)
        # Omit tombstones: the chain of an identity may start at the tombstone of its root.
        if TOMBSTONE_KEY not in next_row:
            found.append(next_row)
            pending += [(next_id, link) for link in links(next_row)]
    return _Walk(found)
