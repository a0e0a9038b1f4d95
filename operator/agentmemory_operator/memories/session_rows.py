"""Read the rows around memories in their sessions. Reads that tasks make at the same time share one request."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.point_pages import MAX_ATTEMPTS, page_limit, query_all
from agentmemory_operator.memories.rules.filters import Filter
from agentmemory_operator.memories.rules.ids import parts_within
from agentmemory_operator.memories.rules.keywords import (
    group_by_session,
    is_member,
    session_members_filter,
    session_sort_key,
)
from agentmemory_operator.memories.rules.record import (
    ORDER_KEY,
    TOMBSTONE_KEY,
    WINDOW_DUE_KEY,
    WINDOW_KEY,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import gather_bounded
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

# Maximum number of reads in one request, and of rows with contents, which may be 256 KiB each.
MAX_MERGED_READS, MAX_MERGED_ROWS = 100, 700
MAX_NESTED_TASKS = 3
# Maximum number of sessions that are read at the same time: that of the memories of a request.
MAX_CONCURRENT_SESSIONS = 1000
# Maximum number of memories read at one position of a session. Of more, Qdrant returns an arbitrary part.
MAX_SAME_TIME = 1000
# Milliseconds for which a memory is assumed to be the last of its session.
NEW_MS = 1000
# Number of rows that are read between several memories of a session, before the rest is read page by page.
BETWEEN_ROWS = 16

ROW_KEYS = (
    *("id", "userId", "sessionId", "content", "createdAt", "rev", "speaker", "role"),
    *("pending", "supersededById", ZONE_KEY, TOMBSTONE_KEY, ORDER_KEY, WINDOW_KEY, WINDOW_DUE_KEY),
)
Row = Mapping[str, Any]
_Read = tuple[Json, "asyncio.Future[list[Row]]"]


@dataclass(frozen=True, slots=True)
class SessionSpan:
    """Consecutive members of a session.

    Attributes:
        rows: The members, in order.
        neighbours: Number of members at the start that precede the requested ones.
    """

    rows: Sequence[Row]
    neighbours: int


class SessionRows:
    """Reader of rows. Reads that wait at the same time are sent to Qdrant together.

    Attributes:
        plans: Members around the memories that are to be written, with these.
        followers: Stored members among them whose keyword texts change by the write, by id.
        is_rewritten: True once a part of the write has rewritten them. Again, after the next part, would change what
            was read since.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._waiting: list[_Read] = []
        self._placed_ids: set[str] = set()
        self._spans: list[SessionSpan] = []
        self._starts: dict[tuple[str, str], int | None] = {}
        self.plans: list[SessionSpan] = []
        self.followers: dict[str, Row] = {}
        self.is_rewritten = False

    async def find(
        self, filter_: Filter, *, limit: int, direction: str | None = None, keys: Sequence[str] = ROW_KEYS
    ) -> list[Row]:
        """Return the first `limit` rows that match a filter.

        Args:
            direction: asc or desc, by position in the session. None is any order.
        """
        body: Json = {"filter": filter_, "limit": limit, "with_payload": list(keys), "with_vector": False}
        if direction is not None:
            body["query"] = {"order_by": {"key": ORDER_KEY, "direction": direction}}
        future: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, future))
        if len(self._waiting) == 1:
            await self._send(self._waiting)
        return await future

    async def read_back(self, ids: Sequence[str], keys: Sequence[str], places: Iterable[Row]) -> dict[str, Row]:
        """Return rows that were just written, by id. With them, read the members around those in a session.

        Args:
            places: User, session and position of the rows that have a keyword text in a session.
        """
        by_id, source = {row["id"]: row for row in places}, self._agent.keyword
        if source is None or not by_id or page_limit(self._agent, len(ids)) < len(ids):
            points = await self._agent.store.retrieve(self._agent.alias, ids, keys=keys)
            return {point["id"]: point["payload"] for point in points}
        rows, spans = await asyncio.gather(
            self.find({"must": [{"has_id": list(ids)}]}, limit=len(ids), keys=("id", *keys)),
            self.spans(by_id.values(), source.window),
        )
        # The followers of the rows are among the members around them.
        self._placed_ids |= by_id.keys() | self.followers.keys()
        self._spans += spans
        return {row["id"]: row for row in rows}

    def spans_around(self, ids: Set[str]) -> list[SessionSpan] | None:
        """Return the members that `read_back` read around these memories; None if it did not read all of them."""
        return self._spans if ids <= self._placed_ids else None

    async def _send(self, waiting: list[_Read]) -> None:
        try:
            try:
                # Let the other tasks add their reads. A task that another one starts runs one round of the loop later.
                for _ in range(MAX_NESTED_TASKS):
                    await asyncio.sleep(0)
            finally:
                self._waiting = []
            sized = ((read, _rows_with_content(read[0])) for read in waiting)
            for part in parts_within(sized, MAX_MERGED_ROWS, MAX_MERGED_READS):
                await self._read(part)
        except asyncio.CancelledError:
            for _, future in waiting:
                future.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 # the tasks that wait would hang
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)

    async def _read(self, part: Sequence[_Read]) -> None:
        found = await query_all(self._agent, [body for body, _ in part])
        for (_, future), points in zip(part, found, strict=True):
            if not future.done():
                future.set_result([point["payload"] for point in points])

    async def before(self, row: Row, window: int) -> list[Row]:
        """Return the last `window` members of a row's session before it, the nearest last."""
        found: list[Row] = []
        bound = {"lte": row[ORDER_KEY]}
        while window:
            page = await self._page(row, bound, "desc", limit=window + 2)
            found += page
            near = _nearest(found, row, window)
            if len(page) < window + 2 or (len(near) == window and near[0][ORDER_KEY] > page[-1][ORDER_KEY]):
                return near
            found += await self._at_same_position(page[-1])
            near = _nearest(found, row, window)
            if len(near) == window:
                return near
            bound = {"lt": page[-1][ORDER_KEY]}
        return []

    async def first_around(self, members: Sequence[Row], window: int) -> list[Row]:
        """Return the stored members of a session just before `members`, and the first of those between and after them.

        Memories of the last second are the last of their session, unless its callers have different clocks.
        """
        first, last = members[0], members[-1]
        if not window:
            return []
        is_new = last["createdAt"] > self._agent.clock.now_ms() - NEW_MS
        bound = {"gte": first[ORDER_KEY]} | ({"lte": last[ORDER_KEY]} if is_new else {})
        limit = page_limit(self._agent, _rows_to_read(members, window))
        reads = [self.before(first, window)]
        if first is not last or not is_new:
            reads.append(self._page(first, bound, "asc", limit=limit))
        before, *following = await gather_bounded(reads, concurrency=len(reads))
        self._starts[_session_key(first)] = before[0][ORDER_KEY] if len(before) == window else None
        return [*before, *chain.from_iterable(following)]

    async def spans(self, rows: Iterable[Row], window: int) -> list[SessionSpan]:
        """Return the members around each session's rows."""
        sessions = group_by_session(rows).values()
        return await gather_bounded(
            (self._span(members, window) for members in sessions), concurrency=MAX_CONCURRENT_SESSIONS
        )

    async def _span(self, members: Sequence[Row], window: int) -> SessionSpan:
        """Return the session members from `window` before `members` to `window` or more after."""
        key, first = _session_key(members[0]), session_sort_key(members[0])
        if key in self._starts:
            # Read from the neighbour that was the first before the write, or from the start of a session without one.
            start = self._starts[key]
            rows = await self._following(members, window, {} if start is None else {"gte": start})
            neighbours = sum(session_sort_key(row) < first for row in rows)
            if start is None or neighbours >= window:
                return SessionSpan(rows, neighbours)
        before, found = await asyncio.gather(
            self.before(members[0], window), self._following(members, window, {"gte": members[0][ORDER_KEY]})
        )
        before_ids = {row["id"] for row in before}
        after = [row for row in found if session_sort_key(row) >= first and row["id"] not in before_ids]
        return SessionSpan([*before, *after], len(before))

    async def _following(self, members: Sequence[Row], window: int, bound: Mapping[str, int]) -> list[Row]:
        """Return the members of a session from a position to `window` or more after `members`, in order."""
        last, limit = session_sort_key(members[-1]), page_limit(self._agent, _rows_to_read(members, window))
        found: dict[str, Row] = {}
        count = 0
        while True:
            page = await self._page(members[0], bound, "asc", limit=limit)
            if len(page) < limit:
                found |= {row["id"]: row for row in page}
                break
            # The page may have only some of the rows at its last position.
            complete = [row for row in page if row[ORDER_KEY] < page[-1][ORDER_KEY]]
            found |= {row["id"]: row for row in complete}
            count += sum(session_sort_key(row) > last for row in complete)
            if count >= window:
                break
            rest = {row["id"]: row for row in [*page[len(complete) :], *await self._at_same_position(page[-1])]}
            found |= rest
            count += sum(session_sort_key(row) > last for row in rest.values())
            if count >= window:
                break
            bound, limit = {"gt": page[-1][ORDER_KEY]}, page_limit(self._agent, min(2 * limit, MAX_MERGED_ROWS))
        return sorted(found.values(), key=session_sort_key)

    async def _page(self, row: Row, bound: Mapping[str, int], direction: str, *, limit: int) -> list[Row]:
        for _ in range(MAX_ATTEMPTS):
            rows = await self.find(_session_of(row, bound), limit=limit, direction=direction)
            members = [member for member in rows if is_member(member)]
            # Qdrant reads payloads after the search: a row may have been deleted or superseded in between. Then read
            # again, because a page with fewer rows than its limit is the last of its session.
            if len(members) == len(rows):
                break
        return members

    async def _at_same_position(self, row: Row) -> list[Row]:
        """Return up to `MAX_SAME_TIME` session members at a row's position.

        A page that ends among them contains an arbitrary part of them, so the caller reads the rest here.
        """
        order = row[ORDER_KEY]
        return await self._page(row, {"gte": order, "lte": order}, "asc", limit=MAX_SAME_TIME)


def _rows_with_content(body: Json) -> int:
    return body["limit"] if "content" in body["with_payload"] else 0


def _rows_to_read(members: Sequence[Row], window: int) -> int:
    return len(members) + 2 * window + 2 + (BETWEEN_ROWS if len(members) > 1 else 0)


def _session_key(row: Row) -> tuple[str, str]:
    return row["userId"], row["sessionId"]


def _session_of(row: Row, order: Mapping[str, int]) -> Filter:
    bounds = [{"key": ORDER_KEY, "range": order}] if order else []
    return session_members_filter(*_session_key(row), *bounds)


def _nearest(found: Iterable[Row], row: Row, window: int) -> list[Row]:
    before = {member["id"]: member for member in found if session_sort_key(member) < session_sort_key(row)}
    return sorted(before.values(), key=session_sort_key)[-window:]
