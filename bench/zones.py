"""`python -m bench.zones`: protection and cost of privacy zones, against a reader of a collection and its snapshot.

First it runs the attacks of `bench/leaks.py` on memories of each setting. In its session every memory is followed by a
plain one; the keyword text of that could contain its words. Then it compares two agents that differ only in the zone of
their memories, in turn.
"""

import argparse
import asyncio
import base64
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np

from agentmemory_operator.memories.rules.record import hash_content
from bench.clients import Client
from bench.leaks import (
    CONTENT_ATTACKS,
    WORD_ATTACKS,
    Attacker,
    Sentence,
    StoredPoints,
    attacker_of,
    points_of,
    sentences,
    share_in_bytes,
    share_of_contents,
    share_of_words,
    token_ids,
    vocabulary,
)
from bench.measures import TOP_K, Latency, latency_of
from bench.progress import log_progress
from bench.stacks import NAMESPACE, Json, Stack, agent_manifest, running
from bench.tables import Cells, machine, render

SEED, MEMORIES, CANDIDATES, DIMENSIONS = 21, 300, 6_000, 256
COST_MEMORIES, COST_USERS, SEARCHES, LISTS, SINGLES = 4_000, 10, 300, 60, 200
BATCH, USER = 50, "ada"
EMBEDDING: Json = {"provider": "wordllama", "dimensions": DIMENSIONS}
FOUND: Json = {"scoring": {"weights": {"similarity": 1, "recency": 0, "utility": 0}, "scoreThreshold": -1}}
COST_HEAD = ("what", "no zone, p50 / p99", "PERSONAL, p50 / p99", "ratio p50 / p99", "same answers")
COSTS = {"cost-plain": None, "cost-personal": "PERSONAL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Memories of one kind, in their own agent.

    Attributes:
        zones: Additional fields of `spec.zones`.
        is_tagged: True if each memory has one of its words as a tag.
    """

    name: str
    slug: str
    zone: str | None = "SENSITIVE"
    zones: Json = field(default_factory=dict)
    is_tagged: bool = False

    def spec(self, dimensions: int = DIMENSIONS) -> Json:
        """Return the agent's spec, without the connection."""
        words = {"index": {"keyword": {"enabled": True}}, "lifecycle": {"deduplicate": True}}
        return words | {"embedding": EMBEDDING | {"dimensions": dimensions}} | zones_of(self.zone, self.zones)


SETTINGS = (
    Setting(name="no zone", slug="leak-plain", zone=None),
    Setting(name="no vector, no words", slug="leak-sealed"),
    Setting(name="vectors", slug="leak-vectors", zones={"vectors": ["SENSITIVE"]}),
    Setting(name="vectors, words", slug="leak-both", zones={"vectors": ["SENSITIVE"], "words": ["SENSITIVE"]}),
    Setting(name="PERSONAL: vectors, one tag", slug="leak-tagged", zone="PERSONAL", is_tagged=True),
)
OTHERS = Setting(name="other memories", slug="leak-others", zone="PERSONAL", is_tagged=True)
OTHER = Sentence("It went on and on", frozenset({"on"}))
CONTROL = "no vector, no words, hash not keyed"


def zones_of(zone: str | None, fields: Json | None = None) -> Json:
    """Return the part of a spec that allows a zone. Empty for None."""
    return {"zones": {"allowed": [zone], "keySecretRef": {"name": "zone-key"}} | (fields or {})} if zone else {}


def main() -> None:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-zones-") as folder,
        running(Path(folder), [], args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}, seed {args.seed}", flush=True)
        key = base64.b64encode(random.Random(args.seed).randbytes(32)).decode()
        named = {"name": "zone-key", "namespace": NAMESPACE}
        stack.apply({"apiVersion": "v1", "kind": "Secret", "metadata": named, "stringData": {"key": key}})
        print("\n" + "\n\n".join(leak_tables(stack, args)))
        if not args.leaks_only:
            print("\n" + render(COST_HEAD, list(cost_rows(stack, args.seed))))


def leak_tables(stack: Stack, args: argparse.Namespace) -> Iterator[str]:
    """Store the memories, attack them, and yield the tables: words found, then whole contents."""
    words = vocabulary()
    candidates = sentences(words, args.candidates, np.random.default_rng(args.seed))
    memories = candidates[: args.memories]
    log_progress(f"{len(words):,} words, {len(candidates):,} candidates, {len(memories)} memories a setting")
    stored: dict[str, list[tuple[Sentence, StoredPoints]]] = {}
    snapshots: dict[str, bytes] = {}
    with Client(stack.api_url) as api, Client(stack.qdrant_url) as qdrant:
        for setting in (*SETTINGS, OTHERS):
            declare(stack, setting.slug, setting.spec())
            stored_sentences = [OTHER] if setting is OTHERS else memories
            store(api, setting, stored_sentences)
            stored[setting.name] = read_stored_points(qdrant, setting, stored_sentences)
            snapshots[setting.name] = snapshot_of(stack.qdrant_url, f"agent_memory_{setting.slug}")
            log_progress(f"stored: {setting.name}")
        attacker = asyncio.run(attacker_of(words, candidates, token_ids(qdrant, words), dimensions=DIMENSIONS))
    del stored[OTHERS.name]
    yield words_table(attacker, stored, snapshots)
    stored[CONTROL] = [(sentence, with_plain_hash(sentence, held)) for sentence, held in stored[SETTINGS[1].name]]
    yield contents_table(attacker, stored)


def words_table(
    attacker: Attacker, stored: dict[str, list[tuple[Sentence, StoredPoints]]], snapshots: dict[str, bytes]
) -> str:
    """Return the shares of words that each attack finds."""
    rows = [
        (
            *(name, render_share(share_in_bytes(snapshots[name], memories, anyhow=snapshots[OTHERS.name]))),
            *(render_share(share_of_words(attacker, attack, memories)) for attack in WORD_ATTACKS),
        )
        for name, memories in stored.items()
    ]
    return render(("setting", "bytes of a snapshot", *WORD_ATTACKS), rows)


def contents_table(attacker: Attacker, stored: dict[str, list[tuple[Sentence, StoredPoints]]]) -> str:
    """Render a table: the share of whole contents that each attack finds, by setting."""
    rows: list[Cells] = []
    for name, memories in stored.items():
        knowing = replace(attacker, known=(memories[0][0], memories[0][1].own))
        rows.append(
            (name, *(render_share(share_of_contents(knowing, attack, memories[1:])) for attack in CONTENT_ATTACKS))
        )
    return render(("setting", *CONTENT_ATTACKS), rows)


def render_share(share: float) -> str:
    """Render a share. Exactly 0 is distinguishable from almost 0."""
    return f"{share:.3f}" if share else "0"


def declare(stack: Stack, slug: str, spec: Json) -> None:
    """Write an agent's manifest, and wait until the API serves it."""
    stack.apply(agent_manifest(slug, spec=spec))
    stack.wait_ready(slug)


def store(api: Client, setting: Setting, memories: Sequence[Sentence]) -> None:
    """Store each memory and a plain one after it, in their own session."""
    for start in range(0, len(memories), BATCH):
        items: list[Json] = []
        for number, sentence in enumerate(memories[start : start + BATCH], start):
            body = {"user_id": USER, "session_id": f"s{number}"}
            tags = {"tags": [min(sentence.words)]} if setting.is_tagged else {}
            items.append(body | {"content": sentence.text, "zone": setting.zone} | tags)
            items.append(body | {"content": f"and on it went {number}"})
        store_batch(api, setting.slug, items)


def store_batch(api: Client, slug: str, items: Sequence[Json]) -> None:
    """Store memories.

    Raises:
        RuntimeError: If some were rejected.
    """
    answer = api.call("POST", f"/v1/agents/{slug}/memories/batch", {"memories": items})
    if failed := [result for result in answer["results"] if "id" not in result]:
        raise RuntimeError(f"{len(failed)} memories were not stored: {failed[0]}")


def read_stored_points(
    qdrant: Client, setting: Setting, memories: Sequence[Sentence]
) -> list[tuple[Sentence, StoredPoints]]:
    """Return the stored points of each memory. The plain memory after it is identified by its content."""
    sessions: dict[str, list[Json]] = {}
    for point in points_of(qdrant, f"agent_memory_{setting.slug}"):
        sessions.setdefault(point["payload"].get("sessionId", ""), []).append(point)
    found = []
    for number, sentence in enumerate(memories):
        points = sorted(sessions[f"s{number}"], key=_is_after)
        found.append((sentence, StoredPoints(points[0], points[1:])))
    return found


def _is_after(point: Json) -> bool:
    return str(point["payload"].get("content", "")).startswith("and on it went")


def with_plain_hash(sentence: Sentence, stored: StoredPoints) -> StoredPoints:
    """Return a memory with the content hash of a plain one, which candidates can be compared with."""
    return replace(
        stored, own=stored.own | {"payload": stored.own["payload"] | {"contentHash": hash_content(sentence.text)}}
    )


def snapshot_of(qdrant_url: str, collection: str) -> bytes:
    """Return the content of a new snapshot, a tar of the files on disk."""
    with httpx.Client(base_url=qdrant_url, timeout=120) as qdrant:
        [alias] = [
            row["collection_name"]
            for row in qdrant.get("/aliases").json()["result"]["aliases"]
            if row["alias_name"] == collection
        ]
        path = f"/collections/{alias}/snapshots"
        snapshot = qdrant.post(path).raise_for_status().json()["result"]
        return qdrant.get(f"{path}/{snapshot['name']}").raise_for_status().content


def cost_rows(stack: Stack, seed: int) -> Iterator[Cells]:
    """Send the same requests to both agents in turn. Yield one row for each kind."""
    cost_sentences = sentences(vocabulary(), COST_MEMORIES + SINGLES + SEARCHES, np.random.default_rng(seed + 1))
    for slug, zone in COSTS.items():
        declare(stack, slug, FOUND | {"embedding": EMBEDDING} | zones_of(zone))
    memories = [
        {"user_id": f"u{n % COST_USERS}", "content": sentence.text} for n, sentence in enumerate(cost_sentences)
    ]
    first, singles, search_memories = memories[:COST_MEMORIES], memories[COST_MEMORIES:-SEARCHES], memories[-SEARCHES:]
    batches = [first[start : start + 100] for start in range(0, len(first), 100)]
    searches = [
        {"user_id": memory["user_id"], "query": memory["content"], "top_k": TOP_K} for memory in search_memories
    ]
    lists = [f"memories?user_id=u{n % COST_USERS}&limit=100" for n in range(LISTS)]
    with Client(stack.api_url) as api:
        yield alternate(
            api, "store 100", lambda zone: [("memories/batch", {"memories": with_zone(b, zone)}) for b in batches]
        )
        yield alternate(api, "store one", lambda zone: [("memories", body) for body in with_zone(singles, zone)])
        yield alternate(api, f"search, the best {TOP_K}", lambda _: [("search", body) for body in searches])
        yield alternate(api, "list of 100", lambda _: [(path, None) for path in lists])


def with_zone(bodies: Sequence[Json], zone: str | None) -> list[Json]:
    """Return request bodies with a zone."""
    return [body | {"zone": zone} for body in bodies]


def alternate(api: Client, label: str, requests_of: Callable[[str | None], list[tuple[str, Json | None]]]) -> Cells:
    """Send each request to both agents, with alternating order. Return the latencies as a row.

    Args:
        requests_of: Returns paths and bodies for the agent with the zone.
    """
    log_progress(label)
    requests = [
        [api.prepare("POST" if body else "GET", f"/v1/agents/{slug}/{path}", body) for path, body in requests_of(zone)]
        for slug, zone in COSTS.items()
    ]
    took: tuple[list[float], list[float]] = [], []
    same = 0
    for index, pair in enumerate(zip(*requests, strict=True)):
        contents: list[list[str]] = [[], []]
        for side in (0, 1) if index % 2 else (1, 0):
            answer, took_ms = api.timed(pair[side])
            took[side].append(took_ms)
            contents[side] = [result["content"] for result in answer.get("results", ()) if "content" in result]
        same += sorted(contents[0]) == sorted(contents[1])
    plain, sealed = (latency_of(latencies) for latencies in took)
    share = f"{same / len(took[0]):.3f}" if contents[0] else ""
    return (label, _shown(plain), _shown(sealed), f"{sealed.p50 / plain.p50:.2f} / {sealed.p99 / plain.p99:.2f}", share)


def _shown(latency: Latency) -> str:
    return f"{latency.p50:.1f} / {latency.p99:.1f}"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.zones", description=__doc__)
    parser.add_argument("--memories", type=int, default=MEMORIES, help="a setting (default: %(default)s)")
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="of the attacker (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the sentences (default: %(default)s)")
    parser.add_argument("--leaks-only", action="store_true", help="leave out what zones cost")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, which keeps the collections")
    return parser.parse_args()


if __name__ == "__main__":
    main()
