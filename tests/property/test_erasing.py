"""Model of forgetting: writers, forgets, copies and restores that advance one engine call at a time and may die.

Invariant: after a completed forget, no served collection contains memories stored before it started, also after a
restore of an earlier copy. Later writes are accepted.
"""

from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from agentmemory_operator.errors import Conflict, NotFound, TransientError
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.property.test_writing import VECTOR
from tests.support.engine.agents import EVERYTHING, SIZE, settings_of
from tests.support.engine.point_memory import PointMemory
from tests.support.engine.stepping import MAX_ALIVE, Process, SteppingMachine
from tests.support.spec.documents import memory_document

TYPES = (MemoryType("fact", None, supersede_by="key"), MemoryType("note", None))
SLUG = "model"
# Longer than clocks may differ, so that later writes are distinguishable from earlier ones.
LATER_MS = 5_000
OFTEN = st.sampled_from([True, True, False])


@dataclass(slots=True)
class Collections:
    """Collections of one agent behind its alias; each is a `PointMemory`."""

    alias: str
    served: str
    physicals: dict[str, PointMemory] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(collection: str, *args: Any, **more: Any) -> Any:
            physical = self.served if collection == self.alias else collection
            return await getattr(self.physicals[physical], name)(collection, *args, **more)

        return call

    async def describe(self, collection: str) -> Json:
        return {"config": {"params": {"vectors": {"size": SIZE, "distance": "Cosine"}}}}


class Erasing(SteppingMachine):
    """One user with memories with and without a key, under writers, forgets, copies, restores and crashes."""

    def __init__(self) -> None:
        agent_settings = replace(settings_of(SLUG, ranking=replace(EVERYTHING, types=TYPES)), deduplicate=True)
        first = f"{agent_settings.alias}__1"
        self.store = Collections(
            agent_settings.alias, first, {first: PointMemory(lists_by_id=False, keeps_vectors=True)}
        )
        super().__init__(agent_settings, self.store)
        self.memory = parse_agent_memory(memory_document(SLUG))
        self.counter = self.copies = 0
        self.acknowledged: set[str] = set()
        self.tagged: set[str] = set()
        self.forgotten: set[str] = set()
        self.forgets: dict[Process, set[str]] = {}
        self.snapshot: PointMemory | None = None

    def finish(self, process: Process, is_at_once: bool) -> None:
        while is_at_once and not process.is_done:
            self.step(process)

    def note_end(self, process: Process) -> None:
        error = process.task.exception()
        assert error is None or isinstance(error, TransientError | Conflict | NotFound), error
        outcome = None if error else process.task.result()
        assert not isinstance(outcome, Exception) or isinstance(outcome, TransientError | Conflict | NotFound), outcome
        if isinstance(outcome, StoredMemory):
            self.acknowledged.add(process.content)
        if error is None:
            self.forgotten |= self.forgets.pop(process, set())

    def contents(self) -> set[str]:
        """Return the contents of the served collection, in any state."""
        return {row["content"] for row in self.store.physicals[self.store.served].payloads.values() if "content" in row}

    @precondition(lambda self: self.has_room)
    @rule(is_keyed=st.booleans(), is_tagged=st.booleans(), is_at_once=OFTEN)
    def write(self, is_keyed: bool, is_tagged: bool, is_at_once: bool) -> None:
        self.counter += 1
        content = f"v{self.counter}"
        more: dict[str, Any] = {"type": "fact", "key": "k"} if is_keyed else {"type": "note"}
        more |= {"tags": ("x",)} if is_tagged else {}
        if is_tagged:
            self.tagged.add(content)
        self.finish(self.start(lambda world: world.try_add(content, vector=VECTOR, **more), content), is_at_once)

    @precondition(lambda self: self.has_room)
    @rule(is_whole=st.booleans(), is_at_once=OFTEN)
    def forget(self, is_whole: bool, is_at_once: bool) -> None:
        filters = {} if is_whole else {"tags": "x"}
        scope = ErasureScope(user_id="u", criterion=parse_filters(filters), is_whole=is_whole)
        request = ForgetRequest(scope=scope, filters=filters)
        known = set(self.acknowledged) if is_whole else self.acknowledged & self.tagged
        process = self.start(lambda world: world.forgetting.forget(world.agent, request))
        self.forgets[process] = known
        self.finish(process, is_at_once)

    @rule()
    def wait(self) -> None:
        self.world.clock.move(ms=LATER_MS)

    @rule()
    def sweep(self) -> None:
        self.world.clock.move(ms=SWEEP_AFTER_MS + 1)
        self.run(chains.sweep(self.world.agent))

    @rule()
    def copy(self) -> None:
        self.snapshot = deepcopy(self.store.physicals[self.store.served])
        # The copy may be taken during a call, which continues in the original only.
        self.snapshot.pending_vector_deletions.clear()

    @precondition(lambda self: self.has_room)
    @rule(is_whole=st.booleans())
    def forget_copied_contents(self, is_whole: bool) -> None:
        self.copy()
        self.wait()
        self.forget(is_whole=is_whole, is_at_once=True)
        self.restore()

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def restore(self) -> None:
        """Serve the copy: later erasures are replayed on it before and after, and on the replaced collection."""
        self.copies += 1
        before, after = self.store.served, f"{self.store.alias}__{self.copies + 1}"
        assert self.snapshot is not None
        self.store.physicals[after] = deepcopy(self.snapshot)
        erasures, store = ErasureReplay(self.world.clock), self.store
        self.run(erasures.reapply(store, before, after, self.memory))  # type: ignore[arg-type]
        self.store.served = after
        self.run(erasures.reapply(store, before, after, self.memory))  # type: ignore[arg-type]
        self.run(erasures.reapply(store, after, before, self.memory))  # type: ignore[arg-type]

    @precondition(lambda self: self.processes)
    @rule(choice=st.integers(0, MAX_ALIVE - 1), calls=st.sampled_from([1, 2, 5, 20]))
    def go_on(self, choice: int, calls: int) -> None:
        self.advance(choice, calls)

    @precondition(lambda self: self.processes)
    @rule(choice=st.integers(0, MAX_ALIVE - 1))
    def die(self, choice: int) -> None:
        """Kill a process; only if the maximum number of processes is alive."""
        if not self.has_room:
            self.forgets.pop(self.kill(choice), None)

    @invariant()
    def no_forgotten_memory_is_served(self) -> None:
        assert self.contents().isdisjoint(self.forgotten)

    @invariant()
    def no_tombstone_has_a_vector(self) -> None:
        """Check at any time, because a snapshot may be taken: the engine keeps vectors that a write leaves out.

        Between two points of one call, a tombstone may have vectors that the call is about to delete.
        """
        assert {
            name: kept for name, memory in self.store.physicals.items() if (kept := memory.tombstones_with_vectors())
        } == {}

    def end(self) -> None:
        """Complete all processes. Check that no forgotten memory is served, and that new writes are visible."""
        self.finish_all()
        self.no_forgotten_memory_is_served()
        self.world.clock.move(ms=SWEEP_AFTER_MS + 1)
        self.run(chains.sweep(self.world.agent))
        for type_, more in (("fact", {"key": "k"}), ("note", {})):
            content = f"last {type_}"
            outcome = self.run(self.world.try_add(content, type=type_, vector=VECTOR, **more))
            assert isinstance(outcome, StoredMemory), outcome
            assert content in self.run(self.world.heads())


TestErasing = Erasing.TestCase
TestErasing.settings = settings(stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


def test_rewritten_key_keeps_earlier_memory_erased() -> None:
    machine = Erasing()
    machine.write(is_keyed=True, is_tagged=True, is_at_once=True)
    machine.forget_copied_contents(is_whole=False)
    machine.write(is_keyed=True, is_tagged=False, is_at_once=True)
    for _ in range(2):
        assert "v1" not in machine.contents()
        machine.restore()
    assert "v1" not in machine.contents()
    machine.teardown()


def test_emptied_point_loses_its_vectors() -> None:
    machine = Erasing()
    machine.forget(is_whole=False, is_at_once=False)
    machine.write(is_keyed=False, is_tagged=True, is_at_once=True)
    (memory,) = machine.store.physicals.values()
    observed = set()
    while machine.processes:
        machine.step(machine.processes[0])
        machine.no_tombstone_has_a_vector()
        observed.add(bool(memory.pending_vector_deletions))
    machine.teardown()

    assert observed == {False, True}
