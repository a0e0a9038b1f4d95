"""Move a memory to another zone: all its versions, in place, with unchanged ids.

Older snapshots keep the text as it was before the move. An id that was derived from the content or a key stays, so a
guessed content or key can still be tested against it; see docs/zones.md.
"""

import secrets
import sys
from collections.abc import Collection, Sequence
from functools import partial

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import Conflict, Forbidden, RequestInvalid
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.chains import MAX_ATTEMPTS, contention_error, outcome_unknown_on_failure
from agentmemory_operator.memories.entity_extraction import extract_row_entities
from agentmemory_operator.memories.history import read_version_ids
from agentmemory_operator.memories.point_pages import change_row, replace_row
from agentmemory_operator.memories.rules.comparison import vectors_of
from agentmemory_operator.memories.rules.entities import ENTITIES_KEY
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY
from agentmemory_operator.memories.rules.filters import NOT_DELETED, equals, point_filter
from agentmemory_operator.memories.rules.ids import content_id
from agentmemory_operator.memories.rules.preconditions import Precondition, check_precondition, tagged_record
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    CONNECTIONS_KEY,
    EDIT_MARK_KEY,
    ITEM_NAMESPACE_KEY,
    ORDER_KEY,
    TOMBSTONE_KEY,
    WINDOW_DUE_KEY,
    WINDOW_KEY,
    MemoryRecord,
    Payload,
    hash_content,
    record_of,
)
from agentmemory_operator.memories.stored_memories import read_if_marked, read_own_row
from agentmemory_operator.memories.zone_access import (
    check_unlocked,
    find_zone_errors,
    has_vector,
    is_lower_zone,
    scope_of_key,
    writing_key,
)
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

# Payload keys that a move removes, and writes again if the new zone allows them. Keyword texts of neighbours must not
# contain words of a memory with a zone, and no hash may identify the request that stored such a memory.
_REMOVED_KEYS = frozenset({ZONE_KEY, ENTITIES_KEY, ORDER_KEY, WINDOW_KEY, EVIDENCE_KEY, "requestHash"})


async def change_zone(
    agent: Agent,
    memory_id: str,
    zone: str | None,
    *,
    user_id: str,
    is_admin: bool = False,
    precondition: Precondition | None = None,
) -> MemoryRecord:
    """Move all versions of a memory to a zone, or with None out of its zone; return the memory as it is stored then.

    Args:
        is_admin: True if the caller may lower the zone. If False, other versions in a higher zone stay in it.
        precondition: Condition on the memory, checked before any version is moved, unless it is in the zone already.

    Raises:
        RequestInvalid: If `find_zone_errors` finds an error, or the embedder rejects the text of a version.
        NotFound: If the memory is unknown, expired, deleted, or of another user.
        Forbidden: If the zone would be lowered and `is_admin` is false.
        PreconditionFailed: If the memory does not meet the precondition.
        Conflict: If the memory is an item, because the zone is part of its address. Also if a version has no vector,
            needs one after the move, and the agent has no embedder; other versions may have been moved.
        SpecInvalid, KeysUnavailable: If the embedder is misconfigured, or a key unavailable. Versions may have moved.
        TransientError: If some versions may have been moved. The same call again moves the rest.
    """
    if errors := find_zone_errors(agent, zone, user_id):
        raise RequestInvalid(errors)
    row = await read_own_row(agent, memory_id, user_id=user_id)
    if is_lower_zone(row.get(ZONE_KEY), zone) and not is_admin:
        raise Forbidden(f"zone: {memory_id} is {row[ZONE_KEY]}: lowering its zone needs the verb admin")
    if ITEM_NAMESPACE_KEY in row:
        raise Conflict(f"zone: {memory_id} is an item, and its zone is part of its address: put it again in that zone")
    ids = await _move_versions(agent, row, zone, is_admin=is_admin, precondition=precondition)
    with outcome_unknown_on_failure():
        await session_keywords.update_stale_texts(agent, ids)
        if zone is not None:
            await _disconnect(agent, ids)
        return tagged_record(await read_own_row(agent, memory_id, user_id=user_id))


async def _move_versions(
    agent: Agent, row: Payload, zone: str | None, *, is_admin: bool, precondition: Precondition | None
) -> set[str]:
    """Move all versions of a memory; return their ids."""
    memory_id, user_id, ids = row["id"], row["userId"], set[str]()
    preconditions = {memory_id: precondition}
    for _ in range(MAX_ATTEMPTS):  # Read again after the move: another writer may have added a version.
        version_ids = await read_version_ids(agent, row, max_versions=sys.maxsize, busy=contention_error(memory_id))
        if not (remaining_ids := set(version_ids) - ids):
            break
        # Start with the named version: if it does not meet the precondition, no version is moved.
        for version_id in sorted(remaining_ids, key=lambda id_: id_ != memory_id):
            await _move(agent, version_id, zone, is_admin=is_admin, precondition=preconditions.get(version_id))
        ids |= remaining_ids
        row = await read_own_row(agent, memory_id, user_id=user_id)
    else:
        raise contention_error(memory_id)
    return ids


async def _move(
    agent: Agent, memory_id: str, zone: str | None, *, is_admin: bool, precondition: Precondition | None = None
) -> None:
    """Move one version, unless it was deleted, is in the zone already, or may not be lowered to it."""

    async def write(points: Sequence[Json]) -> Payload | None:
        row: Payload = points[0]["payload"] if points else {}
        before = row.get(ZONE_KEY)
        if not row or TOMBSTONE_KEY in row or before == zone or (is_lower_zone(before, zone) and not is_admin):
            return row
        check_precondition(precondition, row)
        check_unlocked(row)
        mark = secrets.token_hex(8)
        moved = await _moved(agent, points[0], zone, mark)
        await replace_row(agent, moved, point_filter(memory_id, equals("rev", row["rev"]), NOT_DELETED), replaced=row)
        return await read_if_marked(agent, memory_id, mark)

    read = partial(agent.store.retrieve, agent.alias, [memory_id], vectors=True)
    await update(read, write, busy=contention_error(memory_id))


async def _disconnect(agent: Agent, ids: Collection[str]) -> None:
    """Remove the connections to these memories from other memories, because the note of a connection discloses content.

    The moved memories keep their own connections, now encrypted. After a crash, the repeated call finds the other
    memories by them.
    """
    moved = await agent.store.retrieve(agent.alias, list(ids))
    connected_ids = {note["id"] for point in moved for note in point["payload"].get(CONNECTIONS_KEY) or ()}
    for _ in range(MAX_ATTEMPTS):
        rows = [point["payload"] for point in await agent.store.retrieve(agent.alias, sorted(connected_ids))]
        affected = [row for row in rows if any(note["id"] in ids for note in row.get(CONNECTIONS_KEY) or ())]
        if not affected:
            return
        for row in affected:
            remaining = [note for note in row[CONNECTIONS_KEY] if note["id"] not in ids]
            await change_row(agent, row, {CONNECTIONS_KEY: remaining}, NOT_DELETED, now_ms=agent.clock.now_ms())
    raise contention_error(affected[0]["id"])


async def _moved(agent: Agent, point: Json, zone: str | None, mark: str) -> Json:
    row, now_ms = point["payload"], agent.clock.now_ms()
    payload: Payload = {key: value for key, value in row.items() if key not in _REMOVED_KEYS}
    payload |= {
        "rev": row["rev"] + 1,
        "updatedAt": now_ms,
        CHANGED_KEY: now_ms,
        EDIT_MARK_KEY: mark,
    }
    payload |= {ZONE_KEY: zone} if zone else {}
    payload |= await _content_lookup(agent, row, zone)
    if entities := extract_row_entities(agent, payload):
        payload[ENTITIES_KEY] = entities
    # Because of this mark, `update_stale_texts` rewrites the keyword texts that include the words of the version.
    payload |= {WINDOW_DUE_KEY: True} if ORDER_KEY in row else {}
    vector = await _vector_of(agent, point) if has_vector(agent, zone) else {}
    moved = {"id": row["id"], "vector": vector, "payload": payload}
    words = (await session_keywords.build_words(agent, [record_of(payload)])).get(row["id"])
    return words.add_to_point(moved, agent.keyword) if words and agent.keyword else moved


async def _content_lookup(agent: Agent, row: Payload, zone: str | None) -> Payload:
    """Return the hash of a version's content in the zone, and the lookup ids by which a repeated write finds it.

    In a zone, only holders of its key can test a guessed content against them. The ids of the version and its identity
    do not change.
    """
    key = None if zone is None else await writing_key(agent, zone, row["userId"])
    content_hash = hash_content(row["content"], key.id_secret if key else "")
    lookups = row.get("lookupIds") or []
    stable_lookups = [lookup for lookup in lookups if lookup in (row.get("identityId"), row.get("requestId"))]
    if len(stable_lookups) == len(lookups):
        return {"contentHash": content_hash}
    content = content_id(scope_of_key(agent, key), row["userId"], row["type"], content_hash)
    return {"contentHash": content_hash, "lookupIds": [content, *stable_lookups]}


async def _vector_of(agent: Agent, point: Json) -> Vector:
    """Return the version's stored vector, or embed its content again.

    Raises:
        Conflict: If it has no vector and the agent has no embedder.
    """
    if dense := vectors_of(point).get(""):
        vector: Vector = dense
        return vector
    if agent.takes_vectors:
        raise Conflict(
            f"zone: {point['id']} has no vector, and this agent has embedding.provider none: store it again with a "
            f"vector"
        )
    [vector] = await agent.embedder.embed([point["payload"]["content"]])
    return vector
