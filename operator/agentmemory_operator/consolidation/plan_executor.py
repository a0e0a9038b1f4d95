"""Carry out the plan of a batch. Every step may be repeated with the same result.

The id of a fact or proposal is derived from the run and the sources, that of a contradiction from the sources, and that
of a collapsed version from its head. So a repeated step finds what an earlier attempt stored. The memories of the batch
are marked as read last, so that an interrupted batch is read again.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.collapse import collapse
from agentmemory_operator.consolidation.rules.batch_plan import BatchPlan, Contradiction, Fact
from agentmemory_operator.consolidation.rules.proposals import proposal_to_payload
from agentmemory_operator.entities.sheets import put_aliases, put_relations, read_sheet
from agentmemory_operator.errors import Conflict, RequestInvalid
from agentmemory_operator.memories.draft import MemoryDraft, build_drafts
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.point_pages import read_memories
from agentmemory_operator.memories.predecessors import merge
from agentmemory_operator.memories.rules.entities import (
    ENTITIES_KEY,
    Entity,
    entities_from_payload,
    entities_to_payload,
    merge_entities,
)
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    Selection,
    equals,
    narrow,
    point_filter,
    visible_filter,
)
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.log_times import next_logged_at
from agentmemory_operator.memories.rules.record import (
    CATEGORY_RUN_KEY,
    CONNECTIONS_KEY,
    CONSOLIDATED_KEY,
    LOGGED_KEY,
    NOTED_KEY,
    RUN_KEY,
    TOMBSTONE_KEY,
    Payload,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

AUTHOR = SOURCE = "consolidation"
CONTRADICTION_IMPORTANCE = 0.75


class PlanEffect(StrEnum):
    """Kind of effect of a plan, as a key of counts.

    `KNOWN` counts facts that were not stored because a memory has the same content or a nearly equal vector. `LOST`
    counts facts and contradictions that were not stored for another reason, and rejected proposals. `RELATIONS`
    includes aliases.
    """

    MERGED = "merged"
    SUPERSEDED = "superseded"
    PROPOSED = "proposed"
    KNOWN = "known"
    LOST = "lost"
    CONTRADICTIONS = "contradictions"
    CONNECTIONS = "connections"
    RECLASSIFIED = "reclassified"
    RELATIONS = "relations"
    ENTITIES = "entities"


Tally = Counter[PlanEffect]


def planned_effects(plan: BatchPlan) -> Tally:
    """Count the effects of a plan for a dry run, as if everything in it were new and accepted."""
    return Counter(
        {
            PlanEffect.MERGED: len(plan.facts),
            PlanEffect.SUPERSEDED: sum(len(fact.replaced) for fact in plan.facts),
            PlanEffect.PROPOSED: len(plan.proposed),
            PlanEffect.CONTRADICTIONS: len(plan.contradictions),
            PlanEffect.CONNECTIONS: len(plan.connections),
            PlanEffect.RECLASSIFIED: len(plan.categories),
            PlanEffect.RELATIONS: len(plan.aliases) + len(plan.relations),
            PlanEffect.ENTITIES: len(plan.entities),
        }
    )


async def execute_plan(agent: Agent, plan: BatchPlan, run_id: str) -> Tally:
    """Carry out a plan; return its effects.

    Raises:
        TransientError: If Qdrant or the embedder is unavailable. Repeating the call does the rest.
    """
    tally: Tally = Counter()
    for fact in plan.facts:
        tally += await store_fact(agent, plan.user_id, fact, run_id)
    for fact in plan.proposed:
        await store_proposal(agent, plan.user_id, fact, run_id)
        tally[PlanEffect.PROPOSED] += 1
    for contradiction in plan.contradictions:
        tally += await _store_contradiction(agent, plan.user_id, contradiction, run_id)
    tally[PlanEffect.RELATIONS] += await _name(agent, plan)
    return tally + await _mark(agent, plan, run_id)


async def store_fact(agent: Agent, user_id: str, fact: Fact, run_id: str) -> Tally:
    """Store a fact, unless a visible memory that is not its source has the same content or a nearly equal vector.

    The text of a long chain of versions (`Fact.collapses`) is stored without this comparison.

    Returns:
        The effects. `LOST` if the agent rejects the fact or its sources have changed, `KNOWN` if a memory equals it.

    Raises:
        TransientError: If Qdrant or the embedder is unavailable. Repeating the call does the rest.
    """
    if fact.collapses:
        is_stored = await collapse(agent, user_id, fact, run_id)
        return Counter({PlanEffect.MERGED: 1, PlanEffect.SUPERSEDED: 1} if is_stored else {PlanEffect.LOST: 1})
    draft = await _draft(agent, _memory(user_id, fact, run_id))
    if draft is None:
        return Counter({PlanEffect.LOST: 1})
    draft = _naming(draft, fact)
    if not await _was_started(agent, draft) and await _is_known(agent, draft, fact.sources):
        return Counter({PlanEffect.KNOWN: 1})
    row = await merge(agent, draft, fact.replaced, _marks(run_id))
    if row is None:
        return Counter({PlanEffect.LOST: 1})
    return Counter({PlanEffect.MERGED: 1, PlanEffect.SUPERSEDED: len(fact.replaced)})


def fact_key(fact: Fact, run_id: str) -> str:
    """Return the key for the id of a fact: the same for the same memories in the same run."""
    return "\x1f".join((SOURCE, run_id, *sorted(fact.sources), *sorted(fact.replaced)))


def _memory(user_id: str, fact: Fact, run_id: str) -> IncomingMemory:
    return IncomingMemory(
        user_id=user_id,
        content=fact.content,
        type=fact.type,
        importance=fact.importance,
        domain=fact.domain,
        knowledge_category=fact.knowledge_category,
        source=SOURCE,
        author=AUTHOR,
        source_ids=fact.sources,
        idempotency_key=fact_key(fact, run_id),
    )


def _naming(draft: MemoryDraft, fact: Fact) -> MemoryDraft:
    """Return the draft of a fact with the entities that the fact names."""
    found = entities_from_payload([{"name": name, "kind": kind, "role": "mentioned"} for name, kind in fact.entities])
    return replace(draft, record=replace(draft.record, entities=merge_entities(draft.record.entities, found)))


def _marks(run_id: str) -> Payload:
    return {RUN_KEY: run_id, CONSOLIDATED_KEY: True}


async def _store_contradiction(agent: Agent, user_id: str, contradiction: Contradiction, run_id: str) -> Tally:
    memory = IncomingMemory(
        user_id=user_id,
        content=contradiction.content,
        type=contradiction.type,
        event_type=contradiction.event_type,
        importance=CONTRADICTION_IMPORTANCE,
        source=SOURCE,
        author=AUTHOR,
        source_ids=contradiction.sources,
        # Leave the run out of the key, so that later runs do not report the same contradiction again.
        idempotency_key="\x1f".join((SOURCE, "contradiction", *contradiction.sources)),
    )
    draft = await _draft(agent, memory)
    row = await merge(agent, draft, (), _marks(run_id)) if draft else None
    return Counter({PlanEffect.CONTRADICTIONS if row and row.get(RUN_KEY) == run_id else PlanEffect.LOST: 1})


async def _draft(agent: Agent, memory: IncomingMemory) -> MemoryDraft | None:
    """Build the draft of a memory, with an id derived from its key. None if the agent rejects it."""
    [draft] = await build_drafts(agent, await scrub_memories(agent, [memory]))
    if not isinstance(draft, MemoryDraft):
        return None
    assert memory.idempotency_key is not None
    id_ = keyed_id(draft.scope, memory.user_id, memory.idempotency_key)
    # Remove the identity: other writes find a memory made by a model only by its content.
    record = replace(draft.record, id=id_, identity_id=None, pending=False)
    return replace(draft, record=record)


async def _was_started(agent: Agent, draft: MemoryDraft) -> bool:
    return bool(await agent.store.retrieve(agent.alias, [draft.record.id], keys=["id"]))


async def _is_known(agent: Agent, draft: MemoryDraft, sources: Sequence[str]) -> bool:
    """Return whether another visible memory of the user has the same content or a nearly equal vector.

    Vectors are compared only if the distance is Cosine.
    """
    user_filter = visible_filter(
        Selection(user_id=draft.record.user_id), agent.clock.now_ms(), agent.settings.ranking.endings
    )
    others_filter = narrow(user_filter, {"must_not": [{"has_id": list(sources)}]})
    hash_filter = narrow(others_filter, equals("contentHash", draft.record.content_hash))
    points, _ = await read_memories(agent, {"filter": hash_filter, "limit": 1, "with_payload": ["content"]})
    if points:
        return True
    if draft.vector is None or agent.distance != "Cosine":
        return False
    body: Json = {"query": draft.vector, "filter": others_filter, "limit": 1, "with_payload": False}
    nearest = await agent.store.query(agent.alias, body)
    return bool(nearest) and nearest[0]["score"] >= agent.settings.duplicate_similarity


async def _name(agent: Agent, plan: BatchPlan) -> int:
    """Store aliases and relations for the user; return the number of those that changed or were strengthened.

    Aliases are written first. Either write is dropped if it would exceed the user's maximum, or if
    the agent has entities disabled.
    """
    before, count = await read_sheet(agent, plan.user_id), 0
    if plan.aliases:
        with contextlib.suppress(Conflict, RequestInvalid):
            after = await put_aliases(agent, plan.user_id, {alias: name for name, alias in plan.aliases})
            count, before = len(after.aliases.items() - before.aliases.items()), after
    if plan.relations:
        with contextlib.suppress(Conflict, RequestInvalid):
            after = await put_relations(agent, plan.user_id, plan.relations)
            count += len(after.relations.items() - before.relations.items())
    return count


async def store_proposal(agent: Agent, user_id: str, fact: Fact, run_id: str) -> None:
    """Store a fact that needs an approval as a proposal, which no search returns. If it is stored already, keep it."""
    id_ = keyed_id(agent.id_slug, user_id, "\x1f".join(("proposal", fact_key(fact, run_id))))
    payload = proposal_to_payload(fact, id_=id_, user_id=user_id, run_id=run_id, now_ms=agent.clock.now_ms())
    payload["agentId"] = agent.settings.slug
    point = {"id": id_, "vector": {}, "payload": payload}
    await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)


async def _mark(agent: Agent, plan: BatchPlan, run_id: str) -> Tally:
    """Store connections, category and entities on the batch's memories, and mark these as read; count the effects.

    A memory that another writer changes between the read and the write of this function is skipped and not counted.
    """
    points = await agent.store.retrieve(agent.alias, list(plan.memory_ids))
    rows = [point["payload"] for point in points if TOMBSTONE_KEY not in point["payload"]]
    effects: dict[str, Tally] = {}
    operations = []
    for row in rows:
        connections = _with_connections(row, plan.connections.get(row["id"], {}), run_id)
        category = plan.categories.get(row["id"])
        changes: Payload = {CONNECTIONS_KEY: connections} if connections else {}
        changes |= {"knowledgeCategory": category, CATEGORY_RUN_KEY: run_id} if category else {}
        entities = _with_entities(row, plan.entities.get(row["id"], ()))
        changes |= {ENTITIES_KEY: entities} if entities else {}
        parts = {PlanEffect.CONNECTIONS: connections, PlanEffect.RECLASSIFIED: category, PlanEffect.ENTITIES: entities}
        effects |= {row["id"]: Counter(effect for effect, part in parts.items() if part)} if changes else {}
        operations.append(_marking(row, changes, run_id, agent.clock.now_ms()))
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)
    noted = await agent.store.retrieve(agent.alias, list(effects), keys=["id", NOTED_KEY]) if effects else []
    are_stored = (effects[point["id"]] for point in noted if point["payload"].get(NOTED_KEY) == run_id)
    return sum(are_stored, Counter())


def _with_connections(row: Mapping[str, Any], descriptions: Mapping[str, str], run_id: str) -> list[Json]:
    """Return a memory's connections extended by new connections; empty if there are none."""
    existing: Iterable[Json] = row.get(CONNECTIONS_KEY) or ()
    existing_ids = {connection.get("id") for connection in existing}
    new = [
        {"id": id_, "description": description, "run": run_id}
        for id_, description in descriptions.items()
        if id_ not in existing_ids
    ]
    return [*existing, *new] if new else []


def _with_entities(row: Mapping[str, Any], found: Sequence[Entity]) -> list[dict[str, str]]:
    """Return a memory's entities extended by new entities; empty if there are none, or if the memory has a zone."""
    existing = entities_from_payload(row.get(ENTITIES_KEY))
    merged = merge_entities(existing, found)
    return [] if merged == existing or row.get(ZONE_KEY) else entities_to_payload(merged)


def _marking(row: Mapping[str, Any], changes: Payload, run_id: str, now_ms: int) -> Json:
    marks = {LOGGED_KEY: next_logged_at(row, now_ms), NOTED_KEY: run_id} if changes else {}
    payload = {**changes, **marks, CONSOLIDATED_KEY: True, "rev": row["rev"] + 1, "updatedAt": now_ms}
    return {
        "set_payload": {"payload": payload, "filter": point_filter(row["id"], equals("rev", row["rev"]), NOT_DELETED)}
    }
