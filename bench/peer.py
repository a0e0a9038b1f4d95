"""Compare the product with mem0, the most used open memory library: same server, embedder, texts and questions.

    python -m venv PEER && PEER/bin/pip install mem0ai==2.2.1
    python -m bench.peer --peer-python PEER/bin/python --data FILE --embeddings http://127.0.0.1:9801/v1

The data is a JSON file of conversations with turns (`id, session, at, speaker, text`), and questions with the turns
that answer them. Both sides call the same OpenAI-compatible embedder.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.clients import Client
from bench.measures import latency_of
from bench.stacks import Stack, running
from bench.tables import machine, render

Json = dict[str, Any]

AGENT = "bench-peer"
TOP_K, BATCH = 10, 100
SCORING: Json = {
    "weights": {"similarity": 1.0, "recency": 0.0, "utility": 0.0},
    "scoreThreshold": -1,
    "minSimilarity": -1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results of one side.

    Attributes:
        recall: Mean share of a question's evidence among its first 10 results.
        searches_s: Seconds of each search.
        stored_per_s: Memories stored per second, one per call.
        batched_per_s: The same in batches of 100; None if not measured.
    """

    name: str
    recall: float
    searches_s: list[float]
    stored_per_s: float
    batched_per_s: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        latency = latency_of([seconds * 1000 for seconds in self.searches_s])
        batched = "-" if self.batched_per_s is None else f"{self.batched_per_s:,.0f}"
        times = f"{latency.p50:.1f}", f"{latency.p99:.1f}"
        return (self.name, f"{self.recall:.3f}", *times, f"{self.stored_per_s:,.0f}", batched)


def main() -> None:
    args = parse_args()
    conversations = json.loads(args.data.read_text(encoding="utf-8"))["conversations"]
    embedding = {"provider": "openai", "model": "peer", "dimensions": args.dimensions, "baseURL": args.embeddings}
    sides: list[Measured] = []
    for has_keyword in (False, True):
        # mem0 caches no vectors of known texts, so the cache is disabled here too.
        spec = {
            "embedding": embedding | {"cacheEntries": 0},
            "scoring": SCORING,
            "index": {"keyword": {"enabled": has_keyword}},
        }
        with tempfile.TemporaryDirectory(prefix="agentmemory-peer-") as folder:
            agents = [AGENT, f"{AGENT}-batches"]
            with running(Path(folder), agents, args.qdrant, spec=spec) as stack:
                for agent in agents:
                    stack.wait_ready(agent)
                if not sides:
                    print(f"{machine()}, {stack.engine}, embedder {args.embeddings}", flush=True)
                    sides.append(measure_peer(args, stack))
                words = "meaning and words" if has_keyword else "meaning alone"
                sides.append(measure_product(stack, conversations, name=f"agentmemory, {words}"))
    head = ("side", "R@10", "search p50, ms", "p99", "stored a second, one a call", f"{BATCH} a call")
    print(render(head, [side.cells for side in sides]))


def measure_peer(args: argparse.Namespace, stack: Stack) -> Measured:
    """Measure mem0, in a process with the Python of its own environment."""
    script = Path(__file__).with_name("peer_mem0.py")
    options = [str(args.data), stack.qdrant_url, args.embeddings, str(args.dimensions), str(TOP_K)]
    # -P: the script's folder contains a module with the name of a public package, `datasets`.
    command = [str(args.peer_python), "-P", str(script), *options]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    return Measured(
        name="mem0, infer=False",
        recall=recall_of(answer["ranks"]),
        searches_s=answer["searches_s"],
        stored_per_s=answer["stored"] / answer["store_s"],
    )


def measure_product(stack: Stack, conversations: Sequence[Json], *, name: str) -> Measured:
    """Measure the product: store and search the same conversations through the API."""
    count = sum(len(conversation["turns"]) for conversation in conversations)
    with Client(stack.api_url) as api:
        path = f"/v1/agents/{AGENT}"
        started_s = time.perf_counter()
        for memory in memories_of(conversations):
            api.call("POST", f"{path}/memories", memory)
        stored_s = time.perf_counter() - started_s
        batched_s = store_batches(api, list(memories_of(conversations)))
        ranks, searches_s = [], []
        for conversation in conversations:
            for question in conversation["questions"]:
                body = {"user_id": conversation["id"], "query": question["question"], "top_k": TOP_K}
                answer, took_ms = api.timed(api.prepare("POST", f"{path}/search", body))
                searches_s.append(took_ms / 1000)
                found = [result["metadata"]["turn"] for result in answer["results"]]
                ranks.append((found, question["evidence"]))
    return Measured(
        name=name,
        recall=recall_of(ranks),
        searches_s=searches_s,
        stored_per_s=count / stored_s,
        batched_per_s=count / batched_s,
    )


def store_batches(api: Client, memories: Sequence[Json]) -> float:
    """Store everything again in a second agent, in batches. Return the seconds."""
    started_s = time.perf_counter()
    for start in range(0, len(memories), BATCH):
        api.call("POST", f"/v1/agents/{AGENT}-batches/memories/batch", {"memories": memories[start : start + BATCH]})
    return time.perf_counter() - started_s


def memories_of(conversations: Sequence[Json]) -> Iterator[Json]:
    """Yield each turn as a request body of the API."""
    for conversation in conversations:
        for turn in conversation["turns"]:
            yield {
                "user_id": conversation["id"],
                "content": f"{turn['speaker']}: {turn['text']}",
                "type": "episodic",
                "session_id": f"{conversation['id']}-{turn['session']}",
                "created_at": turn["at"],
                "metadata": {"turn": turn["id"]},
            }


def recall_of(ranks: Sequence[Sequence[Sequence[str]]]) -> float:
    """Return the mean share of the evidence that was found."""
    return fmean(sum(turn in found for turn in evidence) / len(evidence) for found, evidence in ranks)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peer", description=__doc__)
    parser.add_argument("--peer-python", type=Path, required=True, help="of an environment with mem0ai")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--embeddings", required=True, metavar="URL", help="base URL of an OpenAI-compatible embedder")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--qdrant", metavar="URL", help="a real server (default: the dev server)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
