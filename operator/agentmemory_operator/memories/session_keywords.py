"""Keep the keyword texts of a session's memories consistent with their neighbours.

A keyword text includes the contents of the preceding memories in the session. So it becomes stale if one of them is
inserted late, superseded, deleted, or becomes a head again. Qdrant has no transaction over several points. A writer
that changes a memory therefore
1. sets `windowDue` on it, in the same request,
2. reads the memories around it,
3. rewrites stale texts, and repeats from 2 until none is stale (after `MAX_ROUNDS` rounds the sweep continues),
4. clears `windowDue`.

Invariant: of two concurrent writers, at least one sees the change of the other, because each reads after it writes. If
a writer crashes, the sweep finds its mark. A rewrite is a compare-and-set on `rev`, so it overwrites no concurrent
change.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.point_pages import conditional_upsert
from agentmemory_operator.memories.rules.filters import (
    IS_WORKING,
    NOT_DELETED,
    NOT_PENDING,
    UNSEALED,
    Filter,
    equals,
    point_filter,
)
from agentmemory_operator.memories.rules.keywords import (
    IS_DUE,
    KeywordText,
    build_keyword_text,
    find_stale_ids,
    group_by_session,
    includes_words_of,
    is_member,
    order_of,
    session_members_filter,
    session_sort_key,
)
from agentmemory_operator.memories.rules.record import (
    ORDER_KEY,
    TOMBSTONE_KEY,
    WINDOW_DUE_KEY,
    WINDOW_KEY,
    MemoryRecord,
    Payload,
    payload_of,
)
from agentmemory_operator.memories.zone_access import has_words
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import gather_bounded
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked

SWEEP_AFTER_MS = 10_000
PAGE = 100
# Maximum number of pages of memories to which one sweep of an agent adds session positions or keyword vectors.
PAGES_A_SWEEP = 100
# Maximum number of rounds. Two suffice unless another writer changes a neighbour in the meantime.
MAX_ROUNDS = 20
# Maximum number of concurrent reads. A batch may cover many sessions, and the server may be slow.
MAX_CONCURRENT_READS = 8
# Maximum number of memories read at one position of a session. Of more, Qdrant returns an arbitrary part.
MAX_SAME_TIME = 1000

_KEYS = (
    *("id", "userId", "sessionId", "content", "createdAt", "rev", "speaker", "role"),
    *("pending", "supersededById", ZONE_KEY, TOMBSTONE_KEY, ORDER_KEY, WINDOW_KEY, WINDOW_DUE_KEY),
)
_Row = Mapping[str, Any]
log = logging.getLogger(__name__)


async def build_words(agent: Agent, records: Sequence[MemoryRecord]) -> dict[str, KeywordText]:
    """Return the keyword texts of memories to be written, by id; empty if the agent has no keyword vectors.

    Memories in a zone without keyword vectors get no text. Texts of later memories in the batch omit the words of a
    superseded memory, and of a pending one, because its write may be rejected.
    """
    source = agent.keyword
    if source is None:
        return {}
    with_text = [(index, record) for index, record in enumerate(records) if has_words(agent, record.zone)]
    rows = [_row_of(record, index) for index, record in with_text]
    words = {row["id"]: build_keyword_text(row, (), source) for row in rows if ORDER_KEY not in row}
    sessions = list(group_by_session(rows).values())
    windows = await gather_bounded(
        (_before(agent, members[0], source.window) for members in sessions), concurrency=MAX_CONCURRENT_READS
    )
    for members, before in zip(sessions, windows, strict=True):
        for row in members:
            words[row["id"]] = build_keyword_text(row, before, source)
            if not (row.get("pending") or row.get("supersededById")):
                before.append(row)
    return words


async def update_stale_texts(agent: Agent, ids: Iterable[str | None]) -> None:
    """Rewrite the keyword texts that marked memories among `ids` made stale, then clear the marks.

    Does nothing without keyword vectors. An AgentMemoryError is only logged: the marks remain for the sweep.

    Args:
        ids: Ids of changed memories; None values are skipped.
    """
    changed = {memory_id for memory_id in ids if memory_id}
    if agent.keyword is None or not changed:
        return
    try:
        await _settle(agent, agent.keyword, changed)
    except AgentMemoryError as error:
        # Only log the error: the change itself is durable, and marked for the sweep.
        log.info("updating keyword texts of agent %s is postponed: %s", agent.settings.slug, error)


async def sweep(agent: Agent) -> int:
    """Update texts around marked memories that have not changed for 10 s, and add missing keyword vectors.

    Returns:
        Number of marked memories found (at most 100 per call), plus that of memories found without a keyword vector.
        0 if the agent has no keyword vectors.
    """
    if agent.keyword is None:
        return 0
    stale = {"key": "updatedAt", "range": {"lt": agent.clock.now_ms() - SWEEP_AFTER_MS}}
    due_ids = [row["id"] for row in await _scroll(agent, {"must": [IS_DUE, stale]}, limit=PAGE)]
    if due_ids:
        await _settle(agent, agent.keyword, set(due_ids))
    return len(due_ids) + await _fill(agent, agent.keyword)


async def _settle(agent: Agent, source: KeywordSource, changed: set[str]) -> None:
    for _ in range(MAX_ROUNDS):
        rows = [row for row in await _rows(agent, changed) if row.get(WINDOW_DUE_KEY)]
        stale = await _stale_around(agent, rows, source)
        if not stale:
            await _unmark(agent, rows)
            return
        await rewrite_texts(agent, stale)
        changed = changed | stale


async def rewrite_texts(agent: Agent, ids: set[str]) -> None:
    """Recompute the keyword texts and vectors of memories, each by compare-and-set.

    Does nothing without keyword vectors. Skips deleted and locked memories, and zones without keyword vectors.
    """
    if (source := agent.keyword) is None:
        return
    existing = {"must": [{"has_id": sorted(ids)}, NOT_DELETED]}
    points, _ = await agent.store.scroll(
        agent.alias, {"filter": existing, "limit": len(ids), "with_payload": True, "with_vector": True}
    )
    eligible = [point for point in points if _has_text(agent, point["payload"])]
    operations = await gather_bounded(
        (_rewriting(agent, source, point) for point in eligible), concurrency=MAX_CONCURRENT_READS
    )
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)


async def _rewriting(agent: Agent, source: KeywordSource, point: Json) -> Json:
    row: Payload = point["payload"]
    before = await _before(agent, row, source.window) if ORDER_KEY in row else []
    dense = point["vector"].get("", {}) if isinstance(point["vector"], dict) else point["vector"]
    payload = row | {"rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
    changed = build_keyword_text(row, before, source).add_to_point(
        {"id": row["id"], "vector": dense, "payload": payload}, source
    )
    unchanged = point_filter(row["id"], equals("rev", row["rev"]), NOT_DELETED)
    return conditional_upsert(changed, unchanged)


async def _fill(agent: Agent, source: KeywordSource) -> int:
    """Add missing session positions and keyword vectors; return how many memories were found without a vector."""
    filled = 0
    # Exclude memories in a zone, for which `repair._sweep_vectors` adds the vectors that their zone allows.
    missing: Filter = {"must": [NOT_DELETED, NOT_PENDING, UNSEALED], "must_not": [{"has_vector": KEYWORD_VECTOR}]}
    unordered = {
        "must": [*missing["must"], {"is_empty": {"key": ORDER_KEY}}],
        "must_not": [*missing["must_not"], {"is_empty": {"key": "sessionId"}}, IS_WORKING],
    }
    for _ in range(PAGES_A_SWEEP):
        if rows := await _scroll(agent, unordered, limit=PAGE):
            operations = [
                {
                    "set_payload": {
                        "payload": {ORDER_KEY: order_of(row["createdAt"], 0)},
                        "filter": point_filter(row["id"], equals("rev", row["rev"])),
                    }
                }
                for row in rows
            ]
            await agent.store.batch(agent.alias, operations, strong=True)
            continue
        rows = await _scroll(agent, missing, limit=PAGE)
        if not rows:
            break
        ids = {row["id"] for row in rows}
        await rewrite_texts(agent, ids)
        await _settle(agent, source, ids)
        filled += len(rows)
    return filled


def _has_text(agent: Agent, row: _Row) -> bool:
    """Return whether a row may get a keyword text: no tombstone, not locked, and no zone without keyword vectors."""
    return TOMBSTONE_KEY not in row and not is_locked(row) and has_words(agent, row.get(ZONE_KEY))


def _row_of(record: MemoryRecord, index: int) -> Payload:
    """Return the payload of a record, with its session position if other keyword texts may include its words."""
    row = payload_of(record)
    # Give no position to a working memory, whose slot gets new contents, or to an encrypted memory: no other text may
    # include their words.
    is_excluded = record.session_id is None or record.is_working or record.zone is not None
    return row if is_excluded else row | {ORDER_KEY: order_of(record.created_at, index)}


async def _stale_around(agent: Agent, rows: Sequence[_Row], source: KeywordSource) -> set[str]:
    """Return the ids of memories with a stale text.

    This checks the rows, the memories after them, and up to 100 memories whose texts include the words of hidden rows.
    """
    stale: set[str] = set()
    sessions = group_by_session(row for row in rows if is_member(row)).values()
    spans = (_span(agent, members, source.window) for members in sessions)
    for near, neighbour_count in await gather_bounded(spans, concurrency=MAX_CONCURRENT_READS):
        stale |= find_stale_ids(near, source.window, neighbours=neighbour_count)
    hidden = [row for row in rows if not is_member(row)]
    if hidden:
        including = includes_words_of([row["id"] for row in hidden])
        stale |= {row["id"] for row in await _scroll(agent, {"must": [including, NOT_DELETED]}, limit=PAGE)}
    for row in hidden:
        if TOMBSTONE_KEY not in row and ORDER_KEY in row:
            before = await _before(agent, row, source.window)
            stale |= find_stale_ids([*before, row], source.window, neighbours=len(before))
    return stale


async def _before(agent: Agent, row: _Row, window: int) -> list[_Row]:
    """Return the last `window` members of a row's session before it, the nearest last."""
    found: list[_Row] = []
    bound = {"lte": row[ORDER_KEY]}
    while window:
        page = await _ordered(agent, _session_of(row, bound), "desc", limit=window + 2)
        found += page
        near = _nearest(found, row, window)
        if len(page) < window + 2 or (len(near) == window and near[0][ORDER_KEY] > page[-1][ORDER_KEY]):
            return near
        found += await _at_same_position(agent, page[-1])
        near = _nearest(found, row, window)
        if len(near) == window:
            return near
        bound = {"lt": page[-1][ORDER_KEY]}
    return []


def _session_of(row: _Row, order: Mapping[str, int]) -> Filter:
    return session_members_filter(row["userId"], row["sessionId"], {"key": ORDER_KEY, "range": order})


async def _at_same_position(agent: Agent, row: _Row) -> list[_Row]:
    """Return up to `MAX_SAME_TIME` session members at a row's position.

    A page that ends among them contains an arbitrary part of them, so the caller reads the rest here.
    """
    order = row[ORDER_KEY]
    return await _scroll(agent, _session_of(row, {"gte": order, "lte": order}), limit=MAX_SAME_TIME)


def _nearest(found: Iterable[_Row], row: _Row, window: int) -> list[_Row]:
    before = {member["id"]: member for member in found if session_sort_key(member) < session_sort_key(row)}
    return sorted(before.values(), key=session_sort_key)[-window:]


async def _span(agent: Agent, members: Sequence[_Row], window: int) -> tuple[list[_Row], int]:
    """Return the session members from `window` before `members` to `window` or more after, and how many are before."""
    last, limit = session_sort_key(members[-1]), len(members) + 2 * window + 2
    found: dict[str, _Row] = {}

    async def page_from(bound: Mapping[str, int]) -> list[_Row]:
        return await _ordered(agent, _session_of(members[0], bound), "asc", limit=limit)

    before, page = await asyncio.gather(_before(agent, members[0], window), page_from({"gte": members[0][ORDER_KEY]}))
    while True:
        found |= {row["id"]: row for row in page}
        if len(page) < limit:
            break
        found |= {row["id"]: row for row in await _at_same_position(agent, page[-1])}
        if sum(session_sort_key(row) > last for row in found.values()) >= window:
            break
        page = await page_from({"gt": page[-1][ORDER_KEY]})
    before_ids = {row["id"] for row in before}
    after = sorted(
        (row for row in found.values() if session_sort_key(row) >= session_sort_key(members[0])), key=session_sort_key
    )
    return [*before, *(row for row in after if row["id"] not in before_ids)], len(before)


async def _unmark(agent: Agent, rows: Sequence[_Row]) -> None:
    """Clear the marks of rows that are unchanged since they were read."""
    by_rev: dict[int, list[str]] = {}
    for row in rows:
        by_rev.setdefault(row["rev"], []).append(row["id"])
    operations = [
        {"set_payload": {"payload": {WINDOW_DUE_KEY: False}, "filter": {"must": [{"has_id": ids}, equals("rev", rev)]}}}
        for rev, ids in by_rev.items()
    ]
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)


async def _rows(agent: Agent, ids: set[str]) -> list[_Row]:
    points = await agent.store.retrieve(agent.alias, sorted(ids), keys=_KEYS)
    return [point["payload"] for point in points]


async def _ordered(agent: Agent, filter_: Filter, direction: str, *, limit: int) -> list[_Row]:
    return await _scroll(agent, filter_, limit=limit, order_by={"key": ORDER_KEY, "direction": direction})


async def _scroll(agent: Agent, filter_: Filter, *, limit: int, **options: object) -> list[_Row]:
    body = {"filter": filter_, "limit": limit, "with_payload": list(_KEYS), "with_vector": False, **options}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["payload"] for point in points]
