"""Writers and readers of one agent, to prove that no acknowledged memory is lost.

They run concurrently with the actions of a test. A failed search is a fault unless the test has injected one. It is
also a fault if a search misses a memory, or finds one that was deleted, superseded or forgotten. `check` does the final
check.
"""

import contextlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Self

import httpx

from tests.support.cluster.witness.audit import audit, read_points
from tests.support.cluster.witness.calls import WitnessCaller
from tests.support.cluster.witness.journal import FaultKind, Journal
from tests.support.cluster.witness.readers import Reader
from tests.support.cluster.witness.writers import VectorOf, Writer, join_all
from tests.support.engine.agents import vector_of as numbers_of
from tests.support.patience import wait_until

WELL_WITHIN_S = 60.0
TYPES = [
    {"name": "note", "halfLifeDays": 365},
    {"name": "fact", "halfLifeDays": 365, "supersedeBy": "key"},
    {"name": "status", "halfLifeDays": 365, "supersedeBy": "subject"},
]
SPEC = {
    "preset": "brain",
    "types": TYPES,
    "lifecycle": {"deduplicate": False},
    "scoring": {"scoreThreshold": -1, "minSimilarity": -1},
}
"""Required fields of the agent's spec, in addition to an embedding."""


def unit_vector_of(text: str) -> list[float]:
    """Return the vector to send for a text. Its length is 1, so it is its own nearest neighbour for every distance."""
    numbers = numbers_of(text)
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


class Witness:
    """Runs writers and readers while its context is open.

    Args:
        urls: Base URLs of API processes that serve the same agent.
        sends_vectors: True if the agent does not embed texts itself.
    """

    def __init__(
        self,
        urls: Sequence[str],
        agent: str,
        *,
        writers: int = 2,
        readers: int = 2,
        sends_vectors: bool = True,
        pace_s: float = 0.01,
    ) -> None:
        self.journal = Journal()
        self._urls, self._agent, self._sends_vectors = urls, agent, sends_vectors
        vector_of: VectorOf | None = unit_vector_of if sends_vectors else None
        self._callers = [self._caller(urls, seed=number) for number in range(writers + readers)]
        self._writers = [
            Writer(f"user-{number}", caller, self.journal, vector_of=vector_of, pace_s=pace_s)
            for number, caller in enumerate(self._callers[:writers])
        ]
        self.readers = [
            Reader(f"reader-{number}", caller, self.journal, vector_of=vector_of, pace_s=pace_s)
            for number, caller in enumerate(self._callers[writers:])
        ]

    def __enter__(self) -> Self:
        for thread in (*self._writers, *self.readers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the writers and readers; each completes its request in progress."""
        for caller in self._callers:
            caller.is_over.set()
        if stuck := join_all((*self._writers, *self.readers), seconds=90):
            self.journal.record_fault(f"these did not end: {stuck}")
        for caller in self._callers:
            caller.close()

    def wait_for(self, acknowledged: int) -> None:
        """Wait until this many more memories are stored."""
        wanted = self.journal.acknowledged + acknowledged
        wait_until(
            lambda: self.journal.acknowledged >= wanted or self.journal.faults, seconds=60, what=f"{wanted} memories"
        )

    @contextlib.contextmanager
    def trouble(self, kind: FaultKind) -> Iterator[None]:
        """Allow failures within the contract during a fault, and until searches succeed again."""
        with self.journal.fault(kind):
            yield
            wait_until(self._is_served, seconds=WELL_WITHIN_S, what="searches after what was broken")

    def check(self, engine_url: str, alias: str, *, vector_of: VectorOf = unit_vector_of) -> None:
        """Fail unless all acknowledged changes are in the API's responses and in the engine.

        Args:
            vector_of: Returns the vector that a text must have now.
        """
        self.stop()
        with engine_at(engine_url) as engine, contextlib.closing(self._caller(self._urls)) as caller:
            sends = self._sends_vectors
            found = audit(self.journal, caller, engine, alias, vector_of=vector_of, sends_vectors=sends)
        assert not found, "\n".join([f"{len(found)} faults; answers: {dict(self.journal.statuses)}", *found])
        assert self.journal.acknowledged, "nothing was stored, so nothing was proven"

    def check_forgotten(self, engine_url: str, collections: Sequence[str], users: AbstractSet[str]) -> None:
        """Fail if one of the collections contains data of these forgotten users."""
        with engine_at(engine_url) as engine:
            for name in collections:
                rows = [point["payload"] for point in read_points(engine, name)]
                back = {row["userId"] for row in rows if "content" in row} & users
                assert not back, f"{name} has forgotten users: {sorted(back)}"

    def _caller(self, urls: Sequence[str], *, seed: int = 0) -> WitnessCaller:
        return WitnessCaller(urls, self._agent, self.journal, seed=seed)

    def _is_served(self) -> bool:
        question = {"vector": unit_vector_of("anything")} if self._sends_vectors else {"query": "anything"}
        for url in self._urls:
            with contextlib.closing(self._caller([url])) as caller:
                if not caller.is_served(question):
                    return False
        return True


def engine_at(url: str) -> httpx.Client:
    """Open an HTTP client for a Qdrant server."""
    return httpx.Client(base_url=url, timeout=30, headers={"accept-encoding": "identity"})
