"""Store memories: check, embed in one call, write in one request, join those that supersede others to their chains.

Items of one request that say the same are one memory: the first is stored, the others are answered with its id.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

from agentmemory_operator.domain.expiry import is_expired
from agentmemory_operator.domain.records import ITEM_NAMESPACE_KEY, TOMBSTONE_KEY, MemoryRecord, Payload
from agentmemory_operator.errors import AgentMemoryError, Conflict, NotFound, StoreRejected
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.chains import Chains, midway, read_row
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.drafts import Draft, Drafting, NewMemory, places_of_first
from agentmemory_operator.services.scrubbing import clean
from agentmemory_operator.services.windows import Windows

Event = Literal["ADD", "SUPERSEDE", "NONE"]

# What the engine answers because of a point, or of how many there are: fewer of them may pass.
_ABOUT_POINTS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A memory that is durable now.

    Attributes:
        event: NONE is another item of the same request, which said the same.
        recorded: false where an event left nothing new behind.
    """

    id: str
    event: Event
    supersedes: str | None = None
    recorded: bool = True
    warnings: tuple[str, ...] = ()


Outcome = Stored | AgentMemoryError

_COMPARED_KEYS = ("requestHash", TOMBSTONE_KEY)


class Remember:
    """Stores memories."""

    def __init__(self, clock: Clock, chains: Chains, windows: Windows) -> None:
        self._clock = clock
        self._chains = chains
        self._windows = windows
        self._drafting = Drafting(clock, windows)

    async def store(self, agent: Agent, memories: Sequence[NewMemory]) -> list[Outcome]:
        """Store each memory; one result an item, in order: stored, or the error that kept this one out.

        An item's error is RequestInvalid, NotFound (what it supersedes), Conflict or a TransientError.

        Raises:
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: the batch may have been written. Items with keys may be stored again.
        """
        cleaned = await clean(agent, memories)
        places = places_of_first([item.memory for item in cleaned])
        distinct = list(dict.fromkeys(places))
        drafts = await self._drafting.draft(agent, [cleaned[place].memory for place in distinct])
        try:
            outcomes = dict(zip(distinct, await self._write(agent, drafts), strict=True))
        finally:
            await self._windows.settle(agent, _changed(drafts))
            for memory in memories:
                agent.sizes.forget(memory.user_id)
        told = [outcomes[first] if first == place else _repeated(outcomes[first]) for place, first in enumerate(places)]
        return [_warned(outcome, item.warnings) for outcome, item in zip(told, cleaned, strict=True)]

    async def _write(self, agent: Agent, drafts: Sequence[Draft | AgentMemoryError]) -> list[Outcome]:
        """Write drafts that nothing is compared with together, those with a predecessor one after the other."""
        ready = [draft for draft in drafts if isinstance(draft, Draft) and draft.record.supersedes_id is None]
        plain = [draft for draft in ready if draft.record.request_hash is None]
        refused: dict[str, AgentMemoryError] = dict(await _put(agent, plain))
        with midway() if plain else nullcontext():
            refused |= await self._put_keyed(agent, [draft for draft in ready if draft.record.request_hash])
        return [await self._finish(agent, draft, refused) for draft in drafts]

    async def _put_keyed(self, agent: Agent, drafts: Sequence[Draft]) -> dict[str, AgentMemoryError]:
        """Write what is not there yet; return by id what keeps a draft from being the memory under its key."""
        if not drafts:
            return {}
        refused: dict[str, AgentMemoryError] = dict(await _put(agent, drafts, insert_only=True))
        with midway():
            ids = [draft.record.id for draft in drafts if draft.record.id not in refused]
            points = await agent.store.retrieve(agent.alias, ids, keys=_COMPARED_KEYS)
        rows = {point["id"]: point["payload"] for point in points}
        for draft in drafts:
            if conflict := _other_request(rows.get(draft.record.id), draft.record):
                refused[draft.record.id] = conflict
        return refused

    async def _finish(
        self, agent: Agent, draft: Draft | AgentMemoryError, refused: Mapping[str, AgentMemoryError]
    ) -> Outcome:
        if isinstance(draft, AgentMemoryError):
            return draft
        if draft.record.supersedes_id is None:
            return refused.get(draft.record.id, _stored(draft))
        try:
            return await self._join(agent, draft)
        except AgentMemoryError as error:
            return error

    async def _join(self, agent: Agent, draft: Draft) -> Stored:
        """Write a memory that supersedes another."""
        record = draft.record
        before = await read_row(agent, record.id) if record.request_hash else None
        if before is None:
            await self._check_predecessor(agent, record)
            await agent.store.upsert(agent.alias, [draft.point(agent)], insert_only=True, strong=True)
        with midway():
            row = before or await read_row(agent, record.id)
            if conflict := _other_request(row, record):
                raise conflict
            if row is None or (row.get("pending") and not await self._chains.join(agent, row)):
                raise _superseded(record.supersedes_id)
        return _stored(draft)

    async def _check_predecessor(self, agent: Agent, record: MemoryRecord) -> None:
        if record.supersedes_id is None:
            return
        old = await read_row(agent, record.supersedes_id)
        if old and old.get("pending"):
            await self._chains.complete(agent, old)
            old = await read_row(agent, record.supersedes_id)
        if (
            old is None
            or old["userId"] != record.user_id
            or is_expired(old, agent.settings.ranking.types, self._clock.now_ms())
        ):
            raise NotFound(f"supersedes: this user has no memory {record.supersedes_id}")
        if ITEM_NAMESPACE_KEY in old:
            raise Conflict(f"supersedes: {record.supersedes_id} is an item, which has no versions: put its key anew")
        if old.get("working"):
            raise Conflict("supersedes: a working memory is not superseded: put the new content into its session")
        if TOMBSTONE_KEY in old or old.get("supersededById"):
            raise _superseded(record.supersedes_id)


def _changed(drafts: Sequence[Draft | AgentMemoryError]) -> list[str | None]:
    """Return the memories whose sessions' keyword texts may have to follow."""
    in_session = [d.record for d in drafts if isinstance(d, Draft) and d.words and d.words.order is not None]
    superseding = [d.record.supersedes_id for d in drafts if isinstance(d, Draft)]
    return [*(record.id for record in in_session), *superseding]


async def _put(agent: Agent, drafts: Sequence[Draft], *, insert_only: bool = False) -> dict[str, StoreRejected]:
    """Write drafts in one request; where the engine refuses some, without them. Return those by id."""
    if not drafts:
        return {}
    points = [draft.point(agent) for draft in drafts]
    try:
        await agent.store.upsert(agent.alias, points, insert_only=insert_only, strong=insert_only)
    except StoreRejected as error:
        if error.status not in _ABOUT_POINTS:
            raise
        if len(drafts) == 1:
            return {drafts[0].record.id: error}
    else:
        return {}
    half = len(drafts) // 2
    refused = await _put(agent, drafts[:half], insert_only=insert_only)
    with midway():
        return refused | await _put(agent, drafts[half:], insert_only=insert_only)


def _stored(draft: Draft) -> Stored:
    event: Event = "SUPERSEDE" if draft.record.supersedes_id else "ADD"
    return Stored(id=draft.record.id, event=event, supersedes=draft.record.supersedes_id)


def _warned(outcome: Outcome, warnings: tuple[str, ...]) -> Outcome:
    return replace(outcome, warnings=warnings + outcome.warnings) if isinstance(outcome, Stored) else outcome


def _repeated(outcome: Outcome) -> Outcome:
    return replace(outcome, event="NONE", recorded=False) if isinstance(outcome, Stored) else outcome


def _other_request(row: Payload | None, record: MemoryRecord) -> Conflict | None:
    """Return why a record is not the one that was stored under its key."""
    if row is None or record.request_hash is None:
        return None
    if TOMBSTONE_KEY in row:
        return Conflict(
            "Idempotency-Key: the memory stored under this key was deleted; send a new key to store it again"
        )
    if row.get("requestHash") != record.request_hash:
        return Conflict("Idempotency-Key: it came with another body before; send a new key")
    return None


def _superseded(memory_id: str | None) -> Conflict:
    return Conflict(f"supersedes: {memory_id} is superseded or deleted; supersede the head of its chain instead")
