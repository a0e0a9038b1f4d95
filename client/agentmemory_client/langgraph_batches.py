"""Operations of LangGraph's that are carried out together: which of them, in which order, and in which calls."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.store.base import Op, PutOp, Result

from agentmemory_client.item_calls import NewItem

Outcome = Result | Exception

ABOUT_THE_CALL = frozenset({404, 405, 413, 422})
"""Where a call of several items is answered so, each is put by itself: they are too much for one call, or an API of an
earlier version does not know it."""

# Of a call: more would take long, and a body may have 16 MiB and half a million parts.
PUTS, PUT_CHARACTERS, PUT_PARTS = 250, 1 << 21, 1 << 18


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be done for a batch.

    Attributes:
        reads, writes: by their places; equal reads are done once, and of several writes of a key only the last.
        place_of: where the outcome of the operation at each place comes from.
    """

    reads: Mapping[int, Op]
    writes: Mapping[int, PutOp]
    place_of: Sequence[int]

    def outcomes(self, done: Mapping[int, Outcome]) -> list[Outcome]:
        """The outcome of each operation, in order."""
        return [done[place] for place in self.place_of]


def plan_of(ops: Sequence[Op]) -> Plan:
    """The reads, then the writes, of operations in their order."""
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


def results_of(outcomes: Sequence[Outcome]) -> list[Result]:
    """The results; the first error is raised, with the number of the others."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if not errors:
        return [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    if more := sum(error is not errors[0] for error in errors):
        errors[0].add_note(f"{more} more operations of the batch of {len(outcomes)} failed")
    raise errors[0]


def parts_of(items: Mapping[int, NewItem]) -> Iterator[dict[int, NewItem]]:
    """Yield the items in parts that one call takes."""
    part: dict[int, NewItem] = {}
    characters = pieces = 0
    for place, item in items.items():
        text = json.dumps(item["metadata"], ensure_ascii=False)
        # Every string has two quotes; those within one count too, which is more than is needed.
        more = (len(text) + len(item["content"]), text.count('"') // 2 + text.count("{") + text.count("[") + 16)
        if part and (len(part) >= PUTS or characters + more[0] > PUT_CHARACTERS or pieces + more[1] > PUT_PARTS):
            yield part
            part, characters, pieces = {}, 0, 0
        part[place] = item
        characters, pieces = characters + more[0], pieces + more[1]
    if part:
        yield part


@dataclass(slots=True)
class _Batch:
    """Operations that callers have begun together.

    Attributes:
        waiting: callers that still want an outcome.
    """

    task: asyncio.Task[list[Outcome]]
    ops: list[Op] = field(default_factory=list)
    waiting: int = 0


class Together:
    """Carries out in one batch what is begun in one turn of the event loop.

    Args:
        perform: carries out operations; returns one outcome each, in order.
    """

    def __init__(self, perform: Callable[[Sequence[Op]], Awaitable[list[Outcome]]]) -> None:
        self._perform = perform
        self._open: _Batch | None = None

    async def outcomes(self, ops: Sequence[Op]) -> list[Outcome]:
        """Carry out operations with those of others; a batch that nobody waits for any more is cancelled."""
        batch, loop = self._open, asyncio.get_running_loop()
        if batch is None or batch.task.get_loop() is not loop or batch.task.done():
            batch = self._open = _Batch(loop.create_task(self._run()))
        first = len(batch.ops)
        batch.ops += ops
        batch.waiting += 1
        try:
            return (await asyncio.shield(batch.task))[first : first + len(ops)]
        finally:
            batch.waiting -= 1
            if not batch.waiting:
                batch.task.cancel()
                self._open = None if self._open is batch else self._open

    async def _run(self) -> list[Outcome]:
        # All that is ready runs once before.
        await asyncio.sleep(0)
        batch, self._open = self._open, None
        return await self._perform(batch.ops if batch else ())


def _is_hashable(op: Any) -> bool:
    try:
        hash(op)
    except TypeError:
        return False
    return True
