"""`python -m bench.languages`: recall in nine languages: R@1, R@10 and MRR by language and kind of question.

Searches by words alone use the language of the texts (as `index.keyword.language` names it) and `auto`. Searches by
meaning and words use preset `standard` with the built-in embedder, and with `--embeddings URL` one of OpenAI's API.

`--set sentences` compares tokenisations by words alone, on the sentences of `docs/adr/0043`: the product's for each
language, `auto`, its former one (unchanged text in the nearest supported language), and Qdrant's tokenizer
`multilingual`. `--qdrant URL` selects a server; the default is the dev server.
"""

import argparse
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agentmemory_operator.collections.rules.collection import AUTO_LANGUAGE, KeywordSource
from agentmemory_operator.memories.rules.keywords import BM25_MODEL, keyword_document, question_document
from bench.clients import Client
from bench.dialogues import OWN, Question, QuestionResult, run_question, store
from bench.progress import log_progress
from bench.stacks import Stack, agent_manifest, running, serving_qdrant
from bench.tables import machine, render

Json = dict[str, Any]
SENTENCES = OWN / "sentences" / "nine_languages.json"
LANGUAGES = OWN / "languages"
SPACED = ("english", "german", "spanish", "french", "russian")
# Qdrant has neither stop words nor a stemmer for Hindi.
UNLISTED = {"hindi": "none"}
KINDS = ("words", "meaning", "both")
WORDLLAMA = {"provider": "wordllama", "dimensions": 256}
TOP = 10


@dataclass(frozen=True, slots=True)
class Tokenisation:
    """A tokenisation of texts.

    Attributes:
        document: Builds the engine's input from a text, its language, and whether it is a question.
    """

    name: str
    document: Callable[[str, str, bool], Json]


def _product(text: str, language: str, is_question: bool) -> Json:
    source = KeywordSource(language=UNLISTED.get(language, language), window=0)
    return (question_document if is_question else keyword_document)(text, source)


def _auto(text: str, language: str, is_question: bool) -> Json:
    return _product(text, AUTO_LANGUAGE, is_question)


def _before(text: str, language: str, is_question: bool) -> Json:
    return {"text": text, "model": BM25_MODEL, "options": {"language": language if language in SPACED else "english"}}


def _multilingual(text: str, language: str, is_question: bool) -> Json:
    return {"text": text, "model": BM25_MODEL, "options": {"language": language, "tokenizer": "multilingual"}}


OWN_LANGUAGE, ANY_LANGUAGE = Tokenisation("words", _product), Tokenisation("words, auto", _auto)
WAYS = (
    Tokenisation("own language", _product),
    Tokenisation("auto", _auto),
    Tokenisation("before", _before),
    Tokenisation("multilingual", _multilingual),
)


def read_set() -> list[Json]:
    """Return the sentences and questions of each language."""
    languages: list[Json] = json.loads(SENTENCES.read_text(encoding="utf-8"))["languages"]
    return languages


def read_languages() -> list[Json]:
    """Return the memories of each language, and its questions by kind."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(LANGUAGES.glob("*.json"))]


def ask_by_words(qdrant: Client, texts: Json, way: Tokenisation) -> list[QuestionResult]:
    """Store the memories of a language as keyword vectors, and ask its questions."""
    name, language = f"bench-languages-{uuid.uuid4().hex[:8]}", texts["language"]
    sparse = {"words": {"modifier": "idf"}}
    qdrant.call("PUT", f"/collections/{name}", {"vectors": {}, "sparse_vectors": sparse})
    try:
        points = [
            {"id": number, "vector": {"words": way.document(text, language, False)}, "payload": {}}
            for number, text in enumerate(texts["memories"])
        ]
        qdrant.call("PUT", f"/collections/{name}/points?wait=true", {"points": points})
        results = []
        for question in texts["questions"]:
            body = {"query": way.document(question["question"], language, True), "using": "words", "limit": TOP}
            points = qdrant.call("POST", f"/collections/{name}/points/query", body)["result"]["points"]
            ranks = [rank for rank, point in enumerate(points, 1) if point["id"] == question["answer"]]
            results.append(QuestionResult(language, ranks, 1 - len(ranks), 0.0, question.get("kind", "")))
        return results
    finally:
        qdrant.call("DELETE", f"/collections/{name}")


def ask_through_api(stack: Stack, slug: str, languages: Sequence[Json], spec: Json) -> list[QuestionResult]:
    """Store the memories of some languages in one agent, a user for each language, and ask their questions."""
    stack.apply(agent_manifest(slug, spec={"preset": "standard", **spec}))
    stack.wait_ready(slug)
    with Client(stack.api_url) as api:
        memories = [
            {"user_id": texts["language"], "content": text, "metadata": {"mark": f"{texts['language']} {number}"}}
            for texts in languages
            for number, text in enumerate(texts["memories"])
        ]
        marks = store(api, slug, memories)
        return [
            run_question(
                api,
                slug,
                Question(
                    texts["language"],
                    question["question"],
                    frozenset({f"{texts['language']} {question['answer']}"}),
                    question["kind"],
                ),
                marks,
            )
            for texts in languages
            for question in texts["questions"]
        ]


def _by_embedder(stack: Stack, languages: Sequence[Json], name: str, spec: Json) -> Iterator[tuple[str, list[Any]]]:
    """Yield the results of searches by meaning and words: one agent for each language, and one with `auto` for all."""
    log_progress(f"asking by meaning and words with {name}")
    own: list[QuestionResult] = []
    for number, texts in enumerate(languages):
        language = str(UNLISTED.get(texts["language"], texts["language"]))
        own += ask_through_api(stack, f"{name}-{number}", [texts], spec | _with_keywords(language))
    yield name, own
    yield f"{name}, auto", ask_through_api(stack, f"{name}-auto", languages, spec | _with_keywords(AUTO_LANGUAGE))


def _with_keywords(language: str) -> Json:
    return {"index": {"keyword": {"enabled": True, "language": language}}}


def figures(results: Sequence[QuestionResult]) -> str:
    """Render R@1, R@10 and MRR."""
    shares = [fmean(result.recall(count) for result in results) for count in (1, TOP)]
    return " / ".join(f"{figure:.2f}" for figure in (*shares, fmean(result.reciprocal_rank for result in results)))


def language_rows(ways: Mapping[str, Sequence[QuestionResult]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each language and kind, and for each kind in all languages."""
    languages = sorted({result.user_id for results in ways.values() for result in results})
    for group in (*([language] for language in languages), languages):
        for kind in KINDS:
            asked = [
                [result for result in results if result.user_id in group and result.category == kind]
                for results in ways.values()
            ]
            yield (group[0] if len(group) == 1 else "all", kind, *map(figures, asked))


def print_languages(options: argparse.Namespace, folder: Path) -> None:
    languages = read_languages()
    with running(folder, [], options.qdrant) as stack:
        with Client(stack.qdrant_url) as qdrant:
            ways = {
                way.name: [result for texts in languages for result in ask_by_words(qdrant, texts, way)]
                for way in (OWN_LANGUAGE, ANY_LANGUAGE)
            }
        ways |= _by_embedder(stack, languages, "wordllama", {"embedding": WORDLLAMA})
        if options.embeddings:
            service = {"provider": "openai", "model": "measured", "baseURL": options.embeddings}
            embedding = service | {"dimensions": options.dimensions}
            ways |= _by_embedder(stack, languages, "service", {"embedding": embedding, "scoring": options.scoring})
        print(f"{machine()}, {stack.engine}; R@1 / R@{TOP} / MRR\n")
    print(render(("language", "questions", *ways), list(language_rows(ways))))


def print_sentences(options: argparse.Namespace, folder: Path) -> None:
    rows = []
    with serving_qdrant(folder, options.qdrant) as url:
        qdrant = Client(url)
        for texts in read_set():
            results = [ask_by_words(qdrant, texts, way) for way in WAYS]
            shares = [fmean(result.recall(count) for result in found) for found in results for count in (1, TOP)]
            rows.append((texts["language"], *(f"{share:.2f}" for share in shares)))
    head = ("language", *(f"{way.name}: {measure}" for way in WAYS for measure in ("R@1", f"R@{TOP}")))
    print(render(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("languages", "sentences"), default="languages")
    parser.add_argument("--embeddings", metavar="URL", help="an OpenAI-compatible embedder to measure as well")
    parser.add_argument("--dimensions", type=int, default=384, help="of that embedder (default: %(default)s)")
    parser.add_argument("--scoring", metavar="JSON", type=json.loads, default={}, help="spec.scoring for that embedder")
    parser.add_argument("--qdrant", metavar="URL")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (print_languages if options.set == "languages" else print_sentences)(options, Path(folder))


if __name__ == "__main__":
    main()
