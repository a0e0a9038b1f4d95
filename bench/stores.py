"""`python -m bench.stores`: store memories with words through the API and by hand with qdrant-client, in turn.

All memories are in sessions, so a keyword text contains the two memories before it. *In order*: each memory is newer
than those before it. *Late*: its time is random, so it changes the texts of the next two memories of its session. By
hand, the same fields, vectors and own words are upserted with `wait=true`; no text contains another memory.
"""

import argparse
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from qdrant_client import QdrantClient, models

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.memories.rules.keywords import keyword_document, keyword_text
from bench import rivals
from bench.clients import Client
from bench.datasets import Dataset, make_dataset
from bench.load import sample_process
from bench.measures import STORE_BATCH
from bench.stacks import Stack, remove_collections, running, standard_manifest
from bench.tables import Cells, machine, render

Json = dict[str, Any]

USERS = 20
TURNS = 20
"""Memories in a session of those that are stored one a call."""
SOURCE = KeywordSource(language="english", window=2)
HEAD = (
    *("memories", "a call", "API, stored a second", "by hand", "API / by hand, time", "calls of Qdrant a request"),
    *("CPU ms a memory: API", "Qdrant"),
)
GOALS = {("late", 1): 200, ("in order", 1): 200, ("late", STORE_BATCH): 1_500, ("in order", STORE_BATCH): 1_500}
_CALLS = re.compile(r'^agentmemory_api_engine_duration_seconds_count\{.*operation="([^"]*)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a comparison.

    Attributes:
        qdrant_pid: Process of the Qdrant server. None if it is on another machine.
    """

    stack: Stack
    hand: QdrantClient
    qdrant_pid: int | None

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU seconds that the API and Qdrant have used."""
        pids = (self.stack.api_pid, self.qdrant_pid)
        api_s, qdrant_s = (sample_process(pid, 0).cpu_s if pid else 0.0 for pid in pids)
        return api_s, qdrant_s

    def calls(self) -> Counter[str]:
        """Return the number of calls of Qdrant that the API has made, by operation."""
        with Client(self.stack.api_url) as api:
            text = api.text("GET", "/metrics")
        counts: Counter[str] = Counter()
        for operation, count in _CALLS.findall(text):
            counts[operation] += int(float(count))
        return counts


@dataclass(slots=True)
class Costs:
    """What the requests of one kind have taken, in seconds."""

    api_s: float = 0.0
    hand_s: float = 0.0
    api_cpu_s: float = 0.0
    qdrant_cpu_s: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)


def main() -> None:
    args = parse_args()
    now_ms = time.time_ns() // 1_000_000
    slug = f"bench-stores-{secrets.token_hex(2)}"
    words, plain = (
        make_dataset(name, size=args.size, users=USERS, now_ms=now_ms).all_visible() for name in (slug, f"{slug}-plain")
    )
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-stores-") as folder,
        running(Path(folder), [plain.slug], args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}, {args.size:,} memories of {USERS} users", flush=True)
        # With `cloud_inference` the client sends texts as they are, and the server computes the vectors.
        hand = QdrantClient(stack.qdrant_url, cloud_inference=True, check_compatibility=False, timeout=60)
        try:
            stack.apply(standard_manifest(words.slug))
            for data in (words, plain):
                stack.wait_ready(data.slug)
            sides = Sides(stack, hand, args.qdrant_pid)
            print(render(HEAD, list(measure(sides, words, plain, singles=args.singles))))
        finally:
            hand.close()
            if args.qdrant:
                remove_collections(args.qdrant, [words.alias, plain.alias])


def measure(sides: Sides, words: Dataset, plain: Dataset, *, singles: int) -> Iterator[Cells]:
    """Store memories in every way. Yield the rows of the table."""
    texts = rivals.sentences(len(words))
    late = [rivals.spoken_body(words, row, texts) for row in range(len(words))]
    conversations = [
        body | {"user_id": f"speaker-{row // TURNS}", "session_id": f"talk-{row // TURNS}"}
        for row, body in enumerate(late[:singles])
    ]
    for size, bodies in ((STORE_BATCH, late), (1, conversations)):
        yield compare(sides, words, "late", bodies, size)
        yield compare(sides, words, "in order", [in_order(body, row) for row, body in enumerate(bodies)], size)
    yield compare(sides, plain, "without words", late, STORE_BATCH)


def in_order(body: Json, row: int) -> Json:
    """Return a body of another session, with a time after those of earlier rows."""
    time_of_day = f"{row // 3_600:02}:{row // 60 % 60:02}:{row % 60:02}"
    other = {"content": f"then {body['content']}", "session_id": f"then-{body['session_id']}"}
    return body | other | {"created_at": f"2026-01-01T{time_of_day}Z"}


def compare(sides: Sides, data: Dataset, name: str, bodies: Sequence[Json], size: int) -> Cells:
    """Store the same memories through the API and by hand, request by request. Return the table's row.

    Raises:
        RuntimeError: If the API did not store a memory.
    """
    path = f"/v1/agents/{data.slug}/memories"
    parts = [bodies[start : start + size] for start in range(0, len(bodies), size)]
    costs, calls_before = Costs(), sides.calls()
    with Client(sides.stack.api_url) as api:
        for part in parts:
            content = part[0] if size == 1 else {"memories": part}
            request = api.prepare("POST", path if size == 1 else f"{path}/batch", content)
            points = [hand_point(data, body) for body in part]
            before_s = sides.cpu_s()
            answer, took_ms = api.timed(request)
            after_s = sides.cpu_s()
            check_stored(answer, size=len(part))
            costs.api_s += took_ms / 1000
            costs.api_cpu_s += after_s[0] - before_s[0]
            costs.qdrant_cpu_s += after_s[1] - before_s[1]
            costs.hand_s += rivals.timed(lambda points=points: sides.hand.upsert(data.alias, points, wait=True))  # type: ignore[misc]
    costs.calls = sides.calls() - calls_before
    return cells_of(name, size, costs, memories=len(bodies), requests=len(parts))


def check_stored(answer: Json, *, size: int) -> None:
    """Raise RuntimeError unless an answer has the ids of `size` memories."""
    stored = sum("id" in result for result in answer.get("results", [answer]))
    if stored != size:
        raise RuntimeError(f"{stored} of {size} memories were stored: {answer}")


def cells_of(name: str, size: int, costs: Costs, *, memories: int, requests: int) -> Cells:
    goal = GOALS.get((name, size))
    rate = f"{memories / costs.api_s:,.0f}" + (f" (at least {goal:,})" if goal else "")
    each = ", ".join(f"{count / requests:.1f} {operation}" for operation, count in sorted(costs.calls.items()))
    return (
        *(name, str(size), rate, f"{memories / costs.hand_s:,.0f}", f"{costs.api_s / costs.hand_s:.2f}"),
        f"{costs.calls.total() / requests:.1f} ({each})",
        *(f"{cpu_s * 1000 / memories:.2f}" for cpu_s in (costs.api_cpu_s, costs.qdrant_cpu_s)),
    )


def hand_point(data: Dataset, body: Json) -> models.PointStruct:
    """Return the point that a user of the same collection would write for a memory."""
    row: int = body["metadata"]["row"]
    stated = {"userId": f"hand-{body['user_id']}", "sessionId": body["session_id"], "content": body["content"]}
    payload = data.points(row, row + 1)[0]["payload"] | stated
    vector: Any = data.vectors[row].tolist()
    if not data.slug.endswith("-plain"):
        document = models.Document(**keyword_document(keyword_text(payload, (), SOURCE), SOURCE))
        vector = {"": vector, KEYWORD_VECTOR: document}
    return models.PointStruct(id=str(uuid4()), vector=vector, payload=payload)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.stores", description=__doc__)
    parser.add_argument("--size", type=int, default=20_000, help="memories in batches (default: %(default)s)")
    parser.add_argument("--singles", type=int, default=1_000, help="memories one a call (default: %(default)s)")
    parser.add_argument("--qdrant", metavar="URL", help="a real server (default: the dev server)")
    parser.add_argument("--qdrant-pid", type=int, metavar="PID", help="its process, to measure the CPU that it uses")
    return parser.parse_args()


if __name__ == "__main__":
    main()
