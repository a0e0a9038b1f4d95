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
from typing import Any

from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.history.clients import ApiCaller, Client, Pool
from tests.support.cluster.history.journal import HistoryJournal, deduplicate
from tests.support.cluster.history.model import Outcome, Violation, violations
from tests.support.cluster.history.nemesis import BREAKS, MOVES, Breaker, Mover, Schedule
from tests.support.cluster.history.rows import Row, chain_violations, count_violations
from tests.support.cluster.history.world import HistoryWorld, running_world
from tests.support.cluster.witness.audit import find_malformed, read_points, settled_points
from tests.support.cluster.witness.witness import engine_at
from tests.support.patience import wait_until

CLIENTS = 4
PACE_S = 0.08
QUIET_S = 3.0
ENDS_WITHIN_S = 300.0
STOPS_WITHIN_S = 40.0
MAX_EXCERPTS = 5


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
    clients: int = CLIENTS
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
        mover, breaker, pool = _disturb(world, plan)
        rows, faults = _last_look(world, pool)
        ended = time.monotonic()
    journal = world.journal
    history = journal.history(mover.timeline)
    found = (
        violations(history)
        + chain_violations(rows, ended)
        + count_violations(history, rows, journal.kills, ended, journal.contents_by_id())
    )
    found = deduplicate(found, lambda each: (each.content, each.what))
    journal.write(folder / "journal.jsonl")
    refused = {store.content for store in history.stores.values() if store.outcome is Outcome.REFUSED}
    conflicts = {store.content for store in history.stores.values() if store.status == "409"}
    report = Report(
        plan=plan,
        operations=journal.statuses,
        moves=Counter(mover.done),
        breaks=Counter(breaker.done),
        violations=found,
        faults=journal.faults + faults,
        refusals=len(conflicts),
        refused_kept=len({each.content for each in found} & refused),
        took_s=ended - begun,
        excerpts=[journal.excerpt(each) for each in deduplicate(found, lambda each: each.what)[:MAX_EXCERPTS]],
    )
    print(report, flush=True)
    return report


def _disturb(world: HistoryWorld, plan: Plan) -> tuple[Mover, Breaker, Pool]:
    """Run clients and faults for the plan's duration; return when all parts work and nothing is in progress."""
    schedule = Schedule.of(plan.seed, plan.moves, plan.breaks)
    pool = Pool(random.Random(f"pool {plan.seed}"))
    clients = [_client(world, pool, plan, number) for number in range(plan.clients)]
    mover, breaker = Mover(world, schedule.moves), Breaker(world, schedule.breaks)
    for thread in (*clients, mover):
        thread.start()
    breaker.run(plan.seconds)
    mover.is_over.set()
    _join([mover], world)
    world.revive()
    world.wait_served()
    # Reads in this quiet period must find everything.
    time.sleep(QUIET_S)
    for client in clients:
        client.is_over.set()
    _join(clients, world)
    return mover, breaker, pool


def _join(threads: Sequence[threading.Thread], world: HistoryWorld) -> None:
    """Wait for threads. Meanwhile restart processes that end by themselves, as an operator may."""
    until = time.monotonic() + ENDS_WITHIN_S
    while any(thread.is_alive() for thread in threads):
        world.revive()
        if time.monotonic() > until:
            world.journal.record_fault(
                f"{[thread.name for thread in threads if thread.is_alive()]} did not end; {world.logs()}"
            )
            return
        time.sleep(0.2)


def _client(world: HistoryWorld, pool: Pool, plan: Plan, number: int) -> Client:
    seed = f"client {plan.seed} {number}"
    asker = _asker(world, random.Random(f"asker {seed}"))
    return Client(f"client-{number}", asker, pool, world.journal, seed=seed, pace_s=plan.pace_s)


def _asker(world: HistoryWorld, chance: random.Random) -> ApiCaller:
    return ApiCaller(world.urls, world.workspace.slug, world.journal, chance)


def _last_look(world: HistoryWorld, pool: Pool) -> tuple[dict[str, Row], list[str]]:
    """Read all users' memories, stop the API regularly, and return the rows in the engine."""
    alias = world.workspace.alias
    with engine_at(world.workspace.qdrant_url) as engine, contextlib.closing(_asker(world, random.Random(0))) as asker:
        settled_points(engine, alias)
        for number, user in enumerate(pool.all_users):
            process = number % len(world.urls)
            for read in (asker.search, asker.list_all):
                wait_until(partial(read, user, process=process), seconds=60, what=f"{user}'s memories")
        for part in world.apis:
            part.program.terminate()
        for part in world.apis:
            wait_until(lambda part=part: part.program.returncode is not None, seconds=STOPS_WITHIN_S, what=part.name)
        points = {str(point["id"]): point["payload"] for point in read_points(engine, alias)}
    return _rows(points, world.journal), [f"at the end: {told}" for told in find_malformed(points)]


def _rows(points: dict[str, dict[str, Any]], journal: HistoryJournal) -> dict[str, Row]:
    living = {key: row for key, row in points.items() if TOMBSTONE_KEY not in row}
    contents = {key: row["content"] for key, row in living.items()}
    return {
        row["content"]: Row(
            content=row["content"],
            user=row["userId"],
            follows=tuple(contents.get(before, before) for before in predecessors(row)),
            followed_by=contents.get(row.get("supersededById"), row.get("supersededById")),
            accesses=row.get("accessCount", 0),
        )
        for row in living.values()
    }
