"""Store memories: draft them, write those that nothing is compared with in one request, the others by their rules.

Items of one request that say the same are one memory: the first is stored, the others are answered with its id.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from agentmemory_operator.domain.records import TOMBSTONE_KEY
from agentmemory_operator.errors import AgentMemoryError, CollectionMoved, OutcomeUnknown
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.chains import Chains, midway
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.drafts import Draft, Drafting, NewMemory, places_of_first
from agentmemory_operator.services.duplicates import Duplicates
from agentmemory_operator.services.identities import Identities
from agentmemory_operator.services.inserts import put
from agentmemory_operator.services.parents import check_hierarchy
from agentmemory_operator.services.predecessors import check_predecessor
from agentmemory_operator.services.rows import read_row
from agentmemory_operator.services.scrubbing import clean
from agentmemory_operator.services.stored import Outcome, Stored, other_request, repeated, stored_of, superseded
from agentmemory_operator.services.windows import Windows

_COMPARED_KEYS = ("requestHash", TOMBSTONE_KEY)


class Remember:
    """Stores memories."""

    def __init__(self, clock: Clock, chains: Chains, windows: Windows) -> None:
        self._clock = clock
        self._chains = chains
        self._windows = windows
        self._drafting = Drafting(clock, windows)
        self._duplicates = Duplicates(clock, windows)
        self._identities = Identities(clock, chains, self._duplicates, windows)

    async def store(self, agent: Agent, memories: Sequence[NewMemory]) -> list[Outcome]:
        """Store each memory; one result an item, in order: stored, or the error that kept this one out.

        An item's error is RequestInvalid, NotFound (what it supersedes), Conflict or a TransientError.

        Raises:
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: the batch may have been written. Items with keys may be stored again.
        """
        cleaned = await clean(agent, memories)
        places = places_of_first([item.memory for item in cleaned], agent)
        distinct = list(dict.fromkeys(places))
        drafts = await self._drafting.draft(agent, [cleaned[place] for place in distinct])
        written: list[Outcome] = []
        try:
            written = await self._write(agent, drafts)
        finally:
            await self._windows.settle(agent, _changed(drafts, written))
            for memory in memories:
                agent.sizes.forget(memory.user_id)
        if moved := _moved(written):
            raise moved
        outcomes = dict(zip(distinct, written, strict=True))
        told = [outcomes[first] if first == place else repeated(outcomes[first]) for place, first in enumerate(places)]
        return [_warned(outcome, item.warnings) for outcome, item in zip(told, cleaned, strict=True)]

    async def _write(self, agent: Agent, drafts: Sequence[Draft | AgentMemoryError]) -> list[Outcome]:
        """Write drafts by the rules that they are under; those with a predecessor one after the other."""
        ready = [draft for draft in drafts if isinstance(draft, Draft)]
        outcomes = await self._put_plain(agent, [draft for draft in ready if draft.rule == "plain"])
        with midway() if outcomes else nullcontext():
            outcomes |= await self._put_keyed(agent, [draft for draft in ready if draft.rule == "keyed"])
        with midway() if outcomes else nullcontext():
            outcomes |= await self._duplicates.store(agent, [draft for draft in ready if draft.rule == "once"])
        outcomes |= await self._identities.store(agent, [draft for draft in ready if draft.rule == "identity"])
        for draft in ready:
            if draft.rule == "chain":
                outcomes[draft.place] = await self._join_or_refuse(agent, draft)
        return [_told(draft, outcomes) if isinstance(draft, Draft) else draft for draft in drafts]

    async def _put_plain(self, agent: Agent, drafts: Sequence[Draft]) -> dict[int, Outcome]:
        refused = await put(agent, drafts)
        return {draft.place: refused.get(draft.record.id) or stored_of(draft.record.id) for draft in drafts}

    async def _put_keyed(self, agent: Agent, drafts: Sequence[Draft]) -> dict[int, Outcome]:
        """Write what is not there yet; what keeps a draft from being the memory under its key is its outcome."""
        if not drafts:
            return {}
        refused: dict[str, AgentMemoryError] = dict(await put(agent, drafts, insert_only=True))
        with midway():
            ids = [draft.record.id for draft in drafts if draft.record.id not in refused]
            points = await agent.store.retrieve(agent.alias, ids, keys=_COMPARED_KEYS)
        rows = {point["id"]: point["payload"] for point in points}
        for draft in drafts:
            if conflict := other_request(rows.get(draft.record.id), draft.record):
                refused[draft.record.id] = conflict
        return {draft.place: refused.get(draft.record.id) or stored_of(draft.record.id) for draft in drafts}

    async def _join_or_refuse(self, agent: Agent, draft: Draft) -> Outcome:
        try:
            return await self._join(agent, draft)
        except AgentMemoryError as error:
            return error

    async def _join(self, agent: Agent, draft: Draft) -> Stored:
        """Write a memory that supersedes another."""
        record = draft.record
        before = await read_row(agent, record.id) if record.request_hash else None
        if before is None:
            await check_predecessor(agent, record, self._chains, self._clock.now_ms())
            await check_hierarchy(agent, record)
            await agent.store.upsert(agent.alias, [draft.point(agent)], insert_only=True, strong=True)
        with midway():
            row = before or await read_row(agent, record.id)
            if conflict := other_request(row, record):
                raise conflict
            # Somebody else may have given it up already.
            if row is None or TOMBSTONE_KEY in row or (row.get("pending") and not await self._chains.join(agent, row)):
                raise superseded(record.supersedes_id)
        return stored_of(record.id, record.supersedes_id)


def _changed(drafts: Sequence[Draft | AgentMemoryError], outcomes: Sequence[Outcome]) -> Iterable[str | None]:
    """Yield the memories whose sessions' keyword texts may have to follow."""
    for draft in drafts:
        if isinstance(draft, Draft):
            yield draft.record.supersedes_id
            yield draft.record.id if draft.words and draft.words.order is not None else None
    for draft, outcome in zip(drafts, outcomes, strict=False):
        if isinstance(draft, Draft) and isinstance(outcome, Stored) and draft.rule != "plain":
            yield from (outcome.id, outcome.supersedes)


def _moved(outcomes: Sequence[Outcome]) -> CollectionMoved | None:
    """Return that the agent has to be opened again, if it may be: nothing of the batch was written."""
    if any(isinstance(outcome, Stored | OutcomeUnknown) for outcome in outcomes):
        return None
    return next((outcome for outcome in outcomes if isinstance(outcome, CollectionMoved)), None)


def _warned(outcome: Outcome, warnings: tuple[str, ...]) -> Outcome:
    return replace(outcome, warnings=warnings + outcome.warnings) if isinstance(outcome, Stored) else outcome


def _told(draft: Draft, outcomes: Mapping[int, Outcome]) -> Outcome:
    """Return a draft's outcome with what its writer should know."""
    return _warned(outcomes[draft.place], draft.warnings)
