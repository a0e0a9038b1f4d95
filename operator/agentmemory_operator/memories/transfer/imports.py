"""Import exported memories with their ids and links. Repeating an import adds nothing.

Stored memories change only in their links. Chains are imported oldest version first: each version is written as
`pending` and joined to its predecessor, as in a normal write. Versions in the same batch are written together. If a
crash interrupts an import, the sweep or a repetition of the lines completes it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

from agentmemory_operator.agents.checks import is_immutable
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict, DecryptionFailed
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from agentmemory_operator.memories.draft import MemoryDraft, add_words, build_drafts_without_keywords
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.point_pages import read_pages, replacement_operations
from agentmemory_operator.memories.rules.filters import NOT_DELETED, NOT_SUPERSEDED, equals, equals_any, point_filter
from agentmemory_operator.memories.rules.ids import item_id, keyed_id
from agentmemory_operator.memories.rules.item_rules import namespace_key
from agentmemory_operator.memories.rules.item_versions import NUMBER_KEY, ItemVersion, bounded_versions
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    ERASURE_KEY,
    IMPORTED_SUPERSEDED_AT_KEY,
    ITEM_NAMESPACE_KEY,
    LOGGED_KEY,
    PAYLOAD_KEYS,
    STATED_END_KEY,
    TOMBSTONE_KEY,
    VERSIONS_KEY,
    WINDOW_DUE_KEY,
    MemoryRecord,
    Payload,
    observation_count,
)
from agentmemory_operator.memories.session_use import note_stored
from agentmemory_operator.memories.transfer.import_batch import (
    ImportBatch,
    ImportLine,
    Outcome,
    find_refusal,
    has_successor,
    successor_conflict,
)
from agentmemory_operator.memories.zone_access import zone_keys_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, ZONE_KEY, Envelope, parse_envelope
from agentmemory_operator.zones.sealed_store import decrypt_fields

BATCH = 100

_KEYS = (
    *("id", "userId", "rev", "pending", *LINK_KEYS, "identityId", "working", "type", IMPORTED_SUPERSEDED_AT_KEY),
    *(TOMBSTONE_KEY, ERASURE_KEY, WINDOW_DUE_KEY, ITEM_NAMESPACE_KEY),
)
_Row = Mapping[str, Any]


def embedding_name(source: EmbeddingSource) -> str:
    """Return the name of a vector space in an export: provider, model, dimensions and prefixes, separated by '/'."""
    *parts, prefixes = source.identity
    return "/".join(str(part) for part in (*parts, prefixes and prefixes.name) if part is not None)


async def import_lines(agent: Agent, lines: Sequence[ImportLine], *, can_restore_erased: bool) -> list[Outcome]:
    """Import lines of one user; return one outcome per line, in order.

    Args:
        lines: At most 100, versions of one memory oldest first.
        can_restore_erased: True to write memories that `forget` erased.

    Raises:
        EmbedderUnavailable, StoreUnavailable: If no line was written. Retry.
        SpecInvalid: If the embedding provider's key, model or number of dimensions is wrong. No line was written.
        KeysUnavailable, StoreRejected: If the key of a zone is unavailable, or Qdrant rejects a request. Some lines may
            have been written.
        OutcomeUnknown: If some lines may have been written. The same call again writes the rest.
    """
    batch = ImportBatch(lines)
    await _draft(agent, batch)
    await _read_known(agent, batch)
    for index in sorted(batch.drafts):
        if refusal := find_refusal(batch, index, can_restore_erased=can_restore_erased):
            batch.refuse(index, refusal)
    with outcome_unknown_on_failure():
        await _write(agent, batch)
    for line in lines:
        agent.sizes.forget(line.memory.user_id)
    return [batch.outcomes[index] for index in range(len(lines))]


async def _draft(agent: Agent, batch: ImportBatch) -> None:
    """Decrypt and check the lines, remove secrets, and embed the contents.

    A vector of the agent's vector space is kept if its content had no secrets. An agent without an embedder keeps all.
    """
    # Draft without links and `valid_to`. Predecessors are checked later, against the batch. Parents are not checked,
    # nor is `valid_to`, because a version that was superseded at its creation has an empty validity. `is_new=False`
    # skips rules that may have changed.
    batch.decrypt_lines(await decrypt_lines(agent, batch.lines))
    unlinked = [replace(line.memory, supersedes=None, parent_id=None, valid_to=None) for line in batch.lines]
    cleaned = await scrub_memories(agent, unlinked)
    with_vector: list[int] = []
    for index, item in enumerate(cleaned):
        if index in batch.outcomes:
            continue
        is_same = item.memory.content == unlinked[index].content
        is_same_space = is_same and batch.lines[index].vector_of == embedding_name(agent.source)
        if not agent.takes_vectors and is_same_space and item.memory.vector is not None:
            with_vector.append(index)
        elif not agent.takes_vectors:
            cleaned[index] = replace(item, memory=replace(item.memory, vector=None))
    vector_agent = replace(agent, source=replace(agent.source, provider="none"))
    without_vector = [index for index in range(len(cleaned)) if index not in {*with_vector, *batch.outcomes}]
    for target, places in ((vector_agent, with_vector), (agent, without_vector)):
        drafts = (
            await build_drafts_without_keywords(target, [cleaned[n] for n in places], is_new=False) if places else []
        )
        for index, draft in zip(places, drafts, strict=True):
            if isinstance(draft, MemoryDraft):
                batch.drafts[index] = replace(_with_line(draft, batch.lines[index], agent), position=index)
            else:
                batch.outcomes[index] = draft


async def _read_known(agent: Agent, batch: ImportBatch) -> None:
    """Read the stored memories that the lines refer to, after completing their pending changes."""
    linked = [link for line in batch.lines for link in (*line.predecessors, line.superseded_by) if link]
    ids = sorted({*batch.indexes, *linked})
    batch.stored_rows = await _rows(agent, ids)
    unfinished = [row for row in batch.stored_rows.values() if row.get("pending")]
    for row in unfinished:
        await chains.complete(agent, row)
    due_ids = [id_ for id_, row in batch.stored_rows.items() if TOMBSTONE_KEY in row and row.get(WINDOW_DUE_KEY)]
    await session_keywords.update_stale_texts(agent, due_ids)
    if unfinished or due_ids:
        batch.stored_rows = await _rows(agent, ids)
    live_rows = (
        row for row in batch.stored_rows.values() if TOMBSTONE_KEY not in row and IMPORTED_SUPERSEDED_AT_KEY not in row
    )
    batch.immutable_ids = frozenset(row["id"] for row in live_rows if is_immutable(agent, row))
    batch.immutable_types = frozenset(type_.name for type_ in agent.settings.ranking.endings if type_.immutable)
    identities = sorted({draft.record.identity_id for draft in batch.drafts.values() if draft.record.identity_id})
    batch.heads = await _heads(agent, identities)


async def _write(agent: Agent, batch: ImportBatch) -> None:
    if not batch.drafts:
        return
    drafts = [_linked(draft, batch) for _, draft in sorted(batch.drafts.items())]
    ready = [draft for draft in await add_words(agent, drafts) if isinstance(draft, MemoryDraft)]
    versions = await _clean_versions(agent, {draft.position: batch.lines[draft.position].versions for draft in ready})
    points = [_point(draft, batch.lines[draft.position], agent) for draft in ready]
    for draft, point in zip(ready, points, strict=True):
        point["payload"] |= {key: value for key, value in versions[draft.position].items() if value is not None}
    if new := [point for point in points if point["id"] not in batch.stored_rows]:
        await agent.store.upsert(agent.alias, new, insert_only=True, strong=True)
    existing = [point for point in points if point["id"] in batch.stored_rows]
    operations = [operation for point in existing for operation in _over(agent, point, batch.stored_rows[point["id"]])]
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)
    await _join(agent, batch)
    await note_stored(agent, [draft.record for draft in ready], now_ms=agent.clock.now_ms())
    predecessor_ids = [id_ for draft in ready for id_ in batch.predecessor_ids.get(draft.record.id, ())]
    await session_keywords.update_stale_texts(agent, [*batch.indexes, *predecessor_ids])


async def _join(agent: Agent, batch: ImportBatch) -> None:
    """Join each version to its predecessor. Versions whose links are complete only need `pending` cleared."""
    followed = {id_ for ids in batch.predecessor_ids.values() for id_ in ids}
    rows = await _rows(agent, sorted({*batch.indexes, *followed}))
    completed: list[_Row] = []
    for memory_id, index in batch.indexes.items():
        row = rows.get(memory_id)
        batch.outcomes[index] = "imported"
        if row is None or TOMBSTONE_KEY in row:
            batch.outcomes[index] = Conflict(f"{memory_id} was deleted during the import")
        elif row.get("pending"):
            predecessor_ids = batch.predecessor_ids.get(memory_id, ())
            if predecessor_ids and all(rows.get(id_, {}).get("supersededById") == memory_id for id_ in predecessor_ids):
                completed.append(row)
            elif not await chains.join(agent, row):
                batch.outcomes[index] = successor_conflict(", ".join(predecessor_ids))
    if completed:
        operations = [_showing(row, agent.clock.now_ms()) for row in completed]
        await agent.store.batch(agent.alias, operations, strong=True)


def _with_line(draft: MemoryDraft, line: ImportLine, agent: Agent) -> MemoryDraft:
    """Return a draft with the fields of its line that a new memory lacks."""
    record, slug = draft.record, agent.settings.slug
    memory = line.memory
    observed_by = line.observed_by or record.observed_by
    record = replace(
        record,
        parent_id=memory.parent_id,
        knowledge_category=memory.knowledge_category,
        valid_to=memory.valid_to,
        changed_at=line.changed_at,
        access_count=line.access_count,
        last_accessed_at=line.last_accessed_at,
        session_used_at=_last_used(record, line.last_accessed_at),
        observed_by=observed_by,
        observation_count=observation_count(observed_by),
        pending=False,
        connections=line.connections,
        consolidated=line.is_consolidated,
    )
    if line.is_item and memory.key is not None:
        id_ = item_id(draft.scope if record.zone else slug, record.user_id, record.namespace, memory.key)
        number = line.item_version or len(line.versions) + 1
        item = replace(record, id=id_, item_version=number, identity_id=None, lookup_ids=(), request_id=None)
        return replace(draft, record=item)
    return replace(draft, record=replace(record, id=line.id or _id_of(memory, record, draft.scope)))


def _last_used(record: MemoryRecord, accessed_at: int | None) -> int | None:
    """Return the last use of a line's session, derived from the line's accesses, and never in the future.

    None if the type does not end with its session.
    """
    if record.session_used_at is None or accessed_at is None:
        return record.session_used_at
    return max(record.session_used_at, min(accessed_at, record.updated_at))


def _id_of(memory: IncomingMemory, record: MemoryRecord, scope: str) -> str:
    """Derive the id of a line without one from its type, content, time of creation, session, key and subject."""
    id_scope = scope if record.zone else record.agent_id
    statement = repr((record.type, memory.content, memory.created_at, memory.session_id, memory.key, memory.subject))
    return keyed_id(id_scope, record.user_id, f"import\x1f{sha256(statement.encode()).hexdigest()}")


def _linked(draft: MemoryDraft, batch: ImportBatch) -> MemoryDraft:
    """Return a draft with its links to stored versions and to versions in the batch."""
    line, record = batch.lines[draft.position], draft.record
    ids = batch.predecessor_ids.get(record.id, ())
    merged_ids = ids if len(ids) > 1 else ()
    record = replace(record, supersedes_id=ids[0] if ids else None, supersedes_ids=merged_ids, pending=bool(ids))
    if has_successor(batch, line, record.id):
        ended = line.superseded_at if line.superseded_at is not None else record.updated_at
        record = replace(record, superseded_by_id=line.superseded_by, superseded_at=ended)
    elif line.superseded_by:
        # Restore the original end, because the version is valid until its successor is imported.
        record = replace(record, valid_to=line.stated_end)
    return replace(draft, record=record)


def _point(draft: MemoryDraft, line: ImportLine, agent: Agent) -> Json:
    point = draft.point(agent)
    payload: Payload = point["payload"]
    if line.is_item:
        payload[ITEM_NAMESPACE_KEY] = namespace_key(draft.record.namespace)
    is_followed = bool(draft.record.superseded_by_id)
    if is_followed and line.stated_end is not None:
        payload[STATED_END_KEY] = line.stated_end
    if line.superseded_by and not is_followed and line.superseded_at is not None:
        payload[IMPORTED_SUPERSEDED_AT_KEY] = line.superseded_at
    return point


async def _clean_versions(agent: Agent, versions_by_index: Mapping[int, Sequence[ItemVersion]]) -> dict[int, Payload]:
    """Return the payload with the earlier versions of items, without secrets, by index of the line.

    The time of storage of these versions is the current time.
    """
    keep, now_ms = agent.settings.keep_versions, agent.clock.now_ms()
    cleaned_versions: dict[int, Payload] = {}
    for index, versions in versions_by_index.items():
        memories = [IncomingMemory(user_id="", content=old.content, metadata=old.metadata) for old in versions[:keep]]
        cleaned = [item.memory for item in await scrub_memories(agent, memories)]
        scrubbed = [
            replace(version, content=item.content, metadata=item.metadata)
            for version, item in zip(versions[:keep], cleaned, strict=True)
        ]
        cleaned_versions[index] = bounded_versions([version.to_payload(now_ms) for version in scrubbed], keep=keep)
    return cleaned_versions


def _over(agent: Agent, point: Json, tombstone: _Row) -> list[Json]:
    """Return the operations that replace a tombstone by a point, if the tombstone is unchanged.

    If the tombstone is that of an erasure, this withdraws it: the point is the erased memory, so no trace point is
    written.
    """
    newer = point | {"payload": point["payload"] | {"rev": tombstone["rev"] + 1}}
    unchanged = point_filter(point["id"], equals("rev", tombstone["rev"]), NOT_SUPERSEDED)
    return replacement_operations(agent, newer, unchanged)


def _showing(row: _Row, now_ms: int) -> Json:
    payload = {"pending": False, "rev": row["rev"] + 1, "updatedAt": now_ms, LOGGED_KEY: now_ms}
    return {
        "set_payload": {"payload": payload, "filter": point_filter(row["id"], equals("rev", row["rev"]), NOT_DELETED)}
    }


async def _rows(agent: Agent, ids: Sequence[str]) -> dict[str, Payload]:
    points = await agent.store.retrieve(agent.alias, ids, keys=_KEYS) if ids else []
    return {point["id"]: point["payload"] | {"id": point["id"]} for point in points}


async def _heads(agent: Agent, identities: Sequence[str]) -> dict[str, str]:
    """Return the id of the stored head by identity id; the result lacks identities without a head."""
    if not identities:
        return {}
    heads_filter = {"must": [equals_any("lookupIds", identities), NOT_SUPERSEDED, NOT_DELETED]}
    heads: dict[str, str] = {}
    body = {"filter": heads_filter, "limit": BATCH, "with_payload": ["identityId"], "with_vector": False}
    async for points in read_pages(agent, body):
        heads |= {identity: point["id"] for point in points if (identity := point["payload"].get("identityId"))}
    return heads


_STATED = {field.name: PAYLOAD_KEYS[field.name] for field in fields(IncomingMemory) if field.name in PAYLOAD_KEYS}


async def decrypt_lines(agent: Agent, lines: Sequence[ImportLine]) -> list[ImportLine | AgentMemoryError]:
    """Decrypt the lines; return each line, or the error if it cannot be decrypted.

    Raises:
        KeysUnavailable: If the keys are unavailable, or this API process may not read zone keys.
    """
    envelopes = {
        index: parse_envelope({SEALED_KEY: line.encrypted_text})
        for index, line in enumerate(lines)
        if line.encrypted_text is not None
    }
    if not envelopes:
        return list(lines)
    zone_keys = zone_keys_of(agent)
    keys = await zone_keys.read_keys({envelope.key_id for envelope in envelopes.values() if envelope})
    return [
        _decrypt(zone_keys.scope, line, envelopes[index], keys) if index in envelopes else line
        for index, line in enumerate(lines)
    ]


def _decrypt(
    scope: str, line: ImportLine, envelope: Envelope | None, keys: Mapping[str, DataKey]
) -> ImportLine | AgentMemoryError:
    key = keys.get(envelope.key_id) if envelope else None
    if envelope is None or key is None:
        remedy = "import it into an installation with its keys, or export it with plain=true"
        return Conflict(f"sealed: its key is unavailable or deleted: {remedy}")
    owner = {"userId": line.memory.user_id, "id": line.id or "", ZONE_KEY: line.memory.zone or ""}
    try:
        inner = json.loads(decrypt_fields(key, envelope, scope=scope, payload=owner))
    except DecryptionFailed:
        return Conflict("sealed: it was sealed for another agent, user, memory or zone, or was changed concurrently")
    stated = {name: _immutable(inner[payload_key]) for name, payload_key in _STATED.items() if payload_key in inner}
    versions = tuple(map(_version, inner.get(VERSIONS_KEY) or ()))
    return replace(line, memory=replace(line.memory, **stated), versions=versions, encrypted_text=None)


def _version(stored: Mapping[str, Any]) -> ItemVersion:
    return ItemVersion(
        content=stored["content"],
        valid_from=stored["validFrom"],
        valid_to=stored["validTo"],
        metadata=stored.get("metadata") or {},
        importance=stored.get("importance", 0.5),
        tags=tuple(stored.get("tags") or ()),
        category=stored.get("category"),
        updated_at=stored.get(CHANGED_KEY),
        version=stored.get(NUMBER_KEY),
    )


def _immutable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
