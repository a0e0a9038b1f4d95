"""The versions of a memory: its chain, from the oldest to the head; before a merged one, the chains of all it was.

A chain is read link by link while others write. What is between two versions may go meanwhile (cleanup joins the
neighbours of what it takes out), and a head may be replaced: where a link leads to nothing that links back, the chain
is read again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.links import predecessors, successors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, MemoryRecord, Payload, record_of
from agentmemory_operator.memories.stored import own_row

MOST_VERSIONS = 2_000
# Each reading that is broken means that another writer changed the chain meanwhile.
MAX_READINGS = 5

_Row = Mapping[str, Any]
_Links = Callable[[_Row], Sequence[str]]


@dataclass(frozen=True, slots=True)
class History:
    """Versions, oldest first; truncated: there are more than are read at once, before or after these."""

    records: tuple[MemoryRecord, ...]
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Walk:
    """Rows, nearest first; broken: the last one's link leads to nothing that links back."""

    rows: list[Payload]
    has_more: bool = False
    is_broken: bool = False


async def read_history(agent: Agent, memory_id: str, *, user_id: str) -> History:
    """The chain that a memory belongs to, without what has expired; at most 2,000 versions.

    Raises:
        NotFound: unknown, another user's, expired or deleted.
    """
    for _ in range(MAX_READINGS):
        row = await own_row(agent, memory_id, user_id=user_id)
        before = await _walk(agent, row, predecessors, successors, room=MOST_VERSIONS - 1)
        after = await _walk(agent, row, successors, predecessors, room=MOST_VERSIONS - 1 - len(before.rows))
        if not (before.is_broken or after.is_broken):
            break
    rows = [*reversed(before.rows), row, *after.rows]
    types, now_ms = agent.settings.ranking.endings, agent.clock.now_ms()
    shown = [each for each in rows if not is_expired(each, types, now_ms)]
    return History(tuple(map(record_of, shown)), is_truncated=before.has_more or after.has_more)


async def version_ids(agent: Agent, row: _Row) -> list[str]:
    """The ids of the versions of a memory, oldest first, what has expired included; at most 2,000."""
    before = await _walk(agent, row, predecessors, successors, room=MOST_VERSIONS - 1)
    after = await _walk(agent, row, successors, predecessors, room=MOST_VERSIONS - 1 - len(before.rows))
    return [each["id"] for each in (*reversed(before.rows), row, *after.rows)]


async def _walk(agent: Agent, row: _Row, links: _Links, back: _Links, *, room: int) -> _Walk:
    """Read the rows that links lead to, one after the other, each with all that is behind it.

    Args:
        links: those that are followed.
        back: those of which one must lead back.
    """
    found: list[Payload] = []
    wanted = [(row["id"], link) for link in links(row)]
    while wanted:
        from_id, next_id = wanted.pop()
        if len(found) == room:
            return _Walk(found, has_more=True)
        following = await chains.settled_row(agent, next_id)
        if following is None or from_id not in back(following):
            return _Walk(found, is_broken=True)
        # A tombstone is where the chain of an identity begins, whether or not its first memory is still there.
        if TOMBSTONE_KEY not in following:
            found.append(following)
            wanted += [(next_id, link) for link in links(following)]
    return _Walk(found)
