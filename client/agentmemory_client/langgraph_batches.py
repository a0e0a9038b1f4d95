"""Plan a batch of LangGraph operations, split its writes into requests, and merge concurrent batches."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.store.base import Op, PutOp, Result

from agentmemory_client.item_calls import NewItem

Outcome = Result | Exception

BATCH_REJECTED = frozenset({404, 405, 413, 422})
"""Statuses that concern a batch request as a whole: each of its items is then written by a request of its own.

The batch is too large or contains an item that the API rejects, or the API is of a version without batches.
"""

# Limits of one request. A larger one would be slow; the API accepts bodies up to 16 MiB with 500,000 JSON values.
MAX_PUTS, MAX_PUT_CHARS, MAX_PUT_VALUES = 250, 1 << 21, 1 << 18


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations of a batch to carry out.

    Attributes:
        reads, writes: Operations by their index in the batch. Equal reads are done once; of several writes of a key
            only the last is done.
        source_index: For each operation of the batch, the index of the operation that supplies its outcome.
    """

    reads: Mapping[int, Op]
    writes: Mapping[int, PutOp]
    source_index: Sequence[int]

    def outcomes(self, done: Mapping[int, Outcome]) -> list[Outcome]:
        """Return the outcome of each operation of the batch, in order.

        Args:
            done: Outcomes of the reads and writes, by index.
        """
        return [done[place] for place in self.source_index]


def plan_batch(ops: Sequence[Op]) -> Plan:
    """Plan the operations of a batch: the distinct reads, and the last write of each key."""
    last = {(op.namespace, op.key): place for place, op in enumerate(ops) if isinstance(op, PutOp)}
    writes = {place: op for place in last.values() if isinstance(op := ops[place], PutOp)}
    reads: dict[int, Op] = {}
    first: dict[Op, int] = {}
    place_of = []
    for place, op in enumerate(ops):
        if isinstance(op, PutOp):
            place_of.append(last[op.namespace, op.key])
            continue
        place_of.append(first.setdefault(op, place) if _is_hashable(op) else place)
        if place_of[-1] == place:
            reads[place] = op
    return Plan(reads, writes, place_of)


def results_or_raise(outcomes: Sequence[Outcome]) -> list[Result]:
    """Return the results, or raise the first error with a note of how many other operations failed."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if not errors:
        return [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    if more := sum(error is not errors[0] for error in errors):
        errors[0].add_note(f"{more} more operations of the batch of {len(outcomes)} failed")
    raise errors[0]


def split_puts(items: Mapping[int, NewItem]) -> Iterator[dict[int, NewItem]]:
    """Split the items into parts that fit into one request each."""
    part: dict[int, NewItem] = {}
    characters = pieces = 0
    for place, item in items.items():
        text = json.dumps(item["metadata"], ensure_ascii=False)
        # Every string has two quotes. Escaped quotes within strings count too: the estimate is on the safe side.
        more = (len(text) + len(item["content"]), text.count('"') // 2 + text.count("{") + text.count("[") + 16)
        if part and (
            len(part) >= MAX_PUTS or characters + more[0] > MAX_PUT_CHARS or pieces + more[1] > MAX_PUT_VALUES
        ):
            yield part
            part, characters, pieces = {}, 0, 0
        part[place] = item
        characters, pieces = characters + more[0], pieces + more[1]
    if part:
        yield part


@dataclass(slots=True)
class _Batch:
    """Operations that concurrent callers have submitted.

    Attributes:
        waiting_callers: Number of callers that still wait for outcomes.
    """

    task: asyncio.Task[list[Outcome]]
    ops: list[Op] = field(default_factory=list)
    waiting_callers: int = 0


class BatchMerger:
    """Merges operations that are submitted in the same iteration of the event loop into one batch.

    Args:
        perform: Carries out operations; returns one outcome for each, in order.
    """

    def __init__(self, perform: Callable[[Sequence[Op]], Awaitable[list[Outcome]]]) -> None:
        self._perform = perform
        self._open: _Batch | None = None

    async def outcomes(self, ops: Sequence[Op]) -> list[Outcome]:
        """Carry out operations together with those of concurrent callers; return one outcome for each, in order.

        A batch without remaining callers is cancelled.
        """
        batch, loop = self._open, asyncio.get_running_loop()
        if batch is None or batch.task.get_loop() is not loop or batch.task.done():
            batch = self._open = _Batch(loop.create_task(self._run()))
        first = len(batch.ops)
        batch.ops += ops
        batch.waiting_callers += 1
        try:
            return (await asyncio.shield(batch.task))[first : first + len(ops)]
        finally:
            batch.waiting_callers -= 1
            if not batch.waiting_callers:
                batch.task.cancel()
                self._open = None if self._open is batch else self._open

    async def _run(self) -> list[Outcome]:
        # Yields once to the event loop, so all callers that are ready can add their operations.
        await asyncio.sleep(0)
        batch, self._open = self._open, None
        return await self._perform(batch.ops if batch else ())


def _is_hashable(op: Any) -> bool:
    try:
        hash(op)
    except TypeError:
        return False
    return True
