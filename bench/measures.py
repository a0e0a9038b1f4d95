"""The measurements of the main benchmark, one function each. Each leaves the stack as the next one needs it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.search.rules.candidates import plan_candidates, similarity_formula
from agentmemory_operator.search.rules.score import score_query
from agentmemory_operator.spec.effective.settings import Ranking
from bench.clients import Client
from bench.datasets import Dataset, Floats
from bench.oracle import Oracle
from bench.stacks import Stack, ranking_of

Json = dict[str, Any]

TOP_K = 10
STORE_BATCH, LOAD_BATCH, SCROLL_PAGE = 100, 500, 5_000
WARM_UP = 20
# The two requests are sent milliseconds apart, so scores may differ in the last digits.
SAME_SCORE = 1e-4
# Share of responses that may differ, because the API may write access counts between the two requests.
MAY_DIFFER_SHARE = 0.02
ATTEMPTS = 5
GENERATION_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of many calls in milliseconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Searching:
    """Latencies of API and bare engine for the same searches, sent in turn."""

    api: Latency
    engine: Latency


def store_per_second(stack: Stack, data: Dataset, body_of: Callable[[int], Json] | None = None) -> float:
    """Store everything through the API, one request after the other. Return memories per second.

    Args:
        body_of: Builds the body of a row. None uses `store_body`.

    Raises:
        RuntimeError: If a memory was not stored.
    """
    body_of = body_of or partial(store_body, data)
    with Client(stack.api_url) as api:
        requests = [
            api.prepare("POST", f"/v1/agents/{data.slug}/memories/batch", {"memories": batch})
            for batch in _batches(len(data), body_of)
        ]
        started_s = time.perf_counter()
        answers = [api.send(request) for request in requests]
        took_s = time.perf_counter() - started_s
    stored = sum("id" in result for answer in answers for result in answer["results"])
    if stored != len(data):
        raise RuntimeError(f"{stored} of {len(data)} memories were stored")
    return stored / took_s


def _batches(count: int, body_of: Callable[[int], Json]) -> Iterator[list[Json]]:
    for start in range(0, count, STORE_BATCH):
        yield [body_of(row) for row in range(start, min(start + STORE_BATCH, count))]


def store_body(data: Dataset, row: int) -> Json:
    """Return the request body that stores a row."""
    record = data.record(row)
    return {
        "user_id": record.user_id,
        "content": record.content,
        "type": record.type,
        "importance": record.importance,
        "session_id": record.session_id,
        "tags": list(record.tags),
        "metadata": dict(record.metadata),
        "created_at": _rfc3339(record.created_at),
        "vector": data.vectors[row],
    }


def _rfc3339(time_ms: int) -> str:
    return str(np.datetime64(time_ms, "ms")) + "Z"


def load(stack: Stack, data: Dataset) -> None:
    """Write everything directly into the collection, in the product's payload format."""
    path = f"/collections/{data.alias}/points?wait=true"
    with Client(stack.qdrant_url) as qdrant:
        for start in range(0, len(data), LOAD_BATCH):
            qdrant.call("PUT", path, {"points": data.points(start, start + LOAD_BATCH)})


def assign_users(stack: Stack, data: Dataset) -> None:
    """Assign each memory in the collection to its user in `data`. Vectors and graph stay."""
    path = f"/collections/{data.alias}/points/payload?wait=true"
    with Client(stack.qdrant_url) as qdrant:
        for user in range(data.users):
            ids = [data.id(int(row)) for row in np.flatnonzero(data.user == user)]
            qdrant.call("POST", path, {"payload": {"userId": data.user_name(user)}, "points": ids})


def compare_searches(stack: Stack, data: Dataset, count: int) -> Searching:
    """Send the same searches to API and engine in turn, one at a time, with alternating order.

    Raises:
        RuntimeError: If more results differ than concurrent access counts explain.
    """
    took: tuple[list[float], list[float]] = [], []
    different = 0
    with Client(stack.api_url) as api, Client(stack.qdrant_url) as qdrant:
        bare = BareEngine(qdrant, data)
        for index, (user, vector) in enumerate(data.questions(count + WARM_UP)):
            requests = search_request(api, data, user=user, vector=vector), bare.request(user, vector)
            answers: list[Any] = [None, None]
            for side in (0, 1) if index % 2 else (1, 0):
                answers[side], took_ms = (api, qdrant)[side].timed(requests[side])
                if index >= WARM_UP:
                    took[side].append(took_ms)
            different += not _is_same(answers[0]["results"], answers[1]["result"]["points"], bare.ranking)
    if different > max(1, MAY_DIFFER_SHARE * count):
        raise RuntimeError(f"API and engine did not do the same work: {different} of {count} answers differ")
    return Searching(latency_of(took[0]), latency_of(took[1]))


class BareEngine:
    """Builds the query that the API would send, with the API's own functions."""

    def __init__(self, qdrant: Client, data: Dataset) -> None:
        self._qdrant, self._data = qdrant, data
        self.ranking: Ranking = ranking_of(data.slug)
        self._eligible: dict[int, int] = {}

    def request(self, user: int, vector: Floats) -> bytes:
        """Return the prepared request."""
        now_ms = time.time_ns() // 1_000_000
        filter_ = visible_filter(Selection(user_id=self._data.user_name(user)), now_ms)
        eligible = self._count(user, filter_)
        plan = plan_candidates(self.ranking, filter_, eligible=eligible, top_k=TOP_K, now_ms=now_ms)
        body = {
            "prefetch": plan.query(vector, distance="Cosine"),  # type: ignore[arg-type] # orjson takes the array
            "query": score_query(
                self.ranking, now_ms=now_ms, distance="Cosine", similarity=similarity_formula("Cosine")
            ),
            "limit": TOP_K,
            "with_payload": True,
        }
        return self._qdrant.prepare("POST", f"/collections/{self._data.alias}/points/query", body)

    def _count(self, user: int, filter_: Json) -> int:
        """Return the number of memories that the user's searches select from. Cached, as the API does for seconds."""
        if user not in self._eligible:
            body = {"exact": True, "filter": filter_}
            answer = self._qdrant.call("POST", f"/collections/{self._data.alias}/points/count", body)
            self._eligible[user] = answer["result"]["count"]
        return self._eligible[user]


def search_request(api: Client, data: Dataset, *, user: int, vector: Floats) -> bytes:
    """Return the prepared request of a search for the best 10 memories of a user."""
    body = {"user_id": data.user_name(user), "vector": vector, "top_k": TOP_K}
    return api.prepare("POST", f"/v1/agents/{data.slug}/search", body)


def _is_same(results: list[Json], points: list[Json], ranking: Ranking) -> bool:
    api_scores = [result["score"] for result in results]
    engine_scores = [point["score"] for point in points if point["score"] >= ranking.score_threshold]
    return len(api_scores) == len(engine_scores) and np.allclose(api_scores, engine_scores, atol=SAME_SCORE, rtol=0)


def measure_recall(stack: Stack, data: Dataset, count: int) -> float:
    """Return the share of the exact best 10 that the API finds, averaged over questions.

    The API occasionally writes access counts, which change scores. The searches are repeated until no count changed
    during them, at most `ATTEMPTS` times.

    Raises:
        RuntimeError: If counts changed during every attempt.
    """
    with Client(stack.qdrant_url) as qdrant:
        for _ in range(ATTEMPTS):
            before = access_counts(qdrant, data)
            found = _ask(stack, data, count)
            if np.array_equal(before, access_counts(qdrant, data)):
                return _share(Oracle(data, ranking_of(data.slug), before), data, found)
    raise RuntimeError("access counts changed during every attempt")


def _ask(stack: Stack, data: Dataset, count: int) -> list[tuple[int, list[int]]]:
    """Return the time of each question, and the rows found."""
    found = []
    with Client(stack.api_url) as api:
        for user, vector in data.questions(count):
            now_ms = time.time_ns() // 1_000_000
            answer = api.send(search_request(api, data, user=user, vector=vector))
            found.append((now_ms, [result["metadata"]["row"] for result in answer["results"]]))
    return found


def _share(oracle: Oracle, data: Dataset, found: list[tuple[int, list[int]]]) -> float:
    questions = list(data.questions(len(found)))
    oracle.check(questions[0][1], found[0][0])
    shares = [
        oracle.share_found(user, vector, now_ms=now_ms, found=rows, top_k=TOP_K)
        for (user, vector), (now_ms, rows) in zip(questions, found, strict=True)
    ]
    return sum(shares) / len(shares)


def access_counts(qdrant: Client, data: Dataset) -> NDArray[np.int64]:
    """Return the current access count of each row in the collection."""
    counts = np.zeros(len(data), dtype=np.int64)
    offset = None
    while True:
        body = {"limit": SCROLL_PAGE, "offset": offset, "with_payload": ["accessCount", "metadata"]}
        page = qdrant.call("POST", f"/collections/{data.alias}/points/scroll", body)["result"]
        for point in page["points"]:
            counts[point["payload"]["metadata"]["row"]] = point["payload"]["accessCount"]
        if (offset := page["next_page_offset"]) is None:
            return counts


def weights_to_effect(stack: Stack, data: Dataset, changes: int) -> Latency:
    """Change the weights in the manifest `changes` times. Return the latency until a response is ranked by them.

    Raises:
        RuntimeError: If a change has no effect within `GENERATION_PATIENCE_S`.
    """
    _, vector = next(data.questions(1))
    took = []
    with Client(stack.api_url) as api:
        request = search_request(api, data, user=0, vector=vector)
        generation = api.send(request)["generation"]
        for number in range(changes):
            similarity = 0.9 - 0.01 * number
            weights = {"similarity": similarity, "recency": round(1 - similarity, 2), "utility": 0.0}
            started_s = time.perf_counter()
            stack.declare(data.slug, weights)
            generation = _wait_generation(api, request, beyond=generation)
            took.append((time.perf_counter() - started_s) * 1000)
    return latency_of(took)


def _wait_generation(api: Client, request: bytes, *, beyond: int) -> int:
    until = time.monotonic() + GENERATION_PATIENCE_S
    while time.monotonic() < until:
        generation: int = api.send(request)["generation"]
        if generation > beyond:
            return generation
    raise RuntimeError(f"a changed manifest had no effect within {GENERATION_PATIENCE_S:.0f} s")


def latency_of(latencies_ms: list[float]) -> Latency:
    ordered = sorted(latencies_ms)
    return Latency(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))])
