"""`python -m bench --rivals`: compare the API with hand-written queries that find the same memories.

Every side uses one keep-alive socket. Its time includes all work of the caller: encoding the question, decoding the
response and, if the client ranks, ranking. The order of the sides rotates with each question.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.rules.keywords import BM25_MODEL
from agentmemory_operator.search.rules.score import score_query
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DAY_MS
from bench.clients import Client
from bench.datasets import Dataset, Floats
from bench.measures import (
    ATTEMPTS,
    STORE_BATCH,
    TOP_K,
    Latency,
    access_counts,
    latency_of,
    store_body,
    store_per_second,
)
from bench.oracle import Oracle
from bench.progress import log_progress
from bench.stacks import Stack, ranking_of
from bench.tables import GOAL_HEAD, Cells, down, render

Json = dict[str, Any]

CORTEX, STANDARD = "cortex", "standard"
EFFORTS = ("Exact", "Balanced", "Fast")
NEAREST = 1_000
"""Memories that a hand-written formula scores, and the most that a client fetches to rank by itself."""
LIST_LIMIT = 100
"""Memories on each list of a hand-written hybrid query."""
FETCH_LIMITS = (30, 100, 300, NEAREST)
WARM_UP, JUDGED, PROVEN = 40, 60, 100
ONE_A_CALL = 300
BLOCK = 25
"""Searches in a block with writes between them, or in one without. The two alternate."""

VOCABULARY, WORDS, ASKED_WORDS = 5_000, 14, 6
HEAD = ("agent", "asked", "p50, ms", "p99", "API / it, p50", "p99", "exact top 10 found")


@dataclass(frozen=True, slots=True)
class Question:
    """Question of one user: a vector, and for searches by words also a text."""

    user: int
    vector: Floats
    text: str


Ask = Callable[[Question], list[int]]
"""Sends a question to one side and returns the found rows."""


@dataclass(slots=True)
class SideResults:
    """Latencies and results of one side."""

    latencies_ms: list[float] = field(default_factory=list)
    found: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def latency(self) -> Latency:
        """Latency without the first questions, which warm up."""
        return latency_of(self.latencies_ms[WARM_UP:])


def fill(stack: Stack, cortex: Dataset, standard: Dataset) -> None:
    """Store the memories of both agents, those with words through the API. Print the rates."""
    texts = sentences(len(standard))
    for data in (cortex, standard):
        stack.wait_ready(data.slug)
    log_progress(f"storing {len(cortex):,} and {len(standard):,} memories")
    plain = store_per_second(stack, cortex)
    worded = store_per_second(stack, standard, lambda row: spoken_body(standard, row, texts))
    for data in (cortex, standard):
        stack.wait_indexed(data.alias)
    print(f"stored a second, {STORE_BATCH} a call: {plain:,.0f} without words (at least 2,000), {worded:,.0f} with\n")


def measure(stack: Stack, cortex: Dataset, standard: Dataset, *, searches: int, samples: int) -> None:
    """Measure everything and print it. The memories of both agents must be stored."""
    texts = sentences(len(standard))
    log_progress(f"asking {searches:,} questions of each side")
    by_score = compare_score(stack, cortex, searches)
    by_words = compare_words(stack, standard, texts, searches)
    print(render(HEAD, [*by_score, *by_words]))
    log_progress(f"{samples:,} searches, with writes between every other {BLOCK} of them")
    rows = [mixed(stack, cortex, samples, preset=CORTEX), *stores(stack, standard, texts)]
    print("\n" + render(GOAL_HEAD, rows))


def compare_score(stack: Stack, data: Dataset, count: int) -> list[Cells]:
    """Compare searches by the weighted score. Return the table's rows."""
    ranking = ranking_of(data.slug)
    with Client(stack.api_url) as api, Client(stack.qdrant_url) as qdrant:
        hand = ByHand(qdrant, data, ranking)
        sides = {
            "API": by_api(api, data),
            f"formula over the nearest {NEAREST:,}": hand.formula,
            **{f"nearest {fetched:,}, ranked in the client": hand.ranked(fetched) for fetched in FETCH_LIMITS},
            "plain nearest 10": hand.nearest,
        }
        questions = [Question(user, vector, "") for user, vector in data.questions(count + WARM_UP)]
        shares = shares_found(qdrant, data, sides, questions[:JUDGED])
        asked = alternate(sides, questions)
    return rows_of(CORTEX, asked, {name: down(share) for name, share in shares.items()})


def compare_words(stack: Stack, data: Dataset, texts: Sequence[str], count: int) -> list[Cells]:
    """Compare searches by meaning and words, with each effort in turn. Return the table's rows."""
    questions = list(spoken(data, texts, count + WARM_UP))
    rows: list[Cells] = []
    best: list[list[int]] = []
    with Client(stack.api_url) as api, Client(stack.qdrant_url) as qdrant:
        hand = ByHand(qdrant, data, None)
        for effort in EFFORTS:
            set_effort(stack, api, data.slug, effort)
            sides = {"API": by_api(api, data), f"dense and BM25, {LIST_LIMIT} each, RRF": hand.hybrid}
            if effort == EFFORTS[-1]:
                sides["plain nearest 10"] = hand.nearest
            asked = alternate(sides, questions)
            found = [rows for _, rows in asked["API"].found[:JUDGED]]
            best = best or found
            share = down(float(np.mean([len({*a} & {*b}) / len(a) for a, b in zip(best, found, strict=True)])))
            if effort == EFFORTS[0]:
                proven = sum(is_proven(api, data, question) for question in questions[:PROVEN]) / PROVEN
                share = f"{down(proven)}, proven by `explain`"
            rows += rows_of(f"{STANDARD}, {effort}", asked, {"API": share})
    return rows


def set_effort(stack: Stack, api: Client, slug: str, effort: str) -> None:
    """Change the effort of an agent's searches, and wait until it applies."""
    path = f"/v1/agents/{slug}"
    before = api.call("GET", path)["generation"]
    manifest = stack.applied(slug)
    manifest["spec"]["scoring"] = {"effort": effort}
    stack.apply(manifest)
    stack.wait_until(lambda: api.call("GET", path)["generation"] > before, f"effort {effort} does not apply")


def alternate(sides: dict[str, Ask], questions: Sequence[Question]) -> dict[str, SideResults]:
    """Send each question to every side. The first side rotates."""
    asked = {name: SideResults() for name in sides}
    names = list(sides)
    for number, question in enumerate(questions):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            now_ms, started_s = time.time_ns() // 1_000_000, time.perf_counter()
            rows = sides[name](question)
            asked[name].latencies_ms.append((time.perf_counter() - started_s) * 1000)
            asked[name].found.append((now_ms, rows))
    return asked


def rows_of(agent: str, results: dict[str, SideResults], shares: dict[str, str]) -> list[Cells]:
    """Return the rows of one agent: the latencies of every side, and the ratio of the API's to them."""
    api = results["API"].latency
    rows: list[Cells] = []
    for name, side in results.items():
        latency = side.latency
        ratios = ("", "") if name == "API" else (f"{api.p50 / latency.p50:.2f}", f"{api.p99 / latency.p99:.2f}")
        rows.append((agent, name, f"{latency.p50:.2f}", f"{latency.p99:.2f}", *ratios, shares.get(name, "")))
    return rows


def shares_found(
    qdrant: Client, data: Dataset, sides: dict[str, Ask], questions: Sequence[Question]
) -> dict[str, float]:
    """Return the share of the exact best 10 that each side finds.

    The searches are repeated until no access count changed during them, because access counts change scores.

    Raises:
        RuntimeError: If counts changed during every attempt.
    """
    ranking = ranking_of(data.slug)
    for _ in range(ATTEMPTS):
        before = access_counts(qdrant, data)
        asked = alternate(sides, questions)
        if np.array_equal(before, access_counts(qdrant, data)):
            oracle = Oracle(data, ranking, before)
            return {name: share_of(oracle, questions, side.found) for name, side in asked.items()}
    raise RuntimeError("access counts changed during every attempt")


def share_of(oracle: Oracle, questions: Sequence[Question], found: Sequence[tuple[int, list[int]]]) -> float:
    """Return the share of the exact best 10 that was found, averaged over the questions."""
    shares = [
        oracle.share_found(question.user, question.vector, now_ms=now_ms, found=rows, top_k=TOP_K)
        for question, (now_ms, rows) in zip(questions, found, strict=True)
    ]
    return sum(shares) / len(shares)


def by_api(api: Client, data: Dataset) -> Ask:
    """Return a function that searches through the API."""

    def ask(question: Question) -> list[int]:
        answer = api.call("POST", f"/v1/agents/{data.slug}/search", api_body(data, question))
        return [result["metadata"]["row"] for result in answer["results"]]

    return ask


def api_body(data: Dataset, question: Question) -> Json:
    """Return the body of a search."""
    query = {"query": question.text} if question.text else {}
    return {"user_id": data.user_name(question.user), "vector": question.vector, "top_k": TOP_K, **query}


def is_proven(api: Client, data: Dataset, question: Question) -> bool:
    """Return whether the API proves that its results are the exact best."""
    answer = api.call("POST", f"/v1/agents/{data.slug}/search", api_body(data, question) | {"explain": True})
    return bool(answer["candidates"]["exact"])


class ByHand:
    """Queries that a user of the same collection would write without the product.

    Args:
        ranking: Ranking of the formula. None if no formula is used.
    """

    def __init__(self, qdrant: Client, data: Dataset, ranking: Ranking | None) -> None:
        self._qdrant, self._data, self._ranking = qdrant, data, ranking
        self._half_life_ms = {
            type_.name: (type_.half_life_days or np.inf) * DAY_MS for type_ in (ranking.types if ranking else ())
        }

    def nearest(self, question: Question) -> list[int]:
        """Return the 10 nearest memories of the user."""
        return self._rows({"query": question.vector, "filter": self._filter(question), "limit": TOP_K})

    def formula(self, question: Question) -> list[int]:
        """Rank by the same score in the engine, over the nearest memories."""
        assert self._ranking is not None
        among = {"query": question.vector, "filter": self._filter(question), "limit": NEAREST}
        scored = score_query(self._ranking, now_ms=time.time_ns() // 1_000_000, distance="Cosine")
        return self._rows({"prefetch": among, "query": scored, "limit": TOP_K})

    def ranked(self, fetched: int) -> Ask:
        """Return a function that ranks by the same score in the client, over the `fetched` nearest memories."""

        def ask(question: Question) -> list[int]:
            body = {"query": question.vector, "filter": self._filter(question), "limit": fetched}
            points = self._points(body)
            scores = self._scores(points)
            return [points[place]["payload"]["metadata"]["row"] for place in np.argsort(-scores)[:TOP_K]]

        return ask

    def hybrid(self, question: Question) -> list[int]:
        """Fuse the nearest memories and those with the question's words by their ranks (RRF)."""
        filter_ = self._filter(question)
        words = {"text": question.text, "model": BM25_MODEL, "options": {"language": "english"}}
        lists = [
            {"query": question.vector, "filter": filter_, "limit": LIST_LIMIT},
            {"query": words, "using": KEYWORD_VECTOR, "filter": filter_, "limit": LIST_LIMIT},
        ]
        return self._rows({"prefetch": lists, "query": {"fusion": "rrf"}, "limit": TOP_K})

    def _filter(self, question: Question) -> Json:
        current = {"is_empty": {"key": "supersededById"}}
        alive = [{"is_empty": {"key": "expiresAt"}}, {"key": "expiresAt", "range": {"gt": self._data.now_ms}}]
        of_user = {"key": "userId", "match": {"value": self._data.user_name(question.user)}}
        return {"must": [of_user, current, {"should": alive}]}

    def _points(self, body: Json) -> list[Json]:
        path = f"/collections/{self._data.alias}/points/query"
        points: list[Json] = self._qdrant.call("POST", path, body | {"with_payload": True})["result"]["points"]
        return points

    def _rows(self, body: Json) -> list[int]:
        return [point["payload"]["metadata"]["row"] for point in self._points(body)]

    def _scores(self, points: Sequence[Json]) -> Any:
        assert self._ranking is not None
        payloads, weights = [point["payload"] for point in points], self._ranking.weights
        now_ms = time.time_ns() // 1_000_000
        similarity = np.array([point["score"] for point in points])
        ages = np.array([(now_ms - row["createdAt"]) / self._half_life_ms[row["type"]] for row in payloads])
        used = np.log10(1 + np.array([row["accessCount"] for row in payloads]))
        utility = np.array([row["importance"] for row in payloads]) * (1 + used) / self._ranking.utility_norm
        return (
            weights.similarity * similarity
            + weights.recency * 0.5 ** np.maximum(ages, 0)
            + weights.utility * np.minimum(utility, 1)
        )


def mixed(stack: Stack, data: Dataset, samples: int, *, preset: str) -> Cells:
    """Search with and without writes of the same user between the searches, in alternating blocks.

    Return a table row.
    """
    alone: list[float] = []
    between: list[float] = []
    with Client(stack.api_url) as api:
        for number, (user, vector) in enumerate(data.questions(samples)):
            has_writes = (number // BLOCK) % 2 == 1
            if has_writes:
                row = number % len(data)
                body = store_body(data, row) | {"user_id": data.user_name(user)}
                api.call("POST", f"/v1/agents/{data.slug}/memories", body)
            request = api.prepare("POST", f"/v1/agents/{data.slug}/search", api_body(data, Question(user, vector, "")))
            (between if has_writes else alone).append(api.timed(request)[1])
    calm, busy = latency_of(alone[WARM_UP:]), latency_of(between)
    figures = f"{busy.p50:.2f} / {calm.p50:.2f} ms = {busy.p50 / calm.p50:.2f}; p99 {busy.p99:.1f} / {calm.p99:.1f} ms"
    label = f"{preset}: p50 of searches with a store before each, over searches alone ({samples:,} in turn)"
    return (label, figures, "at most 1.3")


def stores(stack: Stack, data: Dataset, texts: Sequence[str]) -> list[Cells]:
    """Store memories with words in sessions, one per request. Return table rows."""
    with Client(stack.api_url) as api:
        path = f"/v1/agents/{data.slug}/memories"
        bodies = [
            spoken_body(data, row, texts) | {"content": f"new {row}: {texts[row]}", "session_id": f"new-{row // 20}"}
            for row in range(ONE_A_CALL)
        ]
        one_a_call = ONE_A_CALL / timed(lambda: [api.call("POST", path, body) for body in bodies])
    return [("standard: stored a second with words, one a call, in sessions", f"{one_a_call:,.0f}", "at least 100")]


def timed(operation: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started_s = time.perf_counter()
    operation()
    return time.perf_counter() - started_s


def sentences(count: int) -> list[str]:
    """Return texts with a Zipf distribution of words, as in a natural language."""
    generator = np.random.default_rng(3)
    shares = 1 / np.arange(1, VOCABULARY + 1)
    words = generator.choice(VOCABULARY, (count, WORDS), p=shares / shares.sum())
    return [" ".join(f"word{word}" for word in row) for row in words]


def spoken_body(data: Dataset, row: int, texts: Sequence[str]) -> Json:
    """Return the request body that stores a row with its own text, in one of its user's sessions."""
    session_id = f"session-{row // (20 * data.users)}"
    return store_body(data, row) | {"content": f"{row}: {texts[row]}", "session_id": session_id}


def spoken(data: Dataset, texts: Sequence[str], count: int) -> Iterator[Question]:
    """Yield questions of users in turn, each with words of one of the user's memories."""
    for number, (user, vector) in enumerate(data.questions(count)):
        row = (number * 7 * data.users + user) % len(data)
        yield Question(user, vector, " ".join(texts[row].split()[:ASKED_WORDS]))
