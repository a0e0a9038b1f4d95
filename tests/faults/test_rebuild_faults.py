"""A collection is rebuilt while writers and readers use it, and everything that takes part fails in every way.

Whatever the fault: what was acknowledged is there, what was deleted stays deleted, no chain has two heads, no search
fails while the API and what it needs are there, and nothing that was begun is left half made.
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
from tests.support.cluster.witness.witness import SPEC, Witness, unit_vector_of
from tests.support.cluster.witness.writers import VectorOf
from tests.support.cluster.workspace import SIZE, Workspace, confirm_delete, is_observed
from tests.support.fault_injection import with_faults
from tests.support.patience import Patience, wait_until
from tests.support.programs import AGENTMEMORY, Program, free_port, start_qdrant
from tests.support.spec.documents import Document

API_PROCESSES = 2
# Between two calls of a writer or reader: what they use of two cores is not there for what they watch.
PACE_S = 0.05
# Of each call to the engine, and so of the drain.
TIMEOUT_S = 5
DONE_WITHIN_S = 120.0
# Looked at again soon where the engine works.
PERIODS = {"busy_s": 0.3, "settle_s": 0.3}
STEPS = tuple(RebuildStep)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """What is changed, and so what becomes of the vectors.

    Attributes:
        spec: what the agent has before; change: what of it is changed.
        before, after: the vector of a text.
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
    """Return the change to another model of the same size."""
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
    """The processes that all tests of a module share: Qdrant, API processes, a provider, and who starts operators.

    Attributes:
        data: the engine's folder, by which it is told to fail.
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
        """Run an operator; it is killed at the end."""
        operator = self.nursery.start(periods=PERIODS, **order)
        try:
            yield operator
        finally:
            operator.kill()

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let the engine refuse every change of points."""
        with with_faults(self.data, update="disk-full"):
            yield

    def restart_qdrant(self) -> None:
        """Kill the engine with -9, and start it again."""
        self.qdrant.restart(r"Qdrant http")

    def restart_api(self, number: int) -> None:
        """Kill an API process with -9, and start it again."""
        self.apis[number].restart(r"API http")


@contextlib.contextmanager
def running_parts(control_plane: ControlPlane, folder: pathlib.Path) -> Iterator[Parts]:
    """Start the processes."""
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
class Rebuilding:
    """One agent that is rebuilt, and who writes and reads it meanwhile."""

    parts: Parts
    workspace: Workspace
    kind: SpecChange
    witness: Witness = field(init=False)
    source: str = field(init=False)
    # Before the rebuild was asked for: who is forgotten after the move goes from what was replaced a little later.
    forgotten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        sends = self.kind.sends_vectors
        self.witness = Witness(self.parts.urls, self.workspace.slug, sends_vectors=sends, pace_s=PACE_S)
        self.source = self.workspace.physical

    def prepare(self, **spec: Any) -> None:
        """Have the agent served by every API process; an operator runs."""
        self.workspace.connect(url=self.parts.qdrant_url, timeoutSeconds=TIMEOUT_S)
        self.workspace.create(**SPEC | {"changePolicy": "Apply"} | self.kind.spec | spec)
        self.workspace.wait_ready(seconds=20)
        wait_until(self._is_served, seconds=20, what="the agent at every API process")

    def ask(self, **change: Any) -> None:
        """Change the object so that its collection has to be rebuilt."""
        self.forgotten = set(self.witness.journal.forgotten)
        self.workspace.patch(**change or self.kind.change)

    @property
    def told(self) -> Document:
        """`status.rebuild`."""
        found: Document = self.workspace.status().get("rebuild") or {}
        return found

    @property
    def live(self) -> str:
        """What the alias leads to."""
        return self.workspace.aliases()[self.workspace.alias]

    def record(self) -> RebuildRecord | None:
        """Return the newest record that lies in the agent's collections."""
        found = [record_from_json(self.metadata(name)) for name in reversed(self.workspace.physicals())]
        return next((record for record in found if record is not None), None)

    def metadata(self, name: str) -> Mapping[str, Any]:
        """Return a collection's metadata."""
        found = self.workspace.collection(name)
        return (found or {}).get("config", {}).get("metadata") or {}

    def wait_for(self, step: RebuildStep, *, seconds: float = 60.0) -> RebuildStep:
        """Return the step it is in, once that is this one or a later one."""

        def reached() -> RebuildStep | None:
            record = self.record()
            return record.step if record and STEPS.index(record.step) >= STEPS.index(step) else None

        patience = Patience(seconds)
        while not patience.is_over:
            with contextlib.suppress(httpx.TransportError, AssertionError):
                if found := reached():
                    return found
            time.sleep(0.01)
        raise AssertionError(f"{step} did not come; status: {self.told}; {self._ends_of_logs()}")

    def wait(self, state: str, *, seconds: float = DONE_WITHIN_S) -> Document:
        """Return `status.rebuild` once its state is this one, of a rebuild that has been begun."""
        self.wait_until(lambda: self.told.get("state") == state and "target" in self.told, state, seconds=seconds)
        return self.told

    def wait_done(self, *, seconds: float = DONE_WITHIN_S) -> Document:
        """Return `status.rebuild` once the rebuild of the object as it now stands is done, and the object in sync."""

        def is_done() -> bool:
            document = self.workspace.must_get()
            conditions = {item["type"]: item["status"] for item in document["status"].get("conditions") or []}
            is_in_sync = is_observed(document) and conditions.get("InSync") == "True"
            return is_in_sync and (document["status"].get("rebuild") or {}).get("state") == "Done"

        self.wait_until(is_done, "the end of the rebuild", seconds=seconds)
        return self.told

    def wait_until(self, holds: Callable[[], object], what: str, *, seconds: float = 30.0) -> None:
        """Wait for something; where it does not come, or a fault was seen, tell what is known."""

        def looked() -> bool:
            assert not self.witness.journal.faults, "a fault was seen meanwhile"
            return bool(holds())

        try:
            wait_until(looked, seconds=seconds, what=what)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; status: {self.told}; {self._ends_of_logs()}") from exc

    def check_moved(self, *, kept: tuple[str, ...] | None = None, vector_of: VectorOf | None = None) -> None:
        """Fail unless the target is live and whole, the source kept, nothing else there, and nothing lost.

        Args:
            kept: collections beside the live one; None is the source alone.
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
        """Fail unless the source is live, nothing of a rebuild is left, and nothing is lost."""
        assert self.live == self.source
        self._check_collections(())
        schema = (self.workspace.collection() or {})["payload_schema"]
        assert "updatedAt" not in schema, "an index that only a rebuild needs is left"
        self.check_nothing_lost(self.kind.before)

    def check_nothing_lost(self, vector_of: VectorOf) -> None:
        """Fail unless everything that was acknowledged is as it should be."""
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

# Memories before a rebuild begins, so that each step has something to do.
STORED = 40
# Kills that have to have come about, or nothing was shown: a step may be over before it is seen.
FEWEST_KILLS = 4
KINDS = ("copied", "embedded")


@pytest.fixture(scope="module")
def parts(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """Processes for all tests of this file."""
    with running_parts(control_plane, tmp_path_factory.mktemp("parts")) as made:
        yield made


@pytest.fixture
def place(parts: Parts) -> Iterator[Workspace]:
    """A namespace on this file's own engine, which is killed now and then."""
    yield from new_place(parts)


@pytest.fixture
def other_place(parts: Parts) -> Iterator[Workspace]:
    """Another one."""
    yield from new_place(parts)


def new_place(parts: Parts) -> Iterator[Workspace]:
    """Yield a namespace; its objects go afterwards."""
    made = Workspace(parts.control_plane, parts.control_plane.create_namespace("rebuild-"), parts.qdrant_url)
    yield made
    made.clean()


def rebuilding(parts: Parts, place: Workspace, kind: str = "embedded") -> Rebuilding:
    """Return an agent and its witness."""
    return Rebuilding(parts, place, COPY if kind == "copied" else embedded(parts.provider.url))


@contextlib.contextmanager
def written_to(one: Rebuilding) -> Iterator[Rebuilding]:
    """Let an operator work, and have the agent written to, with enough to rebuild; yield it."""
    with one.parts.operating():
        one.prepare()
        with one.witness:
            one.witness.wait_for(STORED)
            yield one


@contextlib.contextmanager
def failing(parts: Parts, share: float) -> Iterator[None]:
    """Let the provider fail so often."""
    parts.provider.fail_share = share
    try:
        yield
    finally:
        parts.provider.fail_share = 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_an_operator_that_is_killed_in_every_step_is_followed_by_one_that_goes_on(
    parts: Parts, place: Workspace, kind: str
) -> None:
    one, chance = rebuilding(parts, place, kind), random.Random(8)
    with parts.operating():
        one.prepare()
    with one.witness:
        one.witness.wait_for(STORED)
        one.ask()
        deaths = [
            step for step in STEPS[:-1] if die_in(one, "" if step is RebuildStep.CREATE else step, chance.randint(1, 4))
        ]
        with parts.operating():
            one.wait_done()
        one.witness.wait_for(10)

    assert len(deaths) >= FEWEST_KILLS, deaths
    one.check_moved()


def die_in(one: Rebuilding, step: str, calls: int) -> bool:
    """Let an operator work that dies at a call in a step; tell whether it came to that."""
    with one.parts.operating(victim=one.workspace.slug, crash_in=step, crash_at=calls) as operator:
        one.wait_until(
            lambda: operator.returncode is not None or one.told.get("state") == "Done",
            f"death in {step}",
            seconds=40,
        )
        return operator.returncode == -9


def test_operators_that_are_killed_at_any_call_again_and_again_come_to_the_end(parts: Parts, place: Workspace) -> None:
    one, chance, deaths = rebuilding(parts, place), random.Random(9), 0
    with parts.operating():
        one.prepare()
    with one.witness:
        one.witness.wait_for(STORED)
        one.ask()
        # Each lives a little longer, so that every step comes to its end at last.
        while die_in(one, "", chance.randint(2, 16) + 16 * deaths):
            deaths += 1
        with parts.operating():
            one.wait_done()

    assert deaths >= FEWEST_KILLS
    one.check_moved()


def test_api_processes_that_are_killed_in_every_step_lose_nothing_that_they_acknowledged(
    parts: Parts, place: Workspace
) -> None:
    with written_to(rebuilding(parts, place, "copied")) as one:
        one.ask()
        for number, step in enumerate((RebuildStep.COPY, RebuildStep.CONVERGE, RebuildStep.MOVE, RebuildStep.DRAIN)):
            one.wait_for(step)
            with one.witness.trouble("api"):
                parts.restart_api(number % len(parts.apis))
        one.wait_done()
        one.witness.wait_for(10)

    one.check_moved()


def test_an_engine_that_is_killed_in_every_step_loses_nothing(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        for step in (RebuildStep.COPY, RebuildStep.CONVERGE, RebuildStep.MOVE, RebuildStep.DRAIN):
            one.wait_for(step)
            with one.witness.trouble("store"):
                parts.restart_qdrant()
        one.wait_done()
        one.witness.wait_for(10)

    one.check_moved()


def test_a_provider_that_fails_now_and_then_holds_nothing_up_for_good(parts: Parts, place: Workspace) -> None:
    one = rebuilding(parts, place)
    with parts.operating():
        one.prepare()
        with one.witness, one.witness.trouble("embedder"), failing(parts, 0.3):
            one.witness.wait_for(STORED)
            one.ask()
            one.wait_done()

    one.check_moved()


def test_a_provider_that_is_away_is_waited_for_and_then_gone_on_with(parts: Parts, place: Workspace) -> None:
    """How long it is away is no matter: what was copied stands in the target, and is not embedded twice."""
    with written_to(rebuilding(parts, place)) as one:
        with one.witness.trouble("embedder"), failing(parts, 1.0):
            one.ask()
            one.wait("Waiting")
            assert one.live == one.source
        one.wait_done()

    one.check_moved()


def test_a_full_disk_ends_the_rebuild_and_frees_its_room_and_another_try_ends_it(
    parts: Parts, place: Workspace
) -> None:
    with written_to(rebuilding(parts, place)) as one:
        with one.witness.trouble("store"), parts.full_disk():
            one.ask()
            one.wait("Failed")
            assert place.physicals() == [one.source]
        place.request_pass()
        one.wait_done()

    one.check_moved()


def test_a_spec_that_is_changed_again_midway_ends_in_the_last_one(parts: Parts, place: Workspace) -> None:
    last = embedded(parts.provider.url, "three")
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        one.wait_for(RebuildStep.CONVERGE)
        one.ask(**last.change)
        one.wait_done()
        one.witness.wait_for(10)

    assert one.workspace.config()["metadata"]["agentmemory"]["embedding"]["model"] == "three"
    one.check_nothing_lost(last.after)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_an_object_that_is_deleted_midway_leaves_no_target(parts: Parts, place: Workspace, policy: str) -> None:
    one = rebuilding(parts, place)
    with parts.operating():
        one.prepare(deletionPolicy=policy)
        place.annotate(confirm_delete=confirm_delete(place.alias).popitem()[1] if policy == "Delete" else None)
        with one.witness:
            one.witness.wait_for(20)
        with failing(parts, 1.0):
            one.ask()
            one.wait("Waiting")
            place.delete()
            place.wait_deleted(seconds=30)
            left = [one.source] if policy == "Retain" else []
            wait_until(lambda: place.physicals() == left, seconds=60, what=f"nothing but {left}")


def test_a_snapshot_that_is_due_midway_is_made_and_the_rebuild_ends(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        one.wait_for(RebuildStep.COPY)
        place.create_snapshot("midway")
        one.wait_done()
        place.wait_condition("Succeeded", "True/SnapshotTaken", name="midway", of="MemorySnapshot", seconds=60)

    one.check_moved()


def test_two_agents_at_once_are_rebuilt_one_after_the_other_and_lose_nothing(
    parts: Parts, place: Workspace, other_place: Workspace
) -> None:
    both = [rebuilding(parts, place, "copied"), rebuilding(parts, other_place)]
    with parts.operating():
        for one in both:
            one.prepare()
        with both[0].witness, both[1].witness:
            for one in both:
                one.witness.wait_for(STORED)
                one.ask()
            for one in both:
                one.wait_done()

    for one in both:
        one.check_moved()


def test_one_that_is_paused_stands_still_and_goes_on(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        place.annotate(pause_rebuild="yes")
        one.ask()
        one.wait("Paused")
        one.witness.wait_for(20)
        assert one.live == one.source
        place.annotate(pause_rebuild=None)
        one.wait_done()

    one.check_moved()


def test_one_that_is_cancelled_leaves_no_trace(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        with one.witness.trouble("embedder"), failing(parts, 1.0):
            one.ask()
            one.wait("Waiting")
            place.annotate(cancel_rebuild=one.told["digest"])
            one.wait("Stopped")
        one.witness.wait_for(20)

    one.check_unmoved()


def test_one_that_is_rolled_back_keeps_what_was_written_since(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        target = one.wait_done()["target"]
        one.witness.wait_for(30)
        place.annotate(rollback_rebuild=target)
        one.wait_until(lambda: one.told.get("kind") == "Rollback" and one.told["state"] == "Done", "the way back")
        one.witness.wait_for(10)

    assert one.live == one.source
    one.check_nothing_lost(one.kind.before)
