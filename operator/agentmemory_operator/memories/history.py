"""Read the versions of a memory: its chain, oldest first.

The chains of all predecessors of a merged version precede it.

A chain is read link by link while writers change it. A cleanup may remove a version in between and link its neighbours,
or a new head may be added. If a link points to a removed version, or to a version that does not link back, the whole
chain is read again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import TransientError
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.links import predecessors, successors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, MemoryRecord, Payload, record_of
from agentmemory_operator.memories.stored_memories import read_own_row

MAX_VERSIONS = 2_000
# Maximum number of times that a chain is read. It is read again if a link is broken, usually by a concurrent writer.
MAX_READINGS = 5

_Row = Mapping[str, Any]
_Links = Callable[[_Row], Sequence[str]]


@dataclass(frozen=True, slots=True)
class History:
    """Versions of a memory.

    Attributes:
        records: Versions, oldest first, without expired ones.
        is_truncated: True if the chain has more than 2,000 versions.
    """

    records: tuple[MemoryRecord, ...]
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Walk:
    """Rows found by following links.

    Attributes:
        rows: In the order of reading in the result of `_walk`, one branch after the other. Oldest first in that of
            `_read_chain`.
        has_more: True if rows were left out because `room` was reached.
        is_broken: True if a linked row does not exist, is a removed version, or does not link back.
        is_contended: True if a linked row is a removed version or does not link back. Versions behind it may be
            missing.
    """

    rows: list[Payload]
    has_more: bool = False
    is_broken: bool = False
    is_contended: bool = False


async def read_history(agent: Agent, memory_id: str, *, user_id: str) -> History:
    """Read the chain of a memory, at most 2,000 versions, without expired versions.

    If each of 5 readings meets a broken link, usually because of concurrent writers, return the versions read last.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
    """
    read = partial(read_own_row, agent, memory_id, user_id=user_id)
    chain = await _read_chain(agent, await read(), read, MAX_VERSIONS)
    types, now_ms = agent.settings.ranking.endings, agent.clock.now_ms()
    visible_rows = [version for version in chain.rows if not is_expired(version, types, now_ms)]
    return History(tuple(map(record_of, visible_rows)), is_truncated=chain.has_more)


async def read_version_ids(
    agent: Agent, row: _Row, *, max_versions: int = MAX_VERSIONS, busy: TransientError | None = None
) -> list[str]:
    """Return the ids of a memory's versions, oldest first, expired ones included.

    Args:
        max_versions: Maximum number of ids; further versions are left out.
        busy: Raised if in the last of 5 readings a linked row is a removed version or does not link back. None returns
            the versions read last.
    """
    chain = await _read_chain(agent, row, partial(chains.read_completed, agent, row["id"]), max_versions)
    if chain.is_contended and busy is not None:
        raise busy
    return [version["id"] for version in chain.rows]


async def _read_chain(
    agent: Agent, row: _Row, read: Callable[[], Awaitable[Payload | None]], max_versions: int
) -> _Walk:
    """Read the versions of a row, oldest first. If a link is broken, read the row and its versions again."""
    for _ in range(MAX_READINGS):
        before = await _walk(agent, row, predecessors, successors, room=max_versions - 1)
        after = await _walk(agent, row, successors, predecessors, room=max_versions - 1 - len(before.rows))
        rows = [*reversed(before.rows), {**row}, *after.rows]
        is_broken, is_contended = before.is_broken or after.is_broken, before.is_contended or after.is_contended
        chain = _Walk(rows, before.has_more or after.has_more, is_broken, is_contended)
        if not is_broken:
            break
        row = await read() or row
    return chain


async def _walk(agent: Agent, row: _Row, links: _Links, back: _Links, *, room: int) -> _Walk:
    """Read rows by following links; for several links, one branch after the other. A broken link ends its branch.

    Args:
        links: Returns the links to follow.
        back: Returns the links of which one must point back.
        room: Maximum number of rows.
    """
    walk = _Walk(found := list[Payload]())
    pending = [(row["id"], link) for link in links(row)]
    while pending:
        from_id, next_id = pending.pop()
        if len(found) == room:
            return replace(walk, has_more=True)
        next_row = await chains.read_completed(agent, next_id)
        if next_row is None or from_id not in back(next_row):
            walk = replace(walk, is_broken=True, is_contended=walk.is_contended or next_row is not None)
        elif TOMBSTONE_KEY not in next_row:
            found.append(next_row)
            pending += [(next_id, link) for link in links(next_row)]
        elif next_row.get("identityId") != next_id:
            # Removed since its neighbour was read. The chain of an identity may start at the tombstone of its root.
            walk = replace(walk, is_broken=True, is_contended=True)
    return walk
