"""Rebuilds under writers and readers, while each participant fails in every way.

Invariant: acknowledged memories exist, deleted ones stay deleted, no chain has two heads, no search fails while the API
and its dependencies are available, and nothing stays partial.
"""

import contextlib
import pathlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep, record_from_json
from bench.embedder import DIMENSIONS, FailingEmbedder, embedder, vector_of
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import ForkedOperator, OperatorForks
from tests.support.cluster.traffic.witness import SPEC, Witness, unit_vector_of
from tests.support.cluster.traffic.writers import VectorOf
from tests.support.cluster.workspace import SIZE, Workspace, confirm_delete, is_observed
from tests.support.fault_injection import with_faults
from tests.support.patience import Patience, wait_until
from tests.support.programs import AGENTMEMORY, Program, free_port, start_qdrant
from tests.support.spec.documents import Document

API_PROCESSES = 2
# Pause of a writer or reader between two calls, which leaves CPU time for the processes under test.
PACE_S = 0.05
# Timeout of each call to the engine, and so of the drain.
TIMEOUT_S = 5
DONE_WITHIN_S = 120.0
# Poll often while the engine works.
PERIODS = {"busy_s": 0.3, "settle_s": 0.3}
STEPS = tuple(RebuildStep)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """Change of a spec, and its effect on the vectors.

    Attributes:
        spec: Initial spec of the agent.
        change: Changed part of the spec.
        before: Vector of a text before the change.
        after: Vector of a text after the change.
    """

    name: str
    spec: Document
    change: Document
    sends_vectors: bool
    before: VectorOf
    after: VectorOf


COPY = SpecChange(
    name="copied",
    spec={"embedding": {"provider": "none", "dimensions": SIZE}},
    change={"index": {"distance": "Dot"}},
    sends_vectors=True,
    before=unit_vector_of,
    after=unit_vector_of,
)


def embedded(url: str, model: str = "two") -> SpecChange:
    """Build the change to another model of the same size."""
    embedding = {"provider": "openai", "model": "one", "dimensions": DIMENSIONS, "baseURL": url, "batchSize": 16}
    return SpecChange(
        name="embedded",
        spec={"embedding": embedding},
        change={"embedding": {"model": model}},
        sends_vectors=False,
        before=partial(_numbers, model="one"),
        after=partial(_numbers, model=model),
    )


def _numbers(text: str, model: str) -> list[float]:
    return [float(number) for number in vector_of(text, model)]


@dataclass(slots=True)
class Parts:
    """Processes shared by all tests of a module: Qdrant, API processes, an embedding provider, and operators.

    Attributes:
        data: Folder of the engine, where faults are planted.
    """

    control_plane: ControlPlane
    qdrant: Program
    qdrant_url: str
    data: pathlib.Path
    apis: list[Program]
    urls: list[str]
    provider: FailingEmbedder
    nursery: OperatorForks

    @contextlib.contextmanager
    def operating(self, **order: Any) -> Iterator[ForkedOperator]:
        """Run an operator; kill it at the end."""
        operator = self.nursery.start(periods=PERIODS, **order)
        try:
            yield operator
        finally:
            operator.kill()

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Make the engine reject every change of points."""
        with with_faults(self.data, update="disk-full"):
            yield

    def restart_qdrant(self) -> None:
        """Kill the engine with -9, and restart it."""
        self.qdrant.restart(r"Qdrant http")

    def restart_api(self, number: int) -> None:
        """Kill an API process with -9, and restart it."""
        self.apis[number].restart(r"API http")


@contextlib.contextmanager
def running_parts(control_plane: ControlPlane, folder: pathlib.Path) -> Iterator[Parts]:
    """Start all processes; kill them when the context ends."""
    with contextlib.ExitStack() as stack:
        provider = stack.enter_context(embedder(fail_share=0.0))
        qdrant, url = start_qdrant(folder, port=free_port())
        stack.callback(qdrant.kill)
        ports = [free_port() for _ in range(API_PROCESSES)]
        apis = [_start_api(control_plane, folder, port) for port in ports]
        for api in apis:
            stack.callback(api.kill)
            api.wait_for(r"API http")
        nursery = OperatorForks(control_plane, folder)
        stack.callback(nursery.close)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        yield Parts(control_plane, qdrant, url, folder / "data", apis, urls, provider, nursery)


def _start_api(control_plane: ControlPlane, folder: pathlib.Path, port: int) -> Program:
    command = (*AGENTMEMORY, "api", "--source", "kubernetes", "--port", str(port))
    kubeconfig = str(control_plane.kubeconfig)
    return Program(folder / f"api-{port}.log", *command, KUBECONFIG=kubeconfig, AGENTMEMORY_AUTH="none")


@dataclass(slots=True)
class RebuildRun:
    """One agent that is rebuilt, with concurrent writers and readers."""

    parts: Parts
    workspace: Workspace
    kind: SpecChange
    witness: Witness = field(init=False)
    source: str = field(init=False)
    # Users forgotten before the rebuild started; later ones are deleted from the old collection with a delay.
    forgotten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        sends = self.kind.sends_vectors
        self.witness = Witness(self.parts.urls, self.workspace.slug, sends_vectors=sends, pace_s=PACE_S)
        self.source = self.workspace.physical

    def prepare(self, **spec: Any) -> None:
        """Create the agent and wait until every API process serves it; an operator runs."""
        self.workspace.connect(url=self.parts.qdrant_url, timeoutSeconds=TIMEOUT_S)
        self.workspace.create(**SPEC | {"changePolicy": "Apply"} | self.kind.spec | spec)
        self.workspace.wait_ready(seconds=20)
        wait_until(self._is_served, seconds=20, what="the agent at every API process")

    def ask(self, **change: Any) -> None:
        """Change the object so that its collection has to be rebuilt."""
        self.forgotten = set(self.witness.journal.forgotten)
        self.workspace.patch(**change or self.kind.change)

    @property
    def rebuild_status(self) -> Document:
        """`status.rebuild`; empty before the first rebuild."""
        found: Document = self.workspace.status().get("rebuild") or {}
        return found

    @property
    def live(self) -> str:
        """Target of the alias."""
        return self.workspace.aliases()[self.workspace.alias]

    def record(self) -> RebuildRecord | None:
        """Return the newest rebuild record in the agent's collections."""
        found = [record_from_json(self.metadata(name)) for name in reversed(self.workspace.physicals())]
        return next((record for record in found if record is not None), None)

    def metadata(self, name: str) -> Mapping[str, Any]:
        """Return a collection's metadata; empty if it does not exist."""
        found = self.workspace.collection(name)
        return (found or {}).get("config", {}).get("metadata") or {}

    def wait_for(self, step: RebuildStep, *, seconds: float = 60.0) -> RebuildStep:
        """Return the current step once it is this one or a later one."""

        def reached() -> RebuildStep | None:
            record = self.record()
            return record.step if record and STEPS.index(record.step) >= STEPS.index(step) else None

        patience = Patience(seconds)
        while not patience.is_over:
            with contextlib.suppress(httpx.TransportError, AssertionError):
                if found := reached():
                    return found
            time.sleep(0.01)
        raise AssertionError(f"{step} did not come; status: {self.rebuild_status}; {self._ends_of_logs()}")

    def wait(self, state: str, *, seconds: float = DONE_WITHIN_S) -> Document:
        """Return `status.rebuild` once a started rebuild has this state."""
        self.wait_until(
            lambda: self.rebuild_status.get("state") == state and "target" in self.rebuild_status,
            state,
            seconds=seconds,
        )
        return self.rebuild_status

    def wait_done(self, *, seconds: float = DONE_WITHIN_S) -> Document:
        """Return `status.rebuild` once the rebuild of the current spec is done and the object is in sync."""

        def is_done() -> bool:
            document = self.workspace.must_get()
            conditions = {item["type"]: item["status"] for item in document["status"].get("conditions") or []}
            is_in_sync = is_observed(document) and conditions.get("InSync") == "True"
            return is_in_sync and (document["status"].get("rebuild") or {}).get("state") == "Done"

        self.wait_until(is_done, "the end of the rebuild", seconds=seconds)
        return self.rebuild_status

    def wait_until(self, holds: Callable[[], object], what: str, *, seconds: float = 30.0) -> None:
        """Wait for a condition; if it does not hold or the witness reports a fault, raise with the status and logs."""

        def check() -> bool:
            assert not self.witness.journal.faults, "a fault was seen meanwhile"
            return bool(holds())

        try:
            wait_until(check, seconds=seconds, what=what)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; status: {self.rebuild_status}; {self._ends_of_logs()}") from exc

    def check_moved(self, *, kept: tuple[str, ...] | None = None, vector_of: VectorOf | None = None) -> None:
        """Check that the target is live and complete, the source kept, nothing else exists, and nothing is lost.

        Args:
            kept: Collections other than the live one; None means the source only.
        """
        record = self.record()
        kept = (self.source,) if kept is None else kept
        self._check_collections(kept)
        assert record is not None
        assert record.step is RebuildStep.DONE
        for name in kept:
            assert PREVIOUS_KEY in self.metadata(name), f"{name} is not marked as replaced"
        self.check_nothing_lost(vector_of or self.kind.after)
        self.witness.check_forgotten(self.parts.qdrant_url, [self.live, *kept], self.forgotten)

    def check_unmoved(self) -> None:
        """Check that the source is live, nothing of a rebuild remains, and nothing is lost."""
        assert self.live == self.source
        self._check_collections(())
        schema = (self.workspace.collection() or {})["payload_schema"]
        assert "updatedAt" not in schema, "an index that only a rebuild needs is left"
        self.check_nothing_lost(self.kind.before)

    def check_nothing_lost(self, vector_of: VectorOf) -> None:
        """Check that no acknowledged change is lost."""
        self.witness.check(self.parts.qdrant_url, self.workspace.alias, vector_of=vector_of)

    def _check_collections(self, kept: tuple[str, ...]) -> None:
        assert self.workspace.physicals() == sorted({self.live, *kept})
        for name in self.workspace.physicals():
            assert MOVING_KEY not in self.metadata(name), f"{name} still says that it is about to be replaced"

    def _is_served(self) -> bool:
        return all(
            httpx.get(f"{url}/v1/agents/{self.workspace.slug}", timeout=10).status_code == 200
            for url in self.parts.urls
        )

    def _ends_of_logs(self) -> str:
        tails = [program.log[-1000:] for program in (*self.parts.apis, self.parts.qdrant)]
        return "\n".join([f"operator: {self.parts.nursery.log[-2500:]}", *tails, *self.witness.journal.faults])


pytestmark = pytest.mark.faults

# Memories before a rebuild starts, so that each step has work.
STORED = 40
# Minimum number of kills that took effect: a step may be over before it is observed.
MIN_KILLS = 4
KINDS = ("copied", "embedded")


@pytest.fixture(scope="module")
def parts(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """Processes for all tests of this file."""
    with running_parts(control_plane, tmp_path_factory.mktemp("parts")) as made:
        yield made


@pytest.fixture
def place(parts: Parts) -> Iterator[Workspace]:
    """Namespace on this file's own engine, which some tests kill."""
    yield from new_place(parts)


@pytest.fixture
def other_place(parts: Parts) -> Iterator[Workspace]:
    """A second namespace."""
    yield from new_place(parts)


def new_place(parts: Parts) -> Iterator[Workspace]:
    """Yield a namespace and delete its objects afterwards."""
    made = Workspace(parts.control_plane, parts.control_plane.create_namespace("rebuild-"), parts.qdrant_url)
    yield made
    made.clean()


def new_run(parts: Parts, place: Workspace, kind: str = "embedded") -> RebuildRun:
    """Create an agent and its witness."""
    return RebuildRun(parts, place, COPY if kind == "copied" else embedded(parts.provider.url))


@contextlib.contextmanager
def with_writers(run: RebuildRun) -> Iterator[RebuildRun]:
    """Run an operator and the agent's writers, and yield the agent once it has enough memories."""
    with run.parts.operating():
        run.prepare()
        with run.witness:
            run.witness.wait_for(STORED)
            yield run


@contextlib.contextmanager
def failing(parts: Parts, share: float) -> Iterator[None]:
    """Make a share of the provider's calls fail."""
    parts.provider.fail_share = share
    try:
        yield
    finally:
        parts.provider.fail_share = 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_next_operator_continues_killed_rebuild(parts: Parts, place: Workspace, kind: str) -> None:
    run, chance = new_run(parts, place, kind), random.Random(8)
    with parts.operating():
        run.prepare()
    with run.witness:
        run.witness.wait_for(STORED)
        run.ask()
        deaths = [
            step
            for step in STEPS[:-1]
            if run_until_death(run, "" if step is RebuildStep.CREATE else step, chance.randint(1, 4))
        ]
        with parts.operating():
            run.wait_done()
        run.witness.wait_for(10)

    assert len(deaths) >= MIN_KILLS, deaths
    run.check_moved()


def run_until_death(run: RebuildRun, step: str, calls: int) -> bool:
    """Run an operator that kills itself at a call in a step; return whether it did."""
    with run.parts.operating(victim=run.workspace.slug, crash_in=step, crash_at=calls) as operator:
        run.wait_until(
            lambda: operator.returncode is not None or run.rebuild_status.get("state") == "Done",
            f"death in {step}",
            seconds=40,
        )
        return operator.returncode == -9


def test_rebuild_survives_operator_kills(parts: Parts, place: Workspace) -> None:
    run, chance, deaths = new_run(parts, place), random.Random(9), 0
    with parts.operating():
        run.prepare()
    with run.witness:
        run.witness.wait_for(STORED)
        run.ask()
        # Each operator lives a little longer, so that every step completes eventually.
        while run_until_death(run, "", chance.randint(2, 16) + 16 * deaths):
            deaths += 1
        with parts.operating():
            run.wait_done()

    assert deaths >= MIN_KILLS
    run.check_moved()


def test_killed_api_processes_lose_nothing(parts: Parts, place: Workspace) -> None:
    with with_writers(new_run(parts, place, "copied")) as run:
        run.ask()
        for number, step in enumerate((RebuildStep.COPY, RebuildStep.CONVERGE, RebuildStep.MOVE, RebuildStep.DRAIN)):
            run.wait_for(step)
            with run.witness.trouble("api"):
                parts.restart_api(number % len(parts.apis))
        run.wait_done()
        run.witness.wait_for(10)

    run.check_moved()


def test_killed_engine_loses_nothing(parts: Parts, place: Workspace) -> None:
    with with_writers(new_run(parts, place)) as run:
        run.ask()
        for step in (RebuildStep.COPY, RebuildStep.CONVERGE, RebuildStep.MOVE, RebuildStep.DRAIN):
            run.wait_for(step)
            with run.witness.trouble("store"):
                parts.restart_qdrant()
        run.wait_done()
        run.witness.wait_for(10)

    run.check_moved()


def test_rebuild_survives_a_flaky_provider(parts: Parts, place: Workspace) -> None:
    run = new_run(parts, place)
    with parts.operating():
        run.prepare()
        with run.witness, run.witness.trouble("embedder"), failing(parts, 0.3):
            run.witness.wait_for(STORED)
            run.ask()
            run.wait_done()

    run.check_moved()


def test_rebuild_waits_for_the_provider(parts: Parts, place: Workspace) -> None:
    """The wait is not limited: copied points are in the target, and are not embedded again."""
    with with_writers(new_run(parts, place)) as run:
        with run.witness.trouble("embedder"), failing(parts, 1.0):
            run.ask()
            run.wait("Waiting")
            assert run.live == run.source
        run.wait_done()

    run.check_moved()


def test_full_disk_fails_rebuild_until_retried(parts: Parts, place: Workspace) -> None:
    """The failed rebuild frees its space."""
    with with_writers(new_run(parts, place)) as run:
        with run.witness.trouble("store"), parts.full_disk():
            run.ask()
            run.wait("Failed")
            assert place.physicals() == [run.source]
        place.request_pass()
        run.wait_done()

    run.check_moved()


def test_changed_spec_restarts_the_rebuild(parts: Parts, place: Workspace) -> None:
    last = embedded(parts.provider.url, "three")
    with with_writers(new_run(parts, place)) as run:
        run.ask()
        run.wait_for(RebuildStep.CONVERGE)
        run.ask(**last.change)
        run.wait_done()
        run.witness.wait_for(10)

    assert run.workspace.config()["metadata"]["agentmemory"]["embedding"]["model"] == "three"
    run.check_nothing_lost(last.after)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_object_deleted_midway_leaves_no_target(parts: Parts, place: Workspace, policy: str) -> None:
    run = new_run(parts, place)
    with parts.operating():
        run.prepare(deletionPolicy=policy)
        place.annotate(confirm_delete=confirm_delete(place.alias).popitem()[1] if policy == "Delete" else None)
        with run.witness:
            run.witness.wait_for(20)
        with failing(parts, 1.0):
            run.ask()
            run.wait("Waiting")
            place.delete()
            place.wait_deleted(seconds=30)
            left = [run.source] if policy == "Retain" else []
            wait_until(lambda: place.physicals() == left, seconds=60, what=f"nothing but {left}")


def test_snapshot_due_midway_is_taken(parts: Parts, place: Workspace) -> None:
    with with_writers(new_run(parts, place)) as run:
        run.ask()
        run.wait_for(RebuildStep.COPY)
        place.create_snapshot("midway")
        run.wait_done()
        place.wait_condition("Succeeded", "True/SnapshotTaken", name="midway", of="MemorySnapshot", seconds=60)

    run.check_moved()


def test_two_rebuilds_run_one_after_the_other(parts: Parts, place: Workspace, other_place: Workspace) -> None:
    both = [new_run(parts, place, "copied"), new_run(parts, other_place)]
    with parts.operating():
        for run in both:
            run.prepare()
        with both[0].witness, both[1].witness:
            for run in both:
                run.witness.wait_for(STORED)
                run.ask()
            for run in both:
                run.wait_done()

    for run in both:
        run.check_moved()


def test_paused_rebuild_is_resumed(parts: Parts, place: Workspace) -> None:
    with with_writers(new_run(parts, place)) as run:
        place.annotate(pause_rebuild="yes")
        run.ask()
        run.wait("Paused")
        run.witness.wait_for(20)
        assert run.live == run.source
        place.annotate(pause_rebuild=None)
        run.wait_done()

    run.check_moved()


def test_cancelled_rebuild_leaves_nothing(parts: Parts, place: Workspace) -> None:
    with with_writers(new_run(parts, place)) as run:
        with run.witness.trouble("embedder"), failing(parts, 1.0):
            run.ask()
            run.wait("Waiting")
            place.annotate(cancel_rebuild=run.rebuild_status["digest"])
            run.wait("Stopped")
        run.witness.wait_for(20)

    run.check_unmoved()


def test_rollback_keeps_later_writes(parts: Parts, place: Workspace) -> None:
    with with_writers(new_run(parts, place)) as run:
        run.ask()
        target = run.wait_done()["target"]
        run.witness.wait_for(30)
        place.annotate(rollback_rebuild=target)
        run.wait_until(
            lambda: run.rebuild_status.get("kind") == "Rollback" and run.rebuild_status["state"] == "Done",
            "the way back",
        )
        run.witness.wait_for(10)

    assert run.live == run.source
    run.check_nothing_lost(run.kind.before)
