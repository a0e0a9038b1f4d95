"""Keeps the keyword texts of a session's memories as their neighbours are.

A memory's keyword text holds the contents of the two before it in its session, so it changes when one of them comes
late, is superseded, deleted, or answers again. Nothing in the engine spans two points; so whoever changes a memory
leaves it marked (`windowDue`), looks at what stands around it, writes anew what is stale, looks again, and only then
takes the mark off. To look comes after to write for each of two writers, so one of them sees the other. A mark that a
crash left is found by the sweep. Rewriting is a compare-and-set on `rev`: no change of another writer is lost.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.point_pages import upsert_where
from agentmemory_operator.memories.rules.filters import (
    IS_WORKING,
    NOT_DELETED,
    NOT_PENDING,
    UNSEALED,
    Filter,
    equals,
    only,
)
from agentmemory_operator.memories.rules.keywords import (
    IS_DUE,
    Words,
    by_session,
    holders_of,
    is_member,
    members_of,
    order_of,
    position,
    stale_ids,
    words_of,
)
from agentmemory_operator.memories.rules.record import (
    DUE_KEY,
    ORDER_KEY,
    TOMBSTONE_KEY,
    WINDOW_KEY,
    MemoryRecord,
    Payload,
    payload_of,
)
from agentmemory_operator.memories.zoned import has_words
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import side_by_side
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked

SWEEP_AFTER_MS = 10_000
PAGE = 100
# Pages of memories without keyword vector that one sweep makes them for, so that other agents are swept too.
PAGES_A_SWEEP = 100
# Each round that finds something stale means that another writer came in between.
MAX_ROUNDS = 20
# Reads of one batch: it may be of many sessions, and the server far away.
AT_ONCE = 8
# More memories of one time in one session than this are put in some order.
MOST_OF_ONE_TIME = 1000

_KEYS = (
    *("id", "userId", "sessionId", "content", "createdAt", "rev", "speaker", "role"),
    *("pending", "supersededById", ZONE_KEY, TOMBSTONE_KEY, ORDER_KEY, WINDOW_KEY, DUE_KEY),
)
_Row = Mapping[str, Any]
log = logging.getLogger(__name__)


async def words(agent: Agent, records: Sequence[MemoryRecord]) -> dict[str, Words]:
    """The words of memories that are about to be written, by id; none where the agent has no keywords.

    A memory that supersedes another may yet be refused, so those after it do not count on it.
    """
    source = agent.keyword
    if source is None:
        return {}
    worded = [(place, record) for place, record in enumerate(records) if has_words(agent, record.zone)]
    rows = [_row_of(record, place) for place, record in worded]
    words = {row["id"]: words_of(row, (), source) for row in rows if ORDER_KEY not in row}
    sessions = list(by_session(rows).values())
    known = await side_by_side((_before(agent, members[0], source.window) for members in sessions), at_once=AT_ONCE)
    for members, before in zip(sessions, known, strict=True):
        for row in members:
            words[row["id"]] = words_of(row, before, source)
            if not (row.get("pending") or row.get("supersededById")):
                before.append(row)
    return words


async def settle(agent: Agent, ids: Iterable[str | None]) -> None:
    """Bring the keyword texts around changed memories in line; what cannot be done now is left to the sweep."""
    changed = {memory_id for memory_id in ids if memory_id}
    if agent.keyword is None or not changed:
        return
    try:
        await _settle(agent, agent.keyword, changed)
    except AgentMemoryError as error:
        # The change itself is durable, and marked.
        log.info("updating keyword texts of agent %s is postponed: %s", agent.settings.slug, error)


async def sweep(agent: Agent) -> int:
    """Bring in line what a crash left, and make the vectors that are missing; return how many there were."""
    if agent.keyword is None:
        return 0
    stale = {"key": "updatedAt", "range": {"lt": agent.clock.now_ms() - SWEEP_AFTER_MS}}
    due = [row["id"] for row in await _scroll(agent, {"must": [IS_DUE, stale]}, limit=PAGE)]
    if due:
        await _settle(agent, agent.keyword, set(due))
    return len(due) + await _fill(agent, agent.keyword)


async def renew(agent: Agent, ids: set[str]) -> None:
    """Write memories with the words that they now should have, each unless it changes meanwhile."""
    if agent.keyword is not None:
        await _rewrite(agent, agent.keyword, ids)


async def _settle(agent: Agent, source: KeywordSource, changed: set[str]) -> None:
    for _ in range(MAX_ROUNDS):
        rows = [row for row in await _rows(agent, changed) if row.get(DUE_KEY)]
        stale = await _stale_around(agent, rows, source)
        if not stale:
            await _unmark(agent, rows)
            return
        await _rewrite(agent, source, stale)
        changed = changed | stale


async def _rewrite(agent: Agent, source: KeywordSource, ids: set[str]) -> None:
    """Write memories with the words that they now should have, each unless it changed meanwhile."""
    there = {"must": [{"has_id": sorted(ids)}, NOT_DELETED]}
    points, _ = await agent.store.scroll(
        agent.alias, {"filter": there, "limit": len(ids), "with_payload": True, "with_vector": True}
    )
    living = [point for point in points if _has_text(agent, point["payload"])]
    operations = await side_by_side((_rewriting(agent, source, point) for point in living), at_once=AT_ONCE)
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)


async def _rewriting(agent: Agent, source: KeywordSource, point: Json) -> Json:
    row: Payload = point["payload"]
    before = await _before(agent, row, source.window) if ORDER_KEY in row else []
    dense = point["vector"].get("", {}) if isinstance(point["vector"], dict) else point["vector"]
    payload = row | {"rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
    changed = words_of(row, before, source).on({"id": row["id"], "vector": dense, "payload": payload}, source)
    unchanged = only(row["id"], equals("rev", row["rev"]), NOT_DELETED)
    return upsert_where(changed, unchanged)


async def _fill(agent: Agent, source: KeywordSource) -> int:
    """Make the keyword vectors of memories from before there were any."""
    filled = 0
    # What has a zone gets its words, if any, when it is written.
    lacking: Filter = {"must": [NOT_DELETED, NOT_PENDING, UNSEALED], "must_not": [{"has_vector": KEYWORD_VECTOR}]}
    unordered = {
        "must": [*lacking["must"], {"is_empty": {"key": ORDER_KEY}}],
        "must_not": [*lacking["must_not"], {"is_empty": {"key": "sessionId"}}, IS_WORKING],
    }
    for _ in range(PAGES_A_SWEEP):
        if rows := await _scroll(agent, unordered, limit=PAGE):
            operations = [
                {
                    "set_payload": {
                        "payload": {ORDER_KEY: order_of(row["createdAt"], 0)},
                        "filter": only(row["id"], equals("rev", row["rev"])),
                    }
                }
                for row in rows
            ]
            await agent.store.batch(agent.alias, operations, strong=True)
            continue
        rows = await _scroll(agent, lacking, limit=PAGE)
        if not rows:
            break
        ids = {row["id"] for row in rows}
        await _rewrite(agent, source, ids)
        await _settle(agent, source, ids)
        filled += len(rows)
    return filled


def _has_text(agent: Agent, row: _Row) -> bool:
    """Whether a row can be given the words that it should have."""
    return TOMBSTONE_KEY not in row and not is_locked(row) and has_words(agent, row.get(ZONE_KEY))


def _row_of(record: MemoryRecord, place: int) -> Payload:
    """A record as the row that it will be."""
    row = payload_of(record)
    # What lies in a place of the working memory gives way to other contents, so nothing may hold its words; and nothing
    # outside its zone may hold those of what is sealed.
    is_alone = record.session_id is None or record.is_working or record.zone is not None
    return row if is_alone else row | {ORDER_KEY: order_of(record.created_at, place)}


async def _stale_around(agent: Agent, rows: Sequence[_Row], source: KeywordSource) -> set[str]:
    """The memories whose words are not what they should be, among the rows and those after them."""
    stale: set[str] = set()
    sessions = by_session(row for row in rows if is_member(row)).values()
    spans = (_span(agent, members, source.window) for members in sessions)
    for near, known in await side_by_side(spans, at_once=AT_ONCE):
        stale |= stale_ids(near, source.window, known=known)
    gone = [row for row in rows if not is_member(row)]
    if gone:
        holds = holders_of([row["id"] for row in gone])
        stale |= {row["id"] for row in await _scroll(agent, {"must": [holds, NOT_DELETED]}, limit=PAGE)}
    for row in gone:
        if TOMBSTONE_KEY not in row and ORDER_KEY in row:
            before = await _before(agent, row, source.window)
            stale |= stale_ids([*before, row], source.window, known=len(before))
    return stale


async def _before(agent: Agent, row: _Row, window: int) -> list[_Row]:
    """The members of a row's session that stand before it, the nearest last."""
    found: list[_Row] = []
    bound = {"lte": row[ORDER_KEY]}
    while window:
        page = await _ordered(agent, _session_of(row, bound), "desc", limit=window + 2)
        found += page
        near = _nearest(found, row, window)
        if len(page) < window + 2 or (len(near) == window and near[0][ORDER_KEY] > page[-1][ORDER_KEY]):
            return near
        found += await _of_one_time(agent, page[-1])
        near = _nearest(found, row, window)
        if len(near) == window:
            return near
        bound = {"lt": page[-1][ORDER_KEY]}
    return []


def _session_of(row: _Row, order: Mapping[str, int]) -> Filter:
    return members_of(row["userId"], row["sessionId"], {"key": ORDER_KEY, "range": order})


async def _of_one_time(agent: Agent, row: _Row) -> list[_Row]:
    """The members of a session that stand where a row does: the engine cuts among them in no order."""
    place = row[ORDER_KEY]
    return await _scroll(agent, _session_of(row, {"gte": place, "lte": place}), limit=MOST_OF_ONE_TIME)


def _nearest(found: Iterable[_Row], row: _Row, window: int) -> list[_Row]:
    before = {other["id"]: other for other in found if position(other) < position(row)}
    return sorted(before.values(), key=position)[-window:]


async def _span(agent: Agent, members: Sequence[_Row], window: int) -> tuple[list[_Row], int]:
    """The members of a session around some of them, in order, and how many stand before the first."""
    last, limit = position(members[-1]), len(members) + 2 * window + 2
    found: dict[str, _Row] = {}

    async def page_from(bound: Mapping[str, int]) -> list[_Row]:
        return await _ordered(agent, _session_of(members[0], bound), "asc", limit=limit)

    before, page = await asyncio.gather(_before(agent, members[0], window), page_from({"gte": members[0][ORDER_KEY]}))
    while True:
        found |= {row["id"]: row for row in page}
        if len(page) < limit:
            break
        found |= {row["id"]: row for row in await _of_one_time(agent, page[-1])}
        if sum(position(row) > last for row in found.values()) >= window:
            break
        page = await page_from({"gt": page[-1][ORDER_KEY]})
    known = {row["id"] for row in before}
    after = sorted((row for row in found.values() if position(row) >= position(members[0])), key=position)
    return [*before, *(row for row in after if row["id"] not in known)], len(before)


async def _unmark(agent: Agent, rows: Sequence[_Row]) -> None:
    """Take the marks off rows that have not changed since they were read."""
    by_rev: dict[int, list[str]] = {}
    for row in rows:
        by_rev.setdefault(row["rev"], []).append(row["id"])
    operations = [
        {"set_payload": {"payload": {DUE_KEY: False}, "filter": {"must": [{"has_id": ids}, equals("rev", rev)]}}}
        for rev, ids in by_rev.items()
    ]
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)


async def _rows(agent: Agent, ids: set[str]) -> list[_Row]:
    points = await agent.store.retrieve(agent.alias, sorted(ids), keys=_KEYS)
    return [point["payload"] for point in points]


async def _ordered(agent: Agent, filter_: Filter, direction: str, *, limit: int) -> list[_Row]:
    return await _scroll(agent, filter_, limit=limit, order_by={"key": ORDER_KEY, "direction": direction})


async def _scroll(agent: Agent, filter_: Filter, *, limit: int, **more: object) -> list[_Row]:
    body = {"filter": filter_, "limit": limit, "with_payload": list(_KEYS), "with_vector": False, **more}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["payload"] for point in points]
