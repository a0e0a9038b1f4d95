"""Model of merges: writers, merges, deletions, cleanups and sweeps that advance one engine call at a time and may die.

Invariant: no memory has two successors that name it. After a sweep, every link has its reverse link, and every stored
memory is a head or has a path to one.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.removals import RemovalBatch
from agentmemory_operator.lifecycle.rules.cleanup_rules import RemovalReason
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, SIZE, settings_of
from tests.support.engine.merges import merge_memories
from tests.support.engine.point_memory import PointMemory
from tests.support.engine.stepping import MAX_ALIVE, Process, SteppingMachine

TYPES = (MemoryType("note", None),)
VECTOR = [1.0] * SIZE


def note_fields(content: str) -> dict[str, Any]:
    """Return the arguments of a note; the key gives it the same id in every run."""
    return {"type": "note", "vector": VECTOR, "idempotency_key": content}


class Merging(SteppingMachine):
    """Notes that are superseded, merged, deleted and removed."""

    def __init__(self) -> None:
        self.store = PointMemory(lists_by_id=False)
        super().__init__(settings_of("model", ranking=replace(EVERYTHING, types=TYPES)), self.store)
        self.ended: list[Process] = []
        self.counter = 0
        for _ in range(4):
            content = self.content()
            self.run(self.world.add(content, **note_fields(content)))

    def content(self) -> str:
        self.counter += 1
        return f"v{self.counter}"

    def note_end(self, process: Process) -> None:
        self.ended.append(process)

    def living(self) -> list[Json]:
        rows = [row for row in self.store.payloads.values() if TOMBSTONE_KEY not in row]
        return sorted(rows, key=lambda row: str(row["id"]))

    def heads(self) -> list[Json]:
        return [row for row in self.living() if not row.get("pending") and not row.get("supersededById")]

    @precondition(lambda self: self.has_room and len(self.heads()) > 1)
    @rule(first=st.integers(0, 9), count=st.integers(2, 4))
    def merge(self, first: int, count: int) -> None:
        heads = self.heads()
        ids = list(dict.fromkeys(heads[(first + n) % len(heads)]["id"] for n in range(count)))
        content = self.content()
        self.start(lambda world: merge_memories(world, content, *ids, type="note", vector=VECTOR), content)

    @precondition(lambda self: self.has_room and self.heads())
    @rule(choice=st.integers(0, 9))
    def supersede(self, choice: int) -> None:
        heads, content = self.heads(), self.content()
        before = heads[choice % len(heads)]["id"]
        self.start(lambda world: world.try_add(content, supersedes=before, **note_fields(content)), content)

    @precondition(lambda self: self.has_room)
    @rule()
    def add(self) -> None:
        content = self.content()
        self.start(lambda world: world.try_add(content, **note_fields(content)), content)

    @precondition(lambda self: self.has_room and len(self.living()) > 2)
    @rule(choice=st.integers(0, 20))
    def delete(self, choice: int) -> None:
        rows = self.living()
        memory_id = rows[choice % len(rows)]["id"]
        self.start(lambda world: delete_head(world.agent, memory_id, user_id="u"))

    @precondition(lambda self: self.has_room and any(row.get("supersededById") for row in self.living()))
    @rule(choice=st.integers(0, 20))
    def remove_earlier(self, choice: int) -> None:
        """Remove an earlier version, like a cleanup."""
        rows = [row for row in self.living() if row.get("supersededById")]
        batch = RemovalBatch(((deepcopy(rows[choice % len(rows)]), RemovalReason.CHAIN),))
        self.start(lambda world: Cleanup(world.clock, min_pause_s=0).remove_units(world.agent, [batch]))

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
    def successors_exist(self) -> None:
        rows = self.store.payloads
        for row in self.living():
            successor = rows.get(row.get("supersededById") or "")
            assert successor is not None or not row.get("supersededById"), row

    def end(self) -> None:
        """Complete all processes, sweep, and check the result."""
        self.finish_all(self.successors_exist)
        for _ in range(2):
            self.world.clock.move(ms=SWEEP_AFTER_MS + 1)
            self.run(chains.sweep(self.world.agent))
        self.check_links()
        self.check_outcomes()

    def check_links(self) -> None:
        rows = {row["id"]: row for row in self.living()}
        assert not any(row.get("pending") for row in self.store.payloads.values())
        for id_, row in rows.items():
            for before in predecessors(row):
                assert before not in rows or rows[before].get("supersededById") == id_, (before, row)
            if after := row.get("supersededById"):
                assert after in rows, row
                assert id_ in predecessors(rows[after]), (row, rows[after])

    def check_outcomes(self) -> None:
        for process in self.ended:
            outcome = process.task.result() if process.task.exception() is None else process.task.exception()
            allowed = int | str | StoredMemory | Conflict | NotFound | Counter
            assert outcome is None or isinstance(outcome, allowed), outcome


TestMerging = Merging.TestCase
TestMerging.settings = settings(stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
