"""Move of an agent to a collection of another embedding model, during searches and writes.

The two models share no dimension: a query of one has similarity 0 with a memory of the other, otherwise 1.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from agentmemory_operator.agents.fence import FenceTiming
from agentmemory_operator.collections.rules.announcement import MOVING_KEY, Phase
from agentmemory_operator.collections.rules.collection import METADATA_KEY
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildRecord, record_to_json
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from tests.support.patience import wait_until
from tests.support.spec.documents import agent_document, marker_for
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.http_server import check_success
from tests.support.web.services import embedding_of


@dataclass(frozen=True, slots=True)
class TwoModels:
    """Implements ports.Embedder for the model that a collection names."""

    source: EmbeddingSource

    @property
    def dimensions(self) -> int:
        return self.source.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        await asyncio.sleep(0.001)
        return [embed_apart(self.source.model or "", text, self.dimensions) for text in texts]


def embed_apart(model: str, text: str, size: int) -> list[float]:
    """Return a vector of length 1 in the model's half of the space: two models share no dimension."""
    half = size // 2
    raw = [number - 0.5 for number in embedding_of(text, half)]
    length = math.sqrt(sum(number * number for number in raw))
    part, nothing = [number / length for number in raw], [0.0] * half
    return nothing + part if model == "new" else part + nothing


@dataclass(slots=True)
class AliasMover:
    """Moves the alias of an agent from its collection 1 to its collection 2.

    Args:
        announce_s: Seconds from the announcement until the last pass; longer than the API's lease.
        size: Dimensions of the new model.
    """

    qdrant: httpx.Client
    alias: str
    announce_s: float
    size: int = 8
    carried: int = field(default=0, init=False)

    @property
    def source(self) -> str:
        return f"{self.alias}__1"

    @property
    def target(self) -> str:
        return f"{self.alias}__2"

    @property
    def embedding(self) -> dict[str, Any]:
        """Embedding of the target."""
        return {"provider": "openai", "model": "new", "dimensions": self.size}

    def create(self) -> None:
        """Create the target, without indexes."""
        record = RebuildRecord(source=self.source, target=self.target, digest="d", started_ms=0, since_ms=0)
        marker = marker_for(self.alias.removeprefix(ALIAS_PREFIX), embedding=self.embedding)
        metadata = {METADATA_KEY: marker, REBUILD_KEY: record_to_json(record)}
        body = {"vectors": {"size": self.size, "distance": "Cosine"}, "metadata": metadata}
        self._call("PUT", f"/collections/{self.target}", body)

    def copy_missing(self) -> int:
        """Copy the points that the target lacks; return their number."""
        existing = {point["id"] for point in self.points(self.target)}
        missing = [point for point in self.points(self.source) if point["id"] not in existing]
        points = [
            {"id": point["id"], "payload": point["payload"], "vector": self._vector(point["payload"])}
            for point in missing
        ]
        if points:
            body = {"points": points, "update_mode": "insert_only"}
            self._call("PUT", f"/collections/{self.target}/points?wait=true", body)
        self.carried += len(points)
        return len(points)

    def write_phase(self, phase: Phase) -> None:
        """Write the phase of the move to the metadata of the source."""
        moving = {"from": self.source, "to": self.target, "phase": phase, "embedding": self.embedding}
        self._call("PATCH", f"/collections/{self.source}", {"metadata": {MOVING_KEY: moving}})

    def announce(self) -> None:
        """Announce the move, and wait longer than the lease of the API."""
        self.write_phase(Phase.ANNOUNCED)
        time.sleep(self.announce_s)

    def move(self) -> None:
        """Point the alias to the target."""
        action = {"create_alias": {"collection_name": self.target, "alias_name": self.alias}}
        self._call("POST", "/collections/aliases", {"actions": [action]})

    def remove(self) -> None:
        """Delete both collections."""
        for collection in (self.source, self.target):
            self._call("DELETE", f"/collections/{collection}", None)

    def points(self, collection: str, *, with_vector: bool = False) -> list[dict[str, Any]]:
        """Return all points of a collection."""
        found: list[dict[str, Any]] = []
        offset = None
        while True:
            body = {"limit": 500, "with_payload": True, "with_vector": with_vector, "offset": offset}
            page = self._call("POST", f"/collections/{collection}/points/scroll", body)
            found += page["points"]
            offset = page["next_page_offset"]
            if offset is None:
                return found

    def _vector(self, payload: dict[str, Any]) -> Any:
        return embed_apart("new", payload["content"], self.size) if "content" in payload else {}

    def _call(self, method: str, path: str, body: Any) -> Any:
        return check_success(self.qdrant.request(method, path, json=body)).json()["result"]


LEASE_S, ANNOUNCE_S = 0.5, 0.7
SCORING = {"scoreThreshold": -1, "minSimilarity": -1, "weights": {"similarity": 1, "recency": 0, "utility": 0}}


@dataclass(slots=True)
class MovedAgent:
    """One agent behind an API, and the mover of its alias."""

    api: httpx.Client
    mover: AliasMover
    slug: str

    def store(self, text: str, **headers: str) -> httpx.Response:
        return self.post("memories", {"content": text}, **headers)

    def search(self, text: str) -> httpx.Response:
        return self.post("search", {"query": text, "top_k": 1})

    def score(self, text: str) -> float:
        return float(self.search(text).raise_for_status().json()["results"][0]["score"])

    def post(self, path: str, body: dict[str, object], **headers: str) -> httpx.Response:
        return self.api.post(f"/v1/agents/{self.slug}/{path}", json={"user_id": "ada", **body}, headers=headers)

    def contents(self, collection: str) -> Counter[str]:
        return Counter(point["payload"]["content"] for point in self.mover.points(collection))


@contextlib.contextmanager
def open_worlds(qdrant_url: str, sizes: Mapping[str, int], *, hold_s: float = 10) -> Iterator[list[MovedAgent]]:
    """Serve agents; `sizes` maps each slug to the dimensions of its new model."""
    times = FenceTiming(lease_s=LEASE_S, hold_s=hold_s)
    old = {"provider": "openai", "model": "old", "dimensions": 8}
    documents = [agent_document(slug, embedding=old, scoring=SCORING) for slug in sizes]
    for document in documents:
        create_collection(qdrant_url, document)
    with (
        running_api(qdrant_url, *documents, times=times, embedder_of=TwoModels) as stack,
        httpx.Client(base_url=stack.api_url, timeout=30) as api,
        httpx.Client(base_url=qdrant_url, timeout=30) as qdrant,
    ):
        worlds = [
            MovedAgent(api, AliasMover(qdrant, f"agent_memory_{slug}", ANNOUNCE_S, size), slug)
            for slug, size in sizes.items()
        ]
        yield worlds
        for world in worlds:
            world.mover.remove()


@contextlib.contextmanager
def open_world(qdrant_url: str, *, size: int = 8, hold_s: float = 10) -> Iterator[MovedAgent]:
    with open_worlds(qdrant_url, {"moving": size}, hold_s=hold_s) as [world]:
        yield world


@dataclass(slots=True)
class Traffic:
    """Writers and readers; readers search for acknowledged memories and record wrong answers.

    Attributes:
        acknowledged: Contents of stored memories, in the order of the responses.
    """

    world: MovedAgent
    acknowledged: list[str] = field(default_factory=list)
    refusals: Counter[int] = field(default_factory=Counter)
    searches: int = 0
    wrong: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def write(self, name: str) -> None:
        for number in range(100_000):
            if self.is_over.is_set():
                return
            text = f"{name} says {number}"
            status = self.world.store(text).status_code
            if status == 201:
                self.acknowledged.append(text)
            else:
                self.refusals[status] += 1

    def read(self, step: int) -> None:
        while not self.is_over.is_set():
            known = self.acknowledged[:: -1 - step]
            for text in known[:20]:
                self._ask(text)

    def _ask(self, text: str) -> None:
        answer = self.world.search(text)
        self.searches += 1
        results = answer.json().get("results", [])
        if answer.status_code != 200 or not results or results[0]["content"] != text or results[0]["score"] < 0.99:
            self.wrong.append(f"{text}: {answer.status_code} {answer.text[:300]}")

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until `count` more writes are acknowledged and `count` more searches answered."""
        enough = len(self.acknowledged) + count, self.searches + count
        wait_until(
            lambda: len(self.acknowledged) >= enough[0] and self.searches >= enough[1], seconds=30, what="requests"
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        works: list[Callable[[], None]] = [lambda: self.write("one"), lambda: self.write("two")]
        works += [lambda: self.read(0), lambda: self.read(6)]
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join(30)


@pytest.mark.parametrize("size", [8, 16])
def test_searches_and_writes_survive_a_move(qdrant_url: str, size: int) -> None:
    """No search fails or mixes two models, and no acknowledged write is lost."""

    with open_world(qdrant_url, size=size) as world:
        mover, traffic = world.mover, Traffic(world)
        with traffic.running():
            traffic.wait_for_more()
            mover.create()
            mover.copy_missing()
            mover.announce()
            mover.write_phase(Phase.FINAL)
            mover.copy_missing()
            carried = set(world.contents(mover.target))
            acknowledged = set(traffic.acknowledged)
            mover.move()
            mover.copy_missing()
            traffic.wait_for_more()

        assert traffic.wrong == []
        assert acknowledged - carried == set(), "acknowledged before the alias moved, and missed by the last pass"
        assert set(traffic.acknowledged) - set(world.contents(mover.target)) == set()
        assert set(traffic.refusals) <= {504}
        assert sum(traffic.refusals.values()) <= 2, "only what was under way when the move became final"
        assert all(any(point["vector"][size // 2 :]) for point in mover.points(mover.target, with_vector=True))


def test_unfinished_move_refuses_writes_only(
    qdrant_url: str,
) -> None:
    """The operator dies before the alias moves: writes get 503 after `hold_s`, searches succeed."""

    with open_world(qdrant_url, hold_s=0.5) as world:
        world.store("before").raise_for_status()
        world.mover.create()
        world.mover.announce()
        world.mover.write_phase(Phase.FINAL)

        refused = world.store("meanwhile")
        found = world.score("before")
        world.mover.copy_missing()
        world.mover.move()
        stored = world.store("after")

        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/store-unavailable")
        assert refused.headers["Retry-After"] == "1"
        assert found > 0.99
        assert stored.status_code == 201
        assert world.contents(world.mover.target) == {"before": 1, "after": 1}


def test_held_write_is_stored_once_in_new_collection(qdrant_url: str) -> None:
    with open_world(qdrant_url) as world:
        world.store("before").raise_for_status()
        world.mover.create()
        world.mover.announce()
        world.mover.write_phase(Phase.FINAL)
        answers: list[httpx.Response] = []
        writing = threading.Thread(target=lambda: answers.append(world.store("meanwhile")))
        writing.start()
        time.sleep(0.1)
        world.mover.copy_missing()
        world.mover.move()
        writing.join(10)

        assert [answer.status_code for answer in answers] == [201]
        assert world.contents(world.mover.source) == {"before": 1}
        assert world.contents(world.mover.target) == {"before": 1, "meanwhile": 1}


MOVES = [("search", 8), ("batch", 8), ("import", 8), ("item", 8), ("search", 16), ("store", 16)]
"""First request after the move of the alias, and the dimensions of the new model."""


@pytest.fixture(scope="module")
def moved(qdrant_url: str) -> Iterator[dict[tuple[str, int], MovedAgent]]:
    """Agents whose aliases moved unannounced after the process read their metadata, longer ago than the lease."""
    kinds = {f"{method}-{size}": (method, size) for method, size in MOVES}
    with open_worlds(qdrant_url, {slug: size for slug, (_, size) in kinds.items()}) as worlds:
        for world in worlds:
            world.store("before").raise_for_status()
            world.mover.create()
            world.mover.copy_missing()
        time.sleep(LEASE_S)
        for world in worlds:
            world.mover.move()
        yield {kinds[world.slug]: world for world in worlds}


@pytest.mark.parametrize(("method", "size"), MOVES)
def test_call_is_repeated_with_new_model_after_move(
    moved: dict[tuple[str, int], MovedAgent], method: str, size: int
) -> None:
    world = moved[method, size]

    answer = _do(world, method)

    assert answer.is_success, answer.text
    assert world.contents(world.mover.source) == {"before": 1}
    assert world.score("before") > 0.99
    if method == "search":
        assert answer.json()["results"][0]["score"] > 0.99
    else:
        assert world.contents(world.mover.target) == {"before": 1, "after": 1}
        assert world.score("after") > 0.99


def _do(world: MovedAgent, method: str) -> httpx.Response:
    url, owner = f"/v1/agents/{world.slug}", {"user_id": "ada"}
    match method:
        case "search":
            return world.search("before")
        case "store":
            return world.store("after", **{"Idempotency-Key": "k"})
        case "batch":
            return world.api.post(f"{url}/memories/batch", json={"memories": [owner | {"content": "after"}]})
        case "item":
            place = {"namespace": ["memories", "ada"], "key": "a"}
            return world.api.put(f"{url}/items", params=place, json={"content": "after"})
        case _:
            lines = {"Content-Type": "application/x-ndjson"}
            return world.api.post(f"{url}/import", params=owner, content='{"content": "after"}\n', headers=lines)
