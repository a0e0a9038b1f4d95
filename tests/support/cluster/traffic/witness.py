"""Writers and readers of one agent, to prove that no acknowledged memory is lost.

They run concurrently with the actions of a test. A failed search is a fault unless the test has injected one. It is
also a fault if a search misses a memory, or finds one that was deleted, superseded or forgotten. `check` does the final
check of everything that was recorded.
"""

import contextlib
import random
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Self

import httpx

from tests.support.cluster.traffic.audit import audit, read_points, settled_points
from tests.support.cluster.traffic.calls import ApiCaller
from tests.support.cluster.traffic.journal import FaultKind, Journal, deduplicate
from tests.support.cluster.traffic.model import Violation
from tests.support.cluster.traffic.pools import Pool, SharedPool
from tests.support.cluster.traffic.readers import Reader, Reads
from tests.support.cluster.traffic.writers import VectorOf, Writer, join_all
from tests.support.engine.agents import vector_of as numbers_of
from tests.support.patience import wait_until

WELL_WITHIN_S = 60.0
MAX_EXCERPTS = 5
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
        pool: Memories that all writers change, and whose users all readers read. Then requests are not expected to
            succeed. None if each writer has memories of its own.
        seed: Determines the operations.
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
        pool: SharedPool | None = None,
        journal: Journal | None = None,
        seed: str = "",
    ) -> None:
        self.journal = journal = journal or Journal()
        self.vector_of: VectorOf | None = unit_vector_of if sends_vectors else None
        self._urls, self._agent, self._pool, self._seed = urls, agent, pool, seed
        self._writers = [
            Writer(
                name := f"user-{number}",
                self.caller(name),
                journal,
                pool or Pool(journal, name, random.Random(name)),
                vector_of=self.vector_of,
                pace_s=pace_s,
                seed=seed,
            )
            for number in range(writers)
        ]
        self._readers = [
            Reader(
                name := f"reader-{number}", self.caller(name), journal, pool, vector_of=self.vector_of, pace_s=pace_s
            )
            for number in range(readers)
        ]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def threads(self) -> list[Writer | Reader]:
        return [*self._writers, *self._readers]

    def stop(self, *, seconds: float = 90.0) -> None:
        """Stop the writers and readers; each completes its request in progress."""
        for thread in self.threads:
            thread.caller.is_over.set()
        if stuck := join_all(self.threads, seconds=seconds):
            self.journal.record_fault(f"these did not end: {stuck}")
        for thread in self.threads:
            thread.caller.close()

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

    def check(
        self,
        engine_url: str,
        alias: str,
        *,
        vector_of: VectorOf = unit_vector_of,
        besides: Collection[str] = (),
    ) -> None:
        """Fail unless all acknowledged changes are in the API's responses and in the engine.

        Args:
            vector_of: Returns the vector that a text must have now.
            besides: Contents that the test has stored itself.
        """
        self.stop()
        # The final reads are judged once, and not again in a later check.
        journal = self.journal.fork()
        with engine_at(engine_url) as engine:
            points = settled_points(engine, alias)
            self._read_all(journal)
        found = audit(journal, points, vector_of=vector_of, besides=besides)
        told = [*journal.faults, *explain(journal, found)]
        assert not told, "\n".join([f"{len(found)} violations; answers: {dict(journal.statuses)}", *told])
        assert self.journal.acknowledged, "nothing was stored, so nothing was proven"

    def check_forgotten(self, engine_url: str, collections: Sequence[str], users: AbstractSet[str]) -> None:
        """Fail if one of the collections contains data of these forgotten users."""
        with engine_at(engine_url) as engine:
            for name in collections:
                rows = [point["payload"] for point in read_points(engine, name)]
                back = {row["userId"] for row in rows if "content" in row} & users
                assert not back, f"{name} has forgotten users: {sorted(back)}"

    def caller(self, seed: str) -> ApiCaller:
        """Return a new caller for one thread."""
        seed, is_contended = f"{seed} {self._seed}", self._pool is not None
        return ApiCaller(self._urls, self._agent, self.journal, seed=seed, is_contended=is_contended)

    def _read_all(self, journal: Journal) -> None:
        """Read every unit with every endpoint, and every version."""
        with contextlib.closing(ApiCaller(self._urls, self._agent, journal, seed="last")) as caller:
            reads = Reads(caller, journal, vector_of=self.vector_of)
            for unit in journal.units:
                for read in reads.of_unit(unit):
                    read()
                for version in unit.versions[1:-1]:
                    reads.get_version(unit.user, version)

    def _is_served(self) -> bool:
        question = {"vector": unit_vector_of("anything")} if self.vector_of else {"query": "anything"}
        with contextlib.closing(self.caller("served")) as caller:
            return caller.is_served(question)


def explain(journal: Journal, found: list[Violation]) -> list[str]:
    """Return the excerpts of a journal that concern the first violation of each kind."""
    return [journal.excerpt(each) for each in deduplicate(found, lambda each: each.what)[:MAX_EXCERPTS]]


def engine_at(url: str) -> httpx.Client:
    """Open an HTTP client for a Qdrant server."""
    return httpx.Client(base_url=url, timeout=30, headers={"accept-encoding": "identity"})
