"""Store and search the conversations of a file with mem0 (`infer=False`). Print the measurements as JSON.

`bench.peer` runs it with the Python of an environment that has `mem0ai`. It imports nothing of this project.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["MEM0_TELEMETRY"] = "False"
from mem0 import Memory  # type: ignore[import-not-found]


def main() -> None:
    """Run with the arguments DATA QDRANT_URL EMBEDDINGS_URL DIMENSIONS TOP_K."""
    data, qdrant_url, embeddings_url, dimensions, top_k = sys.argv[1:]
    memory = Memory.from_config(
        {
            "vector_store": {
                "provider": "qdrant",
                "config": {
                    "url": qdrant_url,
                    "collection_name": "peer_mem0",
                    "embedding_model_dims": int(dimensions),
                },
            },
            "embedder": {
                "provider": "openai",
                "config": {
                    "model": "peer",
                    "openai_base_url": embeddings_url,
                    "api_key": "none",
                    "embedding_dims": int(dimensions),
                },
            },
            # mem0 requires a configured model, although none is called here.
            "llm": {"provider": "openai", "config": {"api_key": "none", "openai_base_url": embeddings_url}},
        }
    )
    # The first write searches the network for a keyword model, with pauses if there is none.
    memory.add("warm-up", user_id="nobody", infer=False)
    conversations = json.loads(Path(data).read_text(encoding="utf-8"))["conversations"]
    stored, took_s = store(memory, conversations)
    ranks, searches_s = run_questions(memory, conversations, int(top_k))
    print(json.dumps({"stored": stored, "store_s": took_s, "ranks": ranks, "searches_s": searches_s}))


def store(memory: "Memory", conversations: list[dict[str, Any]]) -> tuple[int, float]:
    """Store every turn with one call each, as users of mem0 do."""
    stored, started_s = 0, time.perf_counter()
    for conversation in conversations:
        for turn in conversation["turns"]:
            text = f"{turn['speaker']}: {turn['text']}"
            memory.add(text, user_id=conversation["id"], infer=False, metadata={"turn": turn["id"]})
            stored += 1
    return stored, time.perf_counter() - started_s


def run_questions(
    memory: "Memory", conversations: list[dict[str, Any]], top_k: int
) -> tuple[list[list[list[str]]], list[float]]:
    """Return for each question the found and the expected turns, and the seconds of each search."""
    ranks, searches_s = [], []
    for conversation in conversations:
        for question in conversation["questions"]:
            started_s = time.perf_counter()
            filters = {"user_id": conversation["id"]}
            answer = memory.search(question["question"], filters=filters, top_k=top_k, threshold=0.0)
            searches_s.append(time.perf_counter() - started_s)
            found = [result["metadata"]["turn"] for result in answer["results"]]
            ranks.append([found, question["evidence"]])
    return ranks, searches_s


if __name__ == "__main__":
    main()
