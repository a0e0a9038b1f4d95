"""An agent whose collection is rebuilt while writers and readers use it; each part is a process that can be killed."""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep, record_from_json
from bench.embedder import DIMENSIONS, FailingEmbedder, embedder, vector_of
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import ForkedOperator, Nursery
from tests.support.cluster.witness.witness import SPEC, Witness, unit_vector_of
from tests.support.cluster.witness.writers import VectorOf
from tests.support.cluster.workspace import SIZE, Workspace, is_observed
from tests.support.patience import Patience, wait_until
from tests.support.planted import planted
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
    nursery: Nursery

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
        with planted(self.data, update="disk-full"):
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
        nursery = Nursery(control_plane, folder)
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
