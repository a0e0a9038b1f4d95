"""Model of writes to memories: writers, deletions and sweeps that advance one engine call at a time and may die.

Invariant: there are never two heads. After a sweep, one unbroken chain contains every stored version once.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.removals import RemovalBatch
from agentmemory_operator.lifecycle.rules.cleanup_rules import RemovalReason
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, SIZE, settings_of
from tests.support.engine.point_memory import PointMemory
from tests.support.engine.stepping import MAX_ALIVE, Process, SteppingMachine

TYPES = (MemoryType("fact", None, supersede_by="key"), MemoryType("note", None))
KEYED: dict[str, Any] = {"type": "fact", "key": "k"}
VECTOR = [1.0] * SIZE


class Writing(SteppingMachine):
    """One identity (`fact` with key k) and one chain by id (`note`) under writers, deletions, crashes and sweeps."""

    def __init__(self) -> None:
        self.store = PointMemory(lists_by_id=False)
        ranking = replace(EVERYTHING, types=TYPES)
        super().__init__(replace(settings_of("model", ranking=ranking), deduplicate=True), self.store)
        self.ended: list[Process] = []
        self.counter = self.unkeyed = 0
        self.may_be_deleted: set[str] = set()
        self.requests: dict[str, set[str]] = {"first note": {""}}
        self.run(self.world.add("first note", type="note", vector=VECTOR))

    @initialize(backwards=st.booleans())
    def read_in_this_order(self, backwards: bool) -> None:
        self.store.reads_backwards = backwards

    def note_end(self, process: Process) -> None:
        self.ended.append(process)

    def rows(self, type_: str) -> list[Json]:
        """Return the rows that are not tombstones."""
        return [row for row in self.store.payloads.values() if row["type"] == type_ and TOMBSTONE_KEY not in row]

    def heads(self, type_: str) -> list[Json]:
        return [row for row in self.rows(type_) if not row.get("pending") and not row.get("supersededById")]

    @precondition(lambda self: self.has_room)
    @rule(is_keyed=st.booleans(), author=st.sampled_from(["a", "b"]), again=st.booleans())
    def write_by_key(self, is_keyed: bool, author: str, again: bool) -> None:
        self.counter += not again
        self.unkeyed += not is_keyed
        content = f"v{self.counter}"
        key = f"i{self.counter}{author}" if is_keyed else None
        self.requests.setdefault(content, set()).add(key or f"request {self.unkeyed}")
        memory = KEYED | {"author": author, "idempotency_key": key, "vector": VECTOR}
        self.start(lambda world: world.try_add(content, **memory), content)

    @precondition(lambda self: self.has_room and self.heads("note"))
    @rule()
    def write_by_id(self) -> None:
        (head,) = self.heads("note")
        self.counter += 1
        content = f"v{self.counter}"
        self.requests[content] = {""}
        self.start(lambda world: world.try_add(content, type="note", supersedes=head["id"], vector=VECTOR), content)

    @precondition(lambda self: self.has_room and len(self.rows("fact")) + len(self.rows("note")) > 1)
    @rule(choice=st.integers(0, 20))
    def delete(self, choice: int) -> None:
        rows = sorted((row for row in self.rows("fact") + self.rows("note")), key=lambda row: row["createdAt"])
        memory_id = rows[choice % len(rows)]["id"]
        self.may_be_deleted.add(memory_id)
        self.start(lambda world: delete_head(world.agent, memory_id, user_id="u"))

    @precondition(lambda self: self.has_room and self.earlier())
    @rule(choice=st.integers(0, 20))
    def remove_earlier(self, choice: int) -> None:
        """Remove an earlier version, like the cleanup of long chains."""
        rows = self.earlier()
        row = deepcopy(rows[choice % len(rows)])
        self.may_be_deleted.add(row["id"])
        batch = RemovalBatch(((row, RemovalReason.CHAIN),))
        self.start(lambda world: Cleanup(world.clock, min_pause_s=0).remove_units(world.agent, [batch]))

    def earlier(self) -> list[Json]:
        return [row for row in self.rows("fact") + self.rows("note") if row.get("supersededById")]

    @precondition(lambda self: self.has_room)
    @rule()
    def sweep(self) -> None:
        self.world.clock.move(ms=SWEEP_AFTER_MS + 1)
        self.start(lambda world: chains.sweep(world.agent))

    @precondition(lambda self: self.processes)
    @rule(choice=st.integers(0, MAX_ALIVE - 1), calls=st.sampled_from([1, 1, 1, 2, 5]))
    def go_on(self, choice: int, calls: int) -> None:
        self.advance(choice, calls)

    @precondition(lambda self: self.processes)
    @rule(choice=st.integers(0, MAX_ALIVE - 1))
    def die(self, choice: int) -> None:
        self.kill(choice)

    @invariant()
    def at_most_one_head(self) -> None:
        for type_ in ("fact", "note"):
            assert len(self.heads(type_)) <= 1, self.heads(type_)

    def end(self) -> None:
        """Complete all processes, sweep, and check the result."""
        self.finish_all(self.at_most_one_head)
        for _ in range(2):
            self.world.clock.move(ms=SWEEP_AFTER_MS + 1)
            self.run(chains.sweep(self.world.agent))
        for type_ in ("fact", "note"):
            self.check_chain(type_)
        self.check_outcomes()

    def check_chain(self, type_: str) -> None:
        rows = {row["id"]: row for row in self.rows(type_)}
        assert not any(row.get("pending") for row in rows.values())
        links = {row["supersededById"]: id_ for id_, row in rows.items() if row.get("supersededById")}
        heads = self.heads(type_)
        assert len(heads) == (1 if rows else 0), rows
        chain = []
        at = heads[0]["id"] if heads else None
        while at is not None:
            chain.append(at)
            before = links.get(at)
            assert before is None or rows[at]["supersedesId"] == before
            at = before
        assert sorted(chain) == sorted(rows)
        contents = [rows[id_]["content"] for id_ in chain]
        assert all(contents.count(content) <= len(self.requests[content]) for content in contents)

    def check_outcomes(self) -> None:
        for process in self.ended:
            outcome = process.task.result() if process.task.exception() is None else process.task.exception()
            assert outcome is None or isinstance(outcome, int | StoredMemory | Conflict | NotFound | Counter), outcome
            if isinstance(outcome, StoredMemory) and outcome.id not in self.may_be_deleted:
                row = self.store.payloads[outcome.id]
                assert (TOMBSTONE_KEY not in row, row["content"]) == (True, process.content)


TestWriting = Writing.TestCase
TestWriting.settings = settings(stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
