"""Keep the keyword texts of a session's memories consistent with their neighbours.

A keyword text includes the contents of the preceding memories in the session. So it becomes stale if one of them is
inserted late, superseded, deleted, or becomes a head again. Qdrant has no transaction over several points. A writer
that changes a memory therefore
1. sets `windowDue` on it, in the same request,
2. reads the memories around it,
3. rewrites stale texts, and repeats from 2 until none is stale (after `MAX_ROUNDS` rounds the sweep continues),
4. clears `windowDue`, in an API process a little later (`due_marks.py`).

A writer of new memories also reads the memories around them before step 1, and rewrites the texts that it expects to be
stale between 1 and 2. Step 2 finds the texts that it did not expect.

Invariant: of two concurrent writers, at least one sees the change of the other, because each reads after it writes. If
a writer crashes, the sweep finds its mark. A rewrite is a compare-and-set on `rev`, so it overwrites no concurrent
change.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import orjson

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.due_marks import DueMarks
from agentmemory_operator.memories.point_pages import rewrite_operations
from agentmemory_operator.memories.rules.filters import (
    IS_WORKING,
    NOT_DELETED,
    NOT_PENDING,
    UNSEALED,
    Filter,
    equals,
    point_filter,
)
from agentmemory_operator.memories.rules.ids import parts_within
from agentmemory_operator.memories.rules.keywords import (
    IS_DUE,
    KeywordText,
    build_keyword_text,
    find_stale_ids,
    group_by_session,
    includes_words_of,
    is_member,
    order_of,
    session_sort_key,
)
from agentmemory_operator.memories.rules.record import (
    ORDER_KEY,
    TOMBSTONE_KEY,
    WINDOW_DUE_KEY,
    MemoryRecord,
    Payload,
)
from agentmemory_operator.memories.session_rows import (
    MAX_CONCURRENT_SESSIONS,
    ROW_KEYS,
    Row,
    SessionRows,
    SessionSpan,
)
from agentmemory_operator.memories.zone_access import has_words
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import gather_bounded, map_with_pauses, run_in_slices
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked

SWEEP_AFTER_MS = 10_000
PAGE = 100
# Maximum number of pages of memories to which one sweep of an agent adds session positions or keyword vectors.
PAGES_A_SWEEP = 100
# Maximum number of memories that are rewritten right after a write, before the memories around it are read again.
MAX_FOLLOWERS = 200
# Maximum size of a request. Qdrant accepts 32 MiB.
MAX_REQUEST_BYTES = 24 << 20
# Maximum number of rounds. Two suffice unless another writer changes a neighbour in the meantime.
MAX_ROUNDS = 20
log = logging.getLogger(__name__)


async def build_words(
    agent: Agent, records: Sequence[MemoryRecord], reader: SessionRows | None = None
) -> dict[str, KeywordText]:
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
    sessions, reader = list(group_by_session(rows).values()), reader or SessionRows(agent)
    stored = await gather_bounded(
        (reader.first_around(members, source.window) for members in sessions), concurrency=MAX_CONCURRENT_SESSIONS
    )
    for members, around in zip(sessions, stored, strict=True):
        new = {row["id"]: row for row in members}
        before: list[Row] = []
        neighbours = 0
        for row in sorted(({row["id"]: row for row in around} | new).values(), key=session_sort_key):
            if row["id"] in new:
                words[row["id"]] = build_keyword_text(row, before, source)
            elif session_sort_key(row) < session_sort_key(members[0]):
                neighbours += 1
            if is_member(row):
                before.append(row)
        reader.plans.append(SessionSpan(before, neighbours))
        changed = find_stale_ids(before, source.window, neighbours=neighbours)
        reader.followers |= {row["id"]: row for row in around if row["id"] in changed - new.keys()}
    return words


async def read_followers(agent: Agent, reader: SessionRows) -> list[Json]:
    """Return the memories whose texts a planned write changes, to rewrite them after it.

    Empty if there are many, or Qdrant is unavailable: `update_stale_texts` finds them.
    """
    if not 0 < len(reader.followers) <= MAX_FOLLOWERS:
        return []
    try:
        return await _read_eligible(agent, sorted(reader.followers))
    except AgentMemoryError as error:
        log.info("reading the followers of new memories of agent %s failed: %s", agent.settings.slug, error)
        return []


async def rewrite_followers(agent: Agent, reader: SessionRows, followers: Sequence[Json]) -> None:
    """Rewrite the texts of followers as planned. `update_stale_texts` checks them, and repeats failed rewrites."""
    if not followers or agent.keyword is None:
        return
    windows = _windows_in(reader.plans, agent.keyword.window)
    try:
        await _rewrite(agent, agent.keyword, [(point, windows[point["payload"]["id"]]) for point in followers])
    except AgentMemoryError as error:
        log.info("rewriting the followers of new memories of agent %s failed: %s", agent.settings.slug, error)


async def update_stale_texts(
    agent: Agent,
    ids: Iterable[str | None],
    written: Iterable[Row] = (),
    reader: SessionRows | None = None,
    marks: DueMarks | None = None,
) -> None:
    """Rewrite the keyword texts that marked memories among `ids` made stale, then clear the marks.

    Does nothing without keyword vectors. An AgentMemoryError is only logged: the marks remain for the sweep.

    Args:
        ids: Ids of changed memories; None values are skipped.
        written: User, session and position of those that were just inserted, which are not read by id.
        reader: Reader that may have read the memories around them after the change.
        marks: Clears the marks. None clears them before the call returns.
    """
    changed = {memory_id for memory_id in ids if memory_id}
    if agent.keyword is None or not changed:
        return
    reader = reader or SessionRows(agent)
    changed |= reader.followers.keys()
    placed = {**reader.followers, **{row["id"]: row for row in written}}
    spans = reader.spans_around(placed.keys()) if placed.keys() == changed else None
    try:
        await _settle(agent, changed, reader, placed, spans, marks=marks or DueMarks())
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
        await _settle(agent, set(due_ids), SessionRows(agent), marks=DueMarks())
    return len(due_ids) + await _fill(agent, agent.keyword)


async def _settle(
    agent: Agent,
    changed: set[str],
    reader: SessionRows,
    placed: Mapping[str, Row] = MappingProxyType({}),
    read_spans: Sequence[SessionSpan] | None = None,
    *,
    marks: DueMarks,
) -> None:
    """Rewrite the texts that changed memories made stale, until none is.

    Args:
        placed: Earlier states of changed members, by id. Their current rows are among those of their sessions.
        read_spans: What is around all changed memories, read after they were written. None reads it.
    """
    assert agent.keyword is not None
    window = agent.keyword.window
    for _ in range(MAX_ROUNDS):
        rows = [row for row in await _rows(agent, changed - placed.keys()) if row.get(WINDOW_DUE_KEY)]
        members = {**{row["id"]: row for row in rows if is_member(row)}, **placed}
        spans = await reader.spans(members.values(), window) if read_spans is None else read_spans
        read_spans = None
        around = {row["id"]: row for span in spans for row in span.rows}
        stale = await _stale_among(agent, spans, [row for row in rows if not is_member(row)], reader, window)
        if not stale and placed.keys() <= around.keys():
            await marks.clear(agent, [*rows, *(around[id_] for id_ in placed if around[id_].get(WINDOW_DUE_KEY))])
            return
        await rewrite_texts(agent, stale, spans)
        changed = changed | stale
        # Read rows by id that are no longer members.
        placed = {id_: around[id_] for id_ in (placed.keys() | stale) & around.keys()}


async def rewrite_texts(agent: Agent, ids: set[str], spans: Sequence[SessionSpan] = ()) -> None:
    """Recompute the keyword texts and vectors of memories, each by compare-and-set, up to 100 in a request.

    Does nothing without keyword vectors. Skips deleted and locked memories, and zones without keyword vectors.

    Args:
        spans: Members around some of the memories, which are not read again.
    """
    if (source := agent.keyword) is None or not ids:
        return
    known, reader = _windows_in(spans, source.window), SessionRows(agent)

    async def window_of(row: Row) -> Sequence[Row]:
        if row["id"] in known or ORDER_KEY not in row:
            return known.get(row["id"], ())
        return await reader.before(row, source.window)

    remaining = sorted(ids)
    while part := remaining[:PAGE]:
        del remaining[:PAGE]
        eligible = await _read_eligible(agent, part)
        windows = await asyncio.gather(*(window_of(point["payload"]) for point in eligible))
        await _rewrite(agent, source, list(zip(eligible, windows, strict=True)))


async def _read_eligible(agent: Agent, ids: Sequence[str]) -> list[Json]:
    """Return those of the memories that may have a keyword text, with payload and vectors."""
    existing = {"must": [{"has_id": list(ids)}, NOT_DELETED]}
    body = {"filter": existing, "limit": len(ids), "with_payload": True, "with_vector": True}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point for point in points if _has_text(agent, point["payload"])]


def _windows_in(spans: Iterable[SessionSpan], window: int) -> dict[str, Sequence[Row]]:
    """Return the members before each member of the spans, by id, the nearest last."""
    return {
        row["id"]: span.rows[max(0, index - window) : index]
        for span in spans
        for index, row in enumerate(span.rows)
        if index >= span.neighbours
    }


async def _rewrite(agent: Agent, source: KeywordSource, points: Sequence[tuple[Json, Sequence[Row]]]) -> None:
    """Rewrite the texts of points, each given with the members before it, by compare-and-set.

    This takes one request, or several if it would be too large. A long text takes 0.1 s in some languages, so many of
    them would block the event loop: they are built in slices.
    """
    build = map_with_pauses(lambda _, pair: _sized(_rewritten(agent, source, *pair)), points)
    for part in parts_within(await run_in_slices(build), MAX_REQUEST_BYTES):
        await agent.store.batch(agent.alias, rewrite_operations(part), strong=True)


def _sized(point: Json) -> tuple[Json, int]:
    return point, len(orjson.dumps(point))


def _rewritten(agent: Agent, source: KeywordSource, point: Json, before: Sequence[Row]) -> Json:
    row: Payload = point["payload"]
    dense = point["vector"].get("", {}) if isinstance(point["vector"], dict) else point["vector"]
    payload = row | {"rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
    return build_keyword_text(row, before, source).add_to_point(
        {"id": row["id"], "vector": dense, "payload": payload}, source
    )


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
        await _settle(agent, ids, SessionRows(agent), marks=DueMarks())
        filled += len(rows)
    return filled


def _has_text(agent: Agent, row: Row) -> bool:
    """Return whether a row may get a keyword text: no tombstone, not locked, and no zone without keyword vectors."""
    return TOMBSTONE_KEY not in row and not is_locked(row) and has_words(agent, row.get(ZONE_KEY))


def _row_of(record: MemoryRecord, index: int) -> Payload:
    """Return the fields of a record that texts use, with its session position if other texts may include its words."""
    row = {
        "id": record.id,
        "userId": record.user_id,
        "sessionId": record.session_id,
        "content": record.content,
        "createdAt": record.created_at,
        "speaker": record.speaker,
        "role": record.role,
        "pending": record.pending,
        "supersededById": record.superseded_by_id,
        ZONE_KEY: record.zone,
    }
    # Give no position to a working memory, whose slot gets new contents, or to an encrypted memory: no other text may
    # include their words.
    is_excluded = record.session_id is None or record.is_working or record.zone is not None
    return row if is_excluded else row | {ORDER_KEY: order_of(record.created_at, index)}


async def _stale_among(
    agent: Agent, spans: Sequence[SessionSpan], hidden: Sequence[Row], reader: SessionRows, window: int
) -> set[str]:
    """Return the ids of memories with a stale text.

    This checks the members of the spans, hidden rows, and up to 100 memories whose texts include the words of those.
    """
    stale: set[str] = set()
    for span in spans:
        stale |= find_stale_ids(span.rows, window, neighbours=span.neighbours)
    if hidden:
        including = includes_words_of([row["id"] for row in hidden])
        stale |= {row["id"] for row in await _scroll(agent, {"must": [including, NOT_DELETED]}, limit=PAGE)}
    for row in hidden:
        if TOMBSTONE_KEY not in row and ORDER_KEY in row:
            before = await reader.before(row, window)
            stale |= find_stale_ids([*before, row], window, neighbours=len(before))
    return stale


async def _rows(agent: Agent, ids: set[str]) -> list[Row]:
    points = await agent.store.retrieve(agent.alias, sorted(ids), keys=ROW_KEYS) if ids else []
    return [point["payload"] for point in points]


async def _scroll(agent: Agent, filter_: Filter, *, limit: int) -> list[Row]:
    body = {"filter": filter_, "limit": limit, "with_payload": list(ROW_KEYS), "with_vector": False}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["payload"] for point in points]
