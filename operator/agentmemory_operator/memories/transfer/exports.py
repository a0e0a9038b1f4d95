"""Read the memories of a user for an export, page by page: one chain after another, oldest version first."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.change_log import complete_until_ms
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import (
    IS_PENDING,
    IS_WORKING,
    NOT_SUPERSEDED,
    STORED_FILTER,
    Condition,
    Filter,
    equals,
    narrow,
)
from agentmemory_operator.memories.rules.item_versions import versions_of
from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import (
    ITEM_NAMESPACE_KEY,
    LOGGED_KEY,
    STATED_END_KEY,
    TOMBSTONE_KEY,
    MemoryRecord,
    record_of,
)
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.zones.rules.sealing import SEALED_KEY
from agentmemory_operator.zones.sealed_store import without_decryption

PAGE = 100
_LINK_KEYS = ("supersedesId", "supersedesIds", TOMBSTONE_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMemory:
    """A memory, with the fields of its point that its record lacks.

    Attributes:
        is_item: True if it is an item, under a key of its namespace.
        stated_end: Original end of validity, Unix milliseconds, if a later version shortened it; else None.
        versions: Earlier versions of an item, newest first.
        vector: None if it was not requested, or the memory has none.
        sealed: Encrypted text, if the record was not decrypted; else None.
    """

    record: MemoryRecord
    is_item: bool = False
    versions: tuple[MemoryRecord, ...] = ()
    stated_end: int | None = None
    vector: Vector | None = None
    sealed: str | None = None


async def export_memories(
    agent: Agent, user_id: str, *, has_vectors: bool, opens_sealed: bool = False
) -> AsyncIterator[list[ExportedMemory]]:
    """Yield the memories of a user, page by page, without expired and working memories.

    A second pass reads the chains that changed during the first. So a memory that exists throughout is yielded, unless
    its chain changes during both passes. It may be yielded twice: alone, and with a new version.

    Args:
        has_vectors: True to include the dense vectors.
        opens_sealed: True to decrypt memories with a zone; False yields them encrypted, as stored.
    """
    agent = agent if opens_sealed else replace(agent, store=without_decryption(agent.store))
    heads = narrow(STORED_FILTER, equals("userId", user_id), NOT_SUPERSEDED)
    recent: Condition = {"key": LOGGED_KEY, "range": {"gt": complete_until_ms(agent)}}
    for filter_ in (heads | {"must_not": [IS_WORKING, recent]}, narrow(heads, recent) | {"must_not": [IS_WORKING]}):
        await _settle(agent, user_id)
        body = {"filter": filter_, "limit": PAGE, "with_payload": list(_LINK_KEYS)}
        async for points in read_pages(agent, body):
            ids = await _with_versions(agent, points)
            for start in range(0, len(ids), PAGE):
                yield await _page(agent, ids[start : start + PAGE], has_vectors=has_vectors)


async def _settle(agent: Agent, user_id: str) -> None:
    """Complete pending changes, because neither version of such a memory would be exported."""
    pending: Filter = {"must": [equals("userId", user_id), IS_PENDING]}
    async for points in read_pages(agent, {"filter": pending, "limit": PAGE, "with_payload": True}):
        for point in points:
            await chains.complete(agent, point["payload"])


async def _page(agent: Agent, ids: Sequence[str], *, has_vectors: bool) -> list[ExportedMemory]:
    body = {"filter": {"must": [{"has_id": list(ids)}]}, "limit": len(ids), "with_payload": True}
    found: dict[str, Json] = {}
    async for points in read_pages(agent, body | {"with_vector": has_vectors}):
        found |= {point["id"]: point for point in points}
    types, now_ms = agent.settings.ranking.endings, agent.clock.now_ms()
    rows = (found[memory_id] for memory_id in ids if memory_id in found)
    return [
        _exported(point, has_vector=has_vectors, keep_versions=agent.settings.keep_versions)
        for point in rows
        if TOMBSTONE_KEY not in point["payload"] and not is_expired(point["payload"], types, now_ms)
    ]


async def _with_versions(agent: Agent, heads: Sequence[Json]) -> list[str]:
    """Return the ids of heads, each after its earlier versions, oldest first."""
    versions = {point["id"]: [point["id"]] for point in heads}
    links = {point["id"]: predecessors(point["payload"]) for point in heads}
    while unread := sorted({older_id for ids in links.values() for older_id in ids}):
        rows: Mapping[str, Mapping[str, Any]] = {
            point["id"]: point["payload"]
            for start in range(0, len(unread), PAGE)
            for point in await agent.store.retrieve(agent.alias, unread[start : start + PAGE], keys=_LINK_KEYS)
        }
        for head_id, ids in links.items():
            found = [older_id for older_id in ids if older_id in rows and older_id not in versions[head_id]]
            versions[head_id] += found
            links[head_id] = tuple(older_id for id_ in found for older_id in predecessors(rows[id_]))
    return [memory_id for chain in versions.values() for memory_id in reversed(chain)]


def _exported(point: Json, *, has_vector: bool, keep_versions: int) -> ExportedMemory:
    payload = point["payload"]
    vector = point["vector"] if has_vector else None
    return ExportedMemory(
        record=record_of(payload),
        is_item=ITEM_NAMESPACE_KEY in payload,
        versions=tuple(versions_of(payload, keep=keep_versions)),
        stated_end=payload.get(STATED_END_KEY),
        sealed=payload.get(SEALED_KEY),
        vector=vector.get("") if isinstance(vector, dict) else vector,
    )
