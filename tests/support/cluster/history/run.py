"""One run of a history: clients and faults for a while, then quiescence, and the checks."""

import contextlib
import pathlib
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.history.nemesis import BREAKS, MOVES, Breaker, Mover, Schedule
from tests.support.cluster.history.world import HistoryWorld, running_world
from tests.support.cluster.traffic.audit import Row, audit, read_points, settled_points
from tests.support.cluster.traffic.journal import deduplicate
from tests.support.cluster.traffic.model import Outcome, Violation
from tests.support.cluster.traffic.pools import SharedPool
from tests.support.cluster.traffic.readers import Reads
from tests.support.cluster.traffic.witness import Witness, engine_at, explain
from tests.support.patience import wait_until

WRITERS, READERS = 3, 1
PACE_S = 0.08
QUIET_S = 3.0
ENDS_WITHIN_S = 300.0
STOPS_WITHIN_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a run.

    Attributes:
        seconds: Duration of clients and faults. Operations in progress at the end are awaited.
        plant: Fault in the API; see `process`.
        ahead_s: Shift of clocks; `lifecycle.rules.erasure.MAX_CLOCK_LEAD_MS` tolerates 2 s.
    """

    seed: int
    seconds: float
    plant: str = ""
    ahead_s: float = 1.5
    moves: Sequence[str] = MOVES
    breaks: Sequence[str] = BREAKS
    writers: int = WRITERS
    pace_s: float = PACE_S


@dataclass(slots=True)
class Report:
    """Result of a run.

    Attributes:
        refused_kept: Number of memories that were refused and yet existed at some time.
    """

    plan: Plan
    operations: Counter[str]
    moves: Counter[str]
    breaks: Counter[str]
    violations: list[Violation]
    faults: list[str]
    refusals: int
    refused_kept: int
    took_s: float
    excerpts: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.violations and not self.faults

    def __str__(self) -> str:
        plan, counts = self.plan, dict(sorted(self.operations.items()))
        head = (
            f"seed {plan.seed}{f' plant {plan.plant}' if plan.plant else ''}: {sum(counts.values())} operations in "
            f"{self.took_s:.0f} s, {sum(self.moves.values())} moves {dict(self.moves)}, {sum(self.breaks.values())} "
            f"faults {dict(self.breaks)}, {len(self.violations)} violations; superseding answered 409: "
            f"{self.refusals}, visible later: {self.refused_kept}"
        )
        kinds = Counter(violation.what.split(":")[0] for violation in self.violations)
        return "\n".join(
            [
                head,
                f"  answers {counts}",
                *[f"  {n} x {what}" for what, n in kinds.items()],
                *self.faults,
                *self.excerpts,
            ]
        )


def run(control_plane: ControlPlane, folder: pathlib.Path, plan: Plan) -> Report:
    """Run one history and check it. The journal remains in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"history: seed {plan.seed}, {plan.seconds:.0f} s, journal {folder / 'journal.jsonl'}", flush=True)
    begun = time.monotonic()
    with running_world(control_plane, folder, plant=plan.plant, ahead_s=plan.ahead_s) as world:
        mover, breaker, witness, pool = _disturb(world, plan)
        points = _last_look(world, witness, pool)
        ended = time.monotonic()
    journal = world.journal
    history = journal.history(mover.timeline)
    found = audit(journal, points, timeline=mover.timeline, counts_accesses=True)
    found = deduplicate(found, lambda each: (each.content, each.what))
    journal.write(folder / "journal.jsonl")
    refused = {store.content for store in history.stores.values() if store.outcome is Outcome.REFUSED}
    conflicts = {store.content for store in history.stores.values() if store.status == "409"}
    report = Report(
        plan=plan,
        operations=Counter(f"{each.kind.value} {each.status}" for each in history.operations),
        moves=Counter(mover.done),
        breaks=Counter(breaker.done),
        violations=found,
        faults=journal.faults,
        refusals=len(conflicts),
        refused_kept=len({each.content for each in found} & refused),
        took_s=ended - begun,
        excerpts=explain(journal, found),
    )
    print(report, flush=True)
    return report


def _disturb(world: HistoryWorld, plan: Plan) -> tuple[Mover, Breaker, Witness, SharedPool]:
    """Run clients and faults for the plan's duration; return when all parts work and nothing is in progress."""
    schedule = Schedule.of(plan.seed, plan.moves, plan.breaks)
    pool = SharedPool(world.journal, "", random.Random(f"pool {plan.seed}"))
    slug, seed = world.workspace.slug, f"{plan.seed}"
    witness = Witness(
        world.urls,
        slug,
        writers=plan.writers,
        readers=READERS,
        pool=pool,
        journal=world.journal,
        seed=seed,
        pace_s=plan.pace_s,
    )
    mover, breaker = Mover(world, schedule.moves), Breaker(world, schedule.breaks)
    with witness:
        mover.start()
        breaker.run(plan.seconds)
        mover.is_over.set()
        _join([mover], world)
        world.revive()
        world.wait_served()
        # Reads in this quiet period must find everything.
        time.sleep(QUIET_S)
        for thread in witness.threads:
            thread.caller.is_over.set()
        _join(witness.threads, world)
    return mover, breaker, witness, pool


def _join(threads: Sequence[threading.Thread], world: HistoryWorld) -> None:
    """Wait for threads. Meanwhile restart operators that end because they may have lost the lease.

    A thread that does not end in time, and any other process that ends, is recorded as a fault.
    """
    until = time.monotonic() + ENDS_WITHIN_S
    while any(thread.is_alive() for thread in threads):
        world.revive()
        if time.monotonic() > until:
            world.journal.record_fault(
                f"{[thread.name for thread in threads if thread.is_alive()]} did not end; {world.logs()}"
            )
            return
        time.sleep(0.2)


def _last_look(world: HistoryWorld, witness: Witness, pool: SharedPool) -> list[Row]:
    """Read all users' memories, stop the API processes by SIGTERM, and return the points in the engine."""
    alias = world.workspace.alias
    with engine_at(world.workspace.qdrant_url) as engine, contextlib.closing(witness.caller("last")) as caller:
        reads = Reads(caller, world.journal, vector_of=witness.vector_of)
        settled_points(engine, alias)
        for number, user in enumerate(pool.all_users):
            process = number % len(world.urls)
            for read in (reads.search_user, reads.list_user):
                wait_until(partial(read, user, process=process), seconds=60, what=f"{user}'s memories")
        for part in world.apis:
            part.program.terminate()
        for part in world.apis:
            wait_until(lambda part=part: part.program.returncode is not None, seconds=STOPS_WITHIN_S, what=part.name)
        return read_points(engine, alias)
