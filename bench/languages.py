"""`python -m bench.languages`: recall of a search by words only, in nine languages: R@1 and R@10.

It compares three tokenisations on the same engine: the product's (pairs of characters for scripts without spaces), its
former one (unchanged text in the nearest supported language), and Qdrant's tokenizer `multilingual`. `--qdrant URL`
selects a server; the default is the dev server.
"""

import argparse
import json
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.memories.rules.keywords import BM25_MODEL, keyword_document
from bench.clients import Client
from bench.stacks import serving_qdrant
from bench.tables import render

Json = dict[str, Any]
DATA = Path(__file__).parent / "data" / "sentences" / "nine_languages.json"
SPACED = ("english", "german", "spanish", "french", "russian")
TOP = 10


@dataclass(frozen=True, slots=True)
class Tokenisation:
    """A tokenisation of texts.

    Attributes:
        document: Builds the engine's input from a text and its language.
    """

    name: str
    document: Callable[[str, str], Json]


def _product(text: str, language: str) -> Json:
    return keyword_document(text, KeywordSource(language=language, window=0))


def _before(text: str, language: str) -> Json:
    return {"text": text, "model": BM25_MODEL, "options": {"language": language if language in SPACED else "english"}}


def _multilingual(text: str, language: str) -> Json:
    return {"text": text, "model": BM25_MODEL, "options": {"language": language, "tokenizer": "multilingual"}}


WAYS = (
    Tokenisation("pairs of characters", _product),
    Tokenisation("before", _before),
    Tokenisation("multilingual", _multilingual),
)


def read_set() -> list[Json]:
    """Return the sentences and questions of each language."""
    languages: list[Json] = json.loads(DATA.read_text(encoding="utf-8"))["languages"]
    return languages


def recall(qdrant: Client, texts: Json, tokenisation: Tokenisation) -> tuple[float, float]:
    """Return the shares of questions with their memory in first place, and among the first ten."""
    name, language = f"bench-languages-{uuid.uuid4().hex[:8]}", texts["language"]
    sparse = {"words": {"modifier": "idf"}}
    qdrant.call("PUT", f"/collections/{name}", {"vectors": {}, "sparse_vectors": sparse})
    try:
        points = [
            {"id": place, "vector": {"words": tokenisation.document(text, language)}, "payload": {}}
            for place, text in enumerate(texts["memories"])
        ]
        qdrant.call("PUT", f"/collections/{name}/points?wait=true", {"points": points})
        ranks = [
            _rank_of(qdrant, name, tokenisation.document(question["question"], language), question["answer"])
            for question in texts["questions"]
        ]
    finally:
        qdrant.call("DELETE", f"/collections/{name}")
    return sum(rank == 0 for rank in ranks) / len(ranks), sum(rank < TOP for rank in ranks) / len(ranks)


def _rank_of(qdrant: Client, name: str, document: Json, answer: int) -> int:
    body = {"query": document, "using": "words", "limit": TOP}
    found = [
        point["id"] for point in qdrant.call("POST", f"/collections/{name}/points/query", body)["result"]["points"]
    ]
    return found.index(answer) if answer in found else TOP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qdrant", metavar="URL")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, serving_qdrant(Path(folder), options.qdrant) as url:
        qdrant = Client(url)
        for texts in read_set():
            figures = [recall(qdrant, texts, way) for way in WAYS]
            rows.append((texts["language"], *(f"{share:.2f}" for pair in figures for share in pair)))
    head = ("language", *(f"{way.name}: {measure}" for way in WAYS for measure in ("R@1", f"R@{TOP}")))
    print(render(head, rows))


if __name__ == "__main__":
    main()
