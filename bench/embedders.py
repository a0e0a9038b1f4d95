"""`python -m bench.embedders`: recall of the embedders in the process, by meaning alone, and their cost, by language.

R@10 and MRR of an exact scan by cosine, with the product's embedders and prefixes; CPU time of a text, each in its own
call; memory that the embedder adds to a process. Models other than wordllama are those in the folder `--models`.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agentmemory_operator.adapters.embedding.embedder_factory import build_embedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.effective.embedding import (
    DEFAULT_EMBEDDINGS,
    MODEL_DIMENSIONS,
    EmbeddingSettings,
    EmbeddingSource,
    Prefixes,
)
from bench.languages import read_languages
from bench.tables import machine, render

Json = dict[str, Any]
TOP = 10
PAGE_MIB = 4 / 1024
# Models to measure in addition to the default ones, if they are in the folder `--models`.
OTHERS = (
    EmbeddingSource(
        provider="fastembed",
        model="intfloat/e5-small-v2",
        dimensions=384,
        prefixes=Prefixes(query="query: ", passage="passage: "),
    ),
    EmbeddingSource(provider="fastembed", model="sentence-transformers/all-MiniLM-L6-v2", dimensions=384),
)
HEAD = ("embedder", "language", f"R@{TOP}", "MRR", "ms a text", "MiB")


def sources() -> Iterator[EmbeddingSource]:
    """Yield the embedders to measure."""
    for default in DEFAULT_EMBEDDINGS.values():
        spec = default.prefixes
        prefixes = Prefixes(query=spec.query or "", passage=spec.passage or "") if spec else None
        dimensions = MODEL_DIMENSIONS[default.model or ""]
        yield EmbeddingSource(provider=default.provider, model=default.model, dimensions=dimensions, prefixes=prefixes)
    yield from OTHERS


def measure(source: EmbeddingSource, models: Path | None, languages: Sequence[Json]) -> list[tuple[str, ...]]:
    """Return the rows of one embedder; empty if its model is not in the folder, or a package is missing.

    Call it in a new process: it measures the memory that the embedder adds.
    """
    try:
        return asyncio.run(_measured(source, models, languages))
    except SpecInvalid:
        return []


async def _measured(source: EmbeddingSource, models: Path | None, languages: Sequence[Json]) -> list[tuple[str, ...]]:
    settings = EmbeddingSettings(provider=source.provider, model=source.model, dimensions=source.dimensions)
    before_mib = _resident_mib()
    embedder = build_embedder(source, settings, api_key=None, files=ModelFiles(folder=models))
    await embedder.embed(["text"])
    added_mib = _resident_mib() - before_mib
    prefixes, rows, figures = source.prefixes or Prefixes(), [], []
    for texts in languages:
        memories = [prefixes.passage + memory for memory in texts["memories"]]
        questions = [prefixes.query + question["question"] for question in texts["questions"]]
        begun_s = time.process_time()
        vectors = np.array([(await embedder.embed([text]))[0] for text in (*memories, *questions)])
        cpu_ms = (time.process_time() - begun_s) * 1000 / len(vectors)
        places = _places(vectors, len(memories), [question["answer"] for question in texts["questions"]])
        figures.append((fmean(place < TOP for place in places), fmean(1 / (place + 1) for place in places), cpu_ms))
        rows.append(_row(source, texts["language"], figures[-1]))
    rows.append(_row(source, "all", tuple(map(fmean, zip(*figures, strict=True)))))
    return [(*row, f"{added_mib:.0f}") for row in rows]


def _places(vectors: Any, memories: int, answers: Sequence[int]) -> list[int]:
    """Return the rank of each question's answer among the memories by cosine, from 0."""
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similarities = vectors[memories:] @ vectors[:memories].T
    return [int((row > row[answer]).sum()) for row, answer in zip(similarities, answers, strict=True)]


def _row(source: EmbeddingSource, language: str, figures: Sequence[float]) -> tuple[str, ...]:
    recall, rank, cpu_ms = figures
    return str(source.model), language, f"{recall:.3f}", f"{rank:.3f}", f"{cpu_ms:.2f}"


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="as AGENTMEMORY_MODELS")
    options = parser.parse_args()
    languages, rows = read_languages(), []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        for source in sources():
            rows += processes.submit(measure, source, options.models, languages).result()
    print(f"{machine()}\n\n{render(HEAD, rows)}")


if __name__ == "__main__":
    main()
