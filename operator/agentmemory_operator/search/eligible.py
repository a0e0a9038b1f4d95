"""Determine the memories that a search may return.

Qdrant may evaluate some criteria differently from `criteria_match`. For these, Qdrant only finds candidates, and this
process reads them and applies `criteria_match`. The filter of the search then combines the ids of the matches with the
part of the criterion that Qdrant decides with certainty (`compile_certain`).
"""

from dataclasses import replace
from functools import partial

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.criteria import Criterion, compile_certain, is_exact
from agentmemory_operator.memories.rules.criteria_match import keys_of, matches
from agentmemory_operator.memories.rules.filters import Filter, Selection, equals_any, narrow, visible_filter
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.zone_access import has_vector
from agentmemory_operator.search.counts import count_matching
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, ZONES
from agentmemory_operator.zones.sealed_store import without_decryption

PAGE = 500
# Maximum number of memories to read for deciding a criterion. They take about 3 s.
MAX_READ = 100_000
# Maximum number of ids in a request. They take 800 KB, which each list of candidates repeats.
MAX_MATCHING = 20_000
NARROW = "narrow the search by types, tags, session_id, namespace or another filter"


async def find_eligible(agent: Agent, selection: Selection, now_ms: int) -> tuple[Filter, int]:
    """Return the filter for the memories that a search may return, and their number.

    The number includes all writes of this process, and may lag 10 s behind those of other processes. It may be an
    estimate; see `count_matching`.

    Raises:
        RequestInvalid: If more than 100,000 memories must be read to decide the criterion, or more than 20,000 of those
            match.
        StoreUnavailable: If Qdrant is unavailable.
    """
    indexes, criterion = agent.settings.indexes, selection.criterion
    found = visible_filter(selection, now_ms, agent.settings.ranking.endings, indexes=indexes)
    # Exclude the zones whose memories have no vector, because a search by vector cannot find them.
    hidden = [zone for zone in ZONES if not has_vector(agent, zone)] if agent.settings.zones else []
    filter_ = narrow(found, {"must_not": [equals_any(ZONE_KEY, hidden)]}) if hidden else found
    if criterion is not None and not is_exact(criterion, indexes):
        # Read only the candidates that Qdrant cannot decide with certainty.
        certain = compile_certain(criterion, indexes)
        unread = [{"must_not": [certain]}] if certain else []
        ids = await _find_matching(agent, criterion, narrow(filter_, *unread))
        if certain is None:
            return narrow(filter_, {"has_id": ids}), len(ids)
        filter_ = narrow(filter_, {"should": [certain, {"has_id": ids}]} if ids else certain)
    is_whole = selection == Selection(user_id=selection.user_id, scopes=selection.scopes)
    count = partial(count_matching, agent, filter_)
    return filter_, await agent.sizes.get(selection.user_id, selection, count, is_whole=is_whole)


async def _find_matching(agent: Agent, criterion: Criterion, candidates: Filter) -> list[str]:
    """Return the ids of the candidates that meet a criterion.

    Raises:
        RequestInvalid: If there are more than 100,000 candidates, or more than 20,000 of them match.
    """
    keys = [*keys_of(criterion), TOMBSTONE_KEY]
    body = {"filter": candidates, "limit": PAGE, "with_payload": keys, "with_vector": False}
    matching: list[str] = []
    count = 0
    async for points in read_pages(replace(agent, store=without_decryption(agent.store)), body):
        count += len(points)
        # Skip memories that were deleted after Qdrant matched them and before it read them: they have no values, and
        # would meet a NOT.
        found = (point for point in points if TOMBSTONE_KEY not in point["payload"])
        matching += [point["id"] for point in found if matches(criterion, point["payload"])]
        if count > MAX_READ:
            raise _too_many(f"must be decided by reading each of more than {MAX_READ:,} memories")
        if len(matching) > MAX_MATCHING:
            raise _too_many(f"match more than {MAX_MATCHING:,} memories, and no index can serve them")
    return matching


def _too_many(message: str) -> RequestInvalid:
    return RequestInvalid([FieldError("filters", f"{message}: {NARROW}")])
