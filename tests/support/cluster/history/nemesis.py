"""Faults and moves during a run: memories are moved; processes are killed, paused, and get wrong clocks."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from tests.support.cluster.history.world import HistoryWorld, ManagedProcess
from tests.support.cluster.traffic.model import Span, Timeline
from tests.support.cluster.workspace import conditions_of, is_observed, is_ready

SNAPSHOT, RESTORE = "MemorySnapshot", "MemoryRestore"
MOVES = ("swap", "rollback", "swap", "in_place", "rebuild", "takeover", "rollback")
BREAKS = ("kill api", "pause api", "kill operator", "pause operator", "kill engine", "pause engine", "clock")
# Some pauses exceed a limit: the timeout of calls to the engine, the API's lease, or the operator's lease.
PAUSED_S = {"api": (2.0, 7.0), "operator": (4.0, 18.0), "engine": (1.0, 8.0)}
KILLED_S = (0.2, 2.0)
PAUSE_S = (1.0, 5.0)
MOVED_WITHIN_S = 240.0
POLL_S = 0.1
# More steps than the longest run needs.
MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        what: Kind of fault and affected part.
        after_s: Pause before it, in seconds.
        for_s: Duration of the fault, in seconds.
        number: Selects one of the part's processes.
    """

    what: str
    after_s: float
    for_s: float
    number: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Moves and faults of a run, determined by its seed."""

    moves: tuple[tuple[str, float], ...]
    breaks: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int, moves: Sequence[str] = MOVES, breaks: Sequence[str] = BREAKS) -> "Schedule":
        """Return the schedule of a seed: equal numbers of each kind, in an order that depends on the seed."""
        chance = random.Random(f"schedule {seed}")
        return cls(
            tuple((move, chance.uniform(0.3, 3.0)) for move in _dealt(chance, moves)),
            tuple(_break(chance, what) for what in _dealt(chance, breaks)),
        )


def _dealt(chance: random.Random, kinds: Sequence[str]) -> list[str]:
    """Return the kinds in rounds; each round contains all of them in random order."""
    dealt: list[str] = []
    while kinds and len(dealt) < MAX_STEPS:
        dealt += chance.sample(kinds, len(kinds))
    return dealt


def _break(chance: random.Random, what: str) -> Fault:
    part = what.split()[-1]
    times = PAUSED_S.get(part, (3.0, 10.0)) if not what.startswith("kill") else KILLED_S
    return Fault(what, chance.uniform(*PAUSE_S), chance.uniform(*times), chance.randrange(6))


class Breaker:
    """Breaks parts one after another, and repairs them.

    Run it in the thread that started the processes: they die with that thread.
    """

    def __init__(self, world: HistoryWorld, breaks: Sequence[Fault]) -> None:
        self._world, self._breaks = world, breaks
        self._until = 0.0
        self.done: list[str] = []

    def run(self, seconds: float) -> None:
        """Break one part after another for at most `seconds`. Each is repaired before the next one breaks."""
        self._until = time.monotonic() + seconds
        for each in self._breaks:
            self._rest(each.after_s)
            if time.monotonic() >= self._until:
                return
            self._world.revive()
            self._break(each)
        self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the run."""
        time.sleep(max(0.0, min(seconds, self._until - time.monotonic())))

    def _break(self, each: Fault) -> None:
        verb, _, kind = each.what.partition(" ")
        parts = {"api": self._world.apis, "operator": self._world.operators, "engine": [self._world.engine]}
        if verb == "clock":
            either = [*self._world.apis, *self._world.operators]
            self._shift(either[each.number % len(either)], each.for_s)
        else:
            part = parts[kind][each.number % len(parts[kind])]
            hurt, mend = self._verbs(verb)
            hurt(part)
            self._rest(each.for_s)
            mend(part)
        self.done.append(each.what)

    def _verbs(self, verb: str) -> tuple[Callable[[ManagedProcess], None], Callable[[ManagedProcess], None]]:
        world = self._world
        return (world.kill, world.start) if verb == "kill" else (world.pause, world.resume)

    def _shift(self, part: ManagedProcess, for_s: float) -> None:
        """Set the wall clock of a process ahead, and back."""
        self._world.journal.record_event(f"clock of {part.name} ahead")
        part.program.toggle_clock()
        self._rest(for_s)
        part.program.toggle_clock()
        self._world.journal.record_event(f"clock of {part.name} as before")


class Mover(threading.Thread):
    """Moves the agent's memories, one move after another, and records the results."""

    def __init__(self, world: HistoryWorld, moves: Sequence[tuple[str, float]]) -> None:
        super().__init__(name="mover", daemon=True)
        self._world, self._moves = world, moves
        self._workspace, self._journal = world.workspace, world.journal
        self._count = 0
        self._fit: list[str] = []
        self._last_swap: str | None = None
        self._is_dot = False
        self.timeline = Timeline(world.journal.begun)
        self.is_over = threading.Event()
        self.done: list[str] = []

    def run(self) -> None:
        try:
            for move, rest_s in self._moves:
                if self.is_over.wait(rest_s):
                    break
                getattr(self, move)()
        except Exception as exc:
            self._journal.record_fault(f"the mover died: {exc!r}")
            raise

    def snapshot(self) -> None:
        """Take a snapshot. If it succeeds, record it in the timeline."""
        self._count += 1
        name, begun = f"snapshot-{self._count}", time.monotonic()
        self._journal.record_event(f"{name} is asked for")
        self._call(lambda: self._workspace.create_snapshot(name, verify="None"))
        if self._succeeds(SNAPSHOT, name):
            ended = time.monotonic()
            self._journal.record_event(f"{name} is made")
            self.timeline.snapshot(name, Span(begun, ended))
            self._fit.append(name)

    def swap(self) -> None:
        """Restore a snapshot into a new collection."""
        if (restored := self._restore("Swap")) is not None:
            name, snapshot, begun, ended = restored
            self.timeline.restore(snapshot, self._world.aliases.moves_since(begun)[-1], calm=ended)
            self._last_swap = name
            self.done.append("swap")

    def in_place(self) -> None:
        """Restore a snapshot into the live collection."""
        if (restored := self._restore("InPlace")) is not None:
            _, snapshot, begun, ended = restored
            self.timeline.restore(snapshot, Span(begun, ended), calm=ended)
            self._last_swap = None
            self.done.append("in place")

    def rollback(self) -> None:
        """Roll the last swap back. Swap if there is none, or if the memories were moved since."""
        if self._last_swap is None:
            self.swap()
            return
        name, self._last_swap, begun = self._last_swap, None, time.monotonic()
        self._journal.record_event(f"rollback of {name} is asked for")
        self._call(lambda: self._workspace.annotate(name, of=RESTORE, rollback="yes"))
        if self._comes(RESTORE, name, "RolledBack", "True"):
            self._journal.record_event(f"{name} is rolled back")
            self.timeline.roll_back(self._world.aliases.moves_since(begun)[-1], calm=time.monotonic())
            self.done.append("rollback")

    def rebuild(self) -> None:
        """Change a setting that requires another collection. The memories are copied."""
        self._journal.record_event("rebuild is asked for")
        self._is_dot = not self._is_dot
        self._call(lambda: self._workspace.patch(index={"distance": "Dot" if self._is_dot else "Cosine"}))
        # Earlier snapshots do not fit the new collection.
        self._fit, self._last_swap = [], None
        if self._wait(self._is_rebuilt, "the end of the rebuild"):
            self._journal.record_event("rebuilt")
            self.done.append("rebuild")

    def takeover(self) -> None:
        """Delete the agent's object and let another one take its memories over unchanged."""
        uid = self._workspace.must_get()["metadata"]["uid"]
        self._journal.record_event("takeover is asked for")
        self._drop_accesses()
        self._call(self._workspace.delete)
        if not self._wait(lambda: self._workspace.get() is None, "the end of the object"):
            return
        self._call(lambda: self._world.create_agent(is_dot=self._is_dot, takeover=uid))
        self._fit, self._last_swap = [], None
        if self._wait(lambda: is_ready(self._workspace.must_get()), "the takeover"):
            self._drop_accesses()
            self._journal.record_event("taken over")
            self.done.append("takeover")

    def _drop_accesses(self) -> None:
        """Record that processes drop unwritten accesses of a deleted agent, as if they were killed."""
        for part in self._world.apis:
            self._journal.record_kill(part.name)

    def _restore(self, mode: str) -> tuple[str, str, float, float] | None:
        """Restore a snapshot; return the names of restore and snapshot, and the start and end times.

        None if it failed, or if no snapshot fits the live collection.
        """
        if not self._fit or self._count % 2:
            self.snapshot()
            self.is_over.wait(2.0)
        if not self._fit:
            return None
        self._count += 1
        name, snapshot = f"restore-{self._count}", self._fit[-1 - (self._count % 3) % len(self._fit)]
        begun = time.monotonic()
        self._journal.record_event(f"{name} of {snapshot} {mode} is asked for")
        source = {"snapshotRef": {"name": snapshot}}
        self._call(lambda: self._workspace.create_restore(name, source, mode=mode))
        if not self._succeeds(RESTORE, name):
            return None
        self._journal.record_event(f"{name} is done")
        return name, snapshot, begun, time.monotonic()

    def _is_rebuilt(self) -> bool:
        document = self._workspace.must_get()
        state = (document["status"].get("rebuild") or {}).get("state")
        return (
            is_observed(document) and conditions_of(document).get("InSync", "").startswith("True") and state == "Done"
        )

    def _succeeds(self, kind: str, name: str) -> bool:
        return self._comes(kind, name, "Succeeded", "True")

    def _comes(self, kind: str, name: str, condition: str, wanted: str) -> bool:
        """Wait for the end of a job; return whether the condition has the expected status."""

        def ended() -> str:
            found = conditions_of(self._workspace.must_get(name, kind)).get(condition, "")
            return found if found.startswith(("True", "False")) else ""

        came = self._wait(ended, f"{condition} of {name}")
        if came and not came.startswith(wanted):
            self._journal.record_event(f"{name} came to {condition} {came}")
        return came.startswith(wanted) if came else False

    def _wait(self, holds: Callable[[], object], what: str) -> str:
        until = time.monotonic() + MOVED_WITHIN_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError, AssertionError):
                if found := holds():
                    return str(found)
            time.sleep(POLL_S)
        self._journal.record_fault(f"{what} did not come within {MOVED_WITHIN_S:.0f} s")
        self.is_over.set()
        return ""

    @staticmethod
    def _call(call: Callable[[], None]) -> None:
        for _ in range(20):
            with contextlib.suppress(httpx.TransportError):
                call()
                return
            time.sleep(0.5)
