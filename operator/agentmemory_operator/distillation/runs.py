"""One distillation run: a model reads a conversation or the versions of a memory, and its accepted output is stored.

1. Take the lease on the row that requests the run, by compare-and-set. Stop if another process has it.
2. Read the sources, and send them to the model in parts.
3. Renew the lease, and check that the sources still exist.
4. Store the memories, and check the sources again. If one is missing, delete the new memories.
5. Clear the request and the lease.

The lease lasts one minute longer than one model call may take. After a crash, any process starts the run again once the
lease has expired. Ids of stored memories are derived from the run and their place in its answers, so a repeated step
stores at most one memory at each place.

Facts from a conversation become additional memories. The summary of a chain becomes its newest version
(`consolidation/collapse.py`). That restarts the version count, so the chain is read again only after as many further
versions.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentmemory_operator.agents.checks import find_type
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.collapse import (
    DISTILLATION_SOURCE,
    collapse,
    collapsed_id,
    complete_collapse,
    was_written,
)
from agentmemory_operator.consolidation.plan_executor import store_proposal
from agentmemory_operator.consolidation.rules.batch_plan import Fact
from agentmemory_operator.consolidation.rules.prompt_material import build_instructions, render_material
from agentmemory_operator.distillation.rules.model_output import (
    CHAIN_TASK,
    HEAD_SCHEMA,
    MAX_ANSWER_TOKENS,
    MAX_HEAD_CHARS,
    TASK,
    DistilledFact,
    build_schema,
    distilled_types,
    newest_versions,
    parse_facts,
    parse_head,
    render_turns,
    render_versions,
    split_turns,
)
from agentmemory_operator.errors import AgentMemoryError, Conflict, ModelOutputInvalid, NotFound
from agentmemory_operator.memories.chains import contention_error, tombstone_head
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import NOT_DELETED
from agentmemory_operator.memories.rules.record import (
    DISTIL_BY_KEY,
    DISTIL_DUE_KEY,
    DISTIL_END_KEY,
    DISTIL_TRIES_KEY,
    DISTIL_UNTIL_KEY,
    TOMBSTONE_KEY,
    UPDATES_KEY,
    MemoryRecord,
    Payload,
    is_long_chain,
    record_of,
)
from agentmemory_operator.memories.stored_memories import change_and_confirm, delete_head
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

MAX_TRIES = 3
# Seconds that a lease lasts longer than one model call.
LEASE_MARGIN_S = 60
_HIDDEN = (TOMBSTONE_KEY, "pending", ZONE_KEY, "supersededById")
_MEMORY_KEY = "\x1f{run}\x1f{place}"


@dataclass(slots=True)
class DistillationResult:
    """Result of a run.

    Attributes:
        stored: Ids of the memories that the run stored.
        proposed: Number of facts that wait for an approval.
        unsourced: Number of facts dropped because they name no source or have no text; see `rules/model_output.py`.
        malformed: Number of parts of answers dropped because they do not match the schema.
        tokens_in: Tokens that the model read.
        tokens_out: Tokens that the model wrote.
        is_completed: True if the run will not be started again.
    """

    stored: list[str] = field(default_factory=list)
    proposed: int = 0
    unsourced: int = 0
    malformed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    is_completed: bool = False


class _LeaseLost(Exception):
    """Another process has the lease, or the run has no row or request any more."""


@dataclass(slots=True)
class DistillationRun:
    """Distils one conversation, or the versions of one memory.

    Attributes:
        request_row_id: Id of the row that requests the run: the last turn, or a version. A chain is collapsed only if
            this version is its head.
    """

    agent: Agent
    model: LanguageModel
    remember: Remember
    request_row_id: str
    result: DistillationResult = field(default_factory=DistillationResult)
    _mark: str = field(default_factory=lambda: secrets.token_hex(8))

    async def execute(self) -> DistillationResult:
        """Distil the sources, and return the result.

        If another process has the lease, or the request no longer exists, the result is not completed.

        Raises:
            ModelOutputInvalid: If the answer is unusable. The third unusable answer ends the run; until then, the run
                is repeated after its lease has expired.
            AgentMemoryError: If the run failed otherwise, for example because the model or Qdrant is unavailable. The
                run is repeated after its lease has expired.
        """
        try:
            row = await self._lease(begins=True)
            await self._distil(row)
        except ModelOutputInvalid as error:
            self._count(error.tokens_in, error.tokens_out)
            await self._note_failure()
            raise
        except _LeaseLost:
            return self.result
        return self.result

    @property
    def _now_ms(self) -> int:
        return self.agent.clock.now_ms()

    async def _distil(self, row: Payload) -> None:
        if row.get("undistilled"):
            await self._distil_turns(row)
        else:
            await self._collapse(row)
        await self._change(_completion_changes(row))
        self.result.is_completed = True
        await self._drop_working_memories(row.get("undistilled") or ())

    async def _distil_turns(self, row: Payload) -> None:
        record = record_of(row)
        if DISTIL_END_KEY in row:
            # Only turns of a conversation share metadata and expiry. The last memory of a session has its own.
            record = replace(record, metadata={}, expires_at=None)
        types = self._types(record)
        first = 0
        for part in split_turns(await self._turns(row)) if types else []:
            schema = build_schema(types)
            answer = parse_facts(await self._ask(TASK, render_turns(part), schema), part)
            self.result.unsourced += answer.unsourced
            await self._lease()
            await self._store(record, answer.facts, first)
            first += len(answer.facts)

    async def _collapse(self, row: Payload) -> None:
        """Replace a head by the model's summary of its newest versions, if the model may read at least two.

        A summary with a number, date or name that these versions lack is only stored as a proposal. If an earlier run
        has written the summary, complete that write instead.
        """
        agent, user_id = self.agent, row["userId"]
        if await was_written(agent, user_id, row["id"]):
            await complete_collapse(agent, user_id, row["id"])
            return
        versions = newest_versions(await self._versions(row))
        if len(versions) < 2:
            return
        fact = parse_head(await self._ask(CHAIN_TASK, render_versions(versions), HEAD_SCHEMA), versions)
        await self._lease()
        if fact is None:
            self.result.unsourced += 1
        elif fact.missing:
            await store_proposal(agent, user_id, fact, row["id"])
            self.result.proposed += 1
        elif await collapse(agent, user_id, fact, row["id"]):
            self.result.stored.append(collapsed_id(agent, user_id, row["id"]))

    async def _ask(self, task: str, rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send material to the model and return its answer."""
        material = render_material(rows, secrets.token_hex(8))
        instructions = build_instructions(task, material, schema)
        completion = await self.model.complete(instructions, material.text, schema, MAX_ANSWER_TOKENS)
        self._count(completion.tokens_in, completion.tokens_out)
        self.result.malformed += completion.dropped
        return completion.answer

    async def _drop_working_memories(self, ids: Sequence[str]) -> None:
        """Delete working memories of an ended session, now that the model has read them."""
        points = await self.agent.store.retrieve(self.agent.alias, ids)
        for row in (point["payload"] for point in points):
            if row.get("working") and self._is_expired(row):
                await tombstone_head(self.agent, row)

    def _is_expired(self, row: Payload) -> bool:
        return is_expired(row, self.agent.settings.ranking.endings, self._now_ms)

    def _types(self, record: MemoryRecord) -> tuple[MemoryType, ...]:
        ranking = self.agent.settings.ranking
        return distilled_types(ranking.types, ranking.default_type, has_session=record.session_id is not None)

    async def _versions(self, row: Payload) -> Sequence[MemoryRecord]:
        """Read the versions of a memory, oldest first. Empty unless `row` is the replaceable head of a long chain."""
        head, kind = record_of(row), find_type(self.agent, row["type"])
        is_fixed = kind is not None and (kind.immutable or kind.ends_with_session)
        is_past = head.valid_to is not None and head.valid_to <= self._now_ms
        is_head = not (head.superseded_by_id or head.pending) and is_long_chain(head.update_count)
        if not is_head or head.zone or is_fixed or is_past or self.agent.takes_vectors:
            return ()
        try:
            records = (await read_history(self.agent, head.id, user_id=head.user_id)).records
        except NotFound:
            return ()
        # Skip a longer head, which a model would have to shorten, and a row whose successor has its own request.
        is_replaceable = len(head.content) <= MAX_HEAD_CHARS and records[-1].id == head.id
        return records if is_replaceable else ()

    async def _turns(self, row: Payload) -> list[MemoryRecord]:
        """Read the turns that a model may read, in order."""
        ids = [row["id"], *(id_ for id_ in row["undistilled"] if id_ != row["id"])]
        rows = await self._rows(ids)
        turns = [record_of(rows[id_]) for id_ in row["undistilled"] if id_ in rows]
        return [turn for turn in turns if turn.user_id == row["userId"]]

    async def _rows(self, ids: Sequence[str]) -> dict[str, Payload]:
        """Return rows by id, without those that are deleted, pending, superseded or encrypted."""
        points = await self.agent.store.retrieve(self.agent.alias, ids)
        rows: list[Payload] = [point["payload"] for point in points]
        # A working memory is read only after its session ended. An unexpired one in the same slot belongs to the next
        # session.
        return {
            row["id"]: row
            for row in rows
            if not any(map(row.get, _HIDDEN)) and bool(row.get("working")) == self._is_expired(row)
        }

    async def _store(self, record: MemoryRecord, facts: Sequence[DistilledFact], first: int) -> None:
        sources = await self._rows([id_ for fact in facts for id_ in fact.source_ids])
        numbered = [
            (number, fact) for number, fact in enumerate(facts, first) if all(id_ in sources for id_ in fact.source_ids)
        ]
        for _, fact in numbered:
            if fact.missing:
                await store_proposal(self.agent, record.user_id, _fact_of(fact), run_id_of(record))
                self.result.proposed += 1
        numbered = [(number, fact) for number, fact in numbered if not fact.missing]
        if not numbered:
            return
        results = await self.remember.store(self.agent, [_memory_of(record, fact, number) for number, fact in numbered])
        stored = [outcome.id for outcome in results if isinstance(outcome, StoredMemory) and outcome.event == "ADD"]
        # Ignore a Conflict: an earlier attempt has stored a memory at this place, perhaps with another text.
        errors = [error for error in results if isinstance(error, AgentMemoryError) and not isinstance(error, Conflict)]
        await self._take_out_orphans(record, [fact for _, fact in numbered], stored)
        self.result.stored.extend(stored)
        if errors:
            raise errors[0]

    async def _take_out_orphans(self, record: MemoryRecord, facts: Sequence[DistilledFact], stored: list[str]) -> None:
        """Delete the stored memories if one of their sources was deleted or erased in the meantime."""
        source_ids = {id_ for fact in facts for id_ in fact.source_ids}
        if source_ids == (await self._rows(sorted(source_ids))).keys():
            return
        for memory_id in stored:
            try:
                await delete_head(self.agent, memory_id, user_id=record.user_id, is_admin=True)
            except (NotFound, Conflict):
                continue
        stored.clear()

    async def _lease(self, *, begins: bool = False) -> Payload:
        """Take or renew the lease; return the row after that.

        Args:
            begins: True to take the lease, False to renew it.

        Raises:
            _LeaseLost: If another process has the lease, the run is completed or its row is deleted.
        """
        settings = self.agent.settings.language_model
        model_s = settings.timeout_s if settings else 0
        until_ms = self._now_ms + (model_s + LEASE_MARGIN_S) * 1000
        return await self._change({DISTIL_BY_KEY: self._mark, DISTIL_UNTIL_KEY: until_ms}, begins=begins)

    async def _note_failure(self) -> None:
        """Count an unusable answer. The third one ends the run."""
        try:
            row = await self._lease()
            tries = (row.get(DISTIL_TRIES_KEY) or 0) + 1
            await self._change(_completion_changes(row) if tries >= MAX_TRIES else {DISTIL_TRIES_KEY: tries})
            self.result.is_completed = tries >= MAX_TRIES
        except _LeaseLost:
            return

    async def _change(self, changes: Payload, *, begins: bool = False) -> Payload:
        """Change the row that requests the run, and return it.

        Retries if the row changes concurrently, as its access count may at any time.
        """

        async def write(row: Payload | None) -> Payload | None:
            if row is None or not _is_due(row) or not self._has_lease(row, begins=begins):
                raise _LeaseLost
            return await change_and_confirm(self.agent, row, changes, NOT_DELETED)

        return await update(
            partial(read_row, self.agent, self.request_row_id), write, busy=contention_error(self.request_row_id)
        )

    def _has_lease(self, row: Payload, *, begins: bool) -> bool:
        """Return whether this run has the lease or, with `begins`, may take it."""
        if row.get(DISTIL_BY_KEY) == self._mark:
            return True
        return begins and (row.get(DISTIL_UNTIL_KEY) or 0) <= self._now_ms

    def _count(self, tokens_in: int, tokens_out: int) -> None:
        self.result.tokens_in += tokens_in
        self.result.tokens_out += tokens_out


_OVER: Payload = dict.fromkeys(("undistilled", DISTIL_DUE_KEY, DISTIL_TRIES_KEY, DISTIL_BY_KEY, DISTIL_UNTIL_KEY))


def _completion_changes(row: Payload) -> Payload:
    """Return the changes that end a run. A run over versions also resets their count."""
    return _OVER if row.get("undistilled") else _OVER | {UPDATES_KEY: None}


def _is_due(row: Payload) -> bool:
    return TOMBSTONE_KEY not in row and bool(row.get(DISTIL_DUE_KEY))


def run_id_of(record: MemoryRecord) -> str:
    """Return the id of the run that a record requests: its `conversation_id`, or its own id if it has none."""
    return record.conversation_id or record.id


def _fact_of(fact: DistilledFact) -> Fact:
    return Fact(
        content=fact.content,
        type=fact.type,
        sources=fact.source_ids,
        replaced=(),
        importance=fact.importance,
        missing=fact.missing,
        domain=fact.domain,
    )


def _memory_of(record: MemoryRecord, fact: DistilledFact, number: int) -> IncomingMemory:
    run = run_id_of(record)
    return IncomingMemory(
        metadata=record.metadata,
        expires_at=record.expires_at,
        user_id=record.user_id,
        content=fact.content,
        type=fact.type,
        importance=fact.importance,
        domain=fact.domain,
        session_id=record.session_id,
        source=DISTILLATION_SOURCE,
        source_ids=fact.source_ids,
        author=record.author,
        run_id=run,
        idempotency_key=_MEMORY_KEY.format(run=run, place=number),
    )
