"""`python -m bench.evidence`: effect of each term of `scoring.evidence`, used alone and left out; `standard`, `cortex`.

A second table has nDCG@10 of each category of questions, the form in which LMEB reports it.

Without options it needs only this repository: its conversations (`bench/data`), the built-in embedder and the dev
server. Every figure is of searches through the API. Differences have a 95 % bootstrap interval over conversations; with
three conversations it is a rough one.

    python -m bench.evidence --data locomo_dev.json --embeddings http://127.0.0.1:9801/v1
"""

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from agentmemory_operator.collections.rules.collection import DEFAULT_LANGUAGE
from agentmemory_operator.spec.presets import STANDARD
from bench.clients import Client
from bench.dialogues import OWN, TOP_K, QuestionResult, QuestionSet, read_set, run_question, store
from bench.progress import log_progress
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import Cells, machine, render

HEAD = ("ranking", "R@5", "R@10", "MRR", "beside", "R@10 differs by", "MRR differs by")
NDCG_HEAD = ("ranking", "nDCG@10", "mean of categories")
DRAWS, SEED = 2_000, 23
WORDLLAMA: Json = {"provider": "wordllama", "dimensions": 256}
WEIGHTS = {name: asdict(STANDARD.evidence)[name] for name in ("terse", "author", "time", "date")}
NOTHING = dict.fromkeys(WEIGHTS, 0.0)
# Terms that the preset does not use, with the weights of their measurement (docs/adr/0029).
OFF = {"asked": 0.05}

MATCH, WHOLE = "meaning and words", "standard"
SETS = {"own": OWN / "dialogues.json", "other-languages": OWN / "other_languages.json"}
Answers = Mapping[str, Sequence[QuestionResult]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A ranking: its name, `spec.scoring`, and the name of the ranking that it is compared with."""

    name: str
    scoring: Json
    baseline: str = ""


def variants() -> list[Variant]:
    """Return the rankings of one agent of preset `standard`.

    They differ only in figures that apply to the next search.
    """
    alone = [
        Variant(f"{name} alone", {"evidence": NOTHING | {name: weight}}, MATCH) for name, weight in WEIGHTS.items()
    ]
    without = [Variant(f"without {name}", {"evidence": {name: 0.0}}, WHOLE) for name in WEIGHTS]
    on_their_own = [
        Variant(f"{name} alone", {"evidence": NOTHING | {name: weight}}, MATCH) for name, weight in OFF.items()
    ]
    variants_with = [Variant(f"with {name}", {"evidence": {name: weight}}, WHOLE) for name, weight in OFF.items()]
    return [
        Variant("meaning alone", {"fusion": {"method": "None"}}, WHOLE),
        Variant(MATCH, {"evidence": NOTHING}, WHOLE),
        *alone,
        *on_their_own,
        Variant(WHOLE, {}),
        *without,
        *variants_with,
    ]


def presets(language: str) -> Mapping[str, Json]:
    """Return the specs of the agents that `standard` is compared with, by name."""
    words: Json = {"keyword": {"enabled": True, "language": language}}
    return {"cortex": {"preset": "cortex"}, "cortex with words": {"preset": "cortex", "index": words}}


def answers_of(
    stack: Stack, questions: QuestionSet, embedding: Json, prefix: str, args: argparse.Namespace
) -> Iterator[tuple[Variant, list[QuestionResult]]]:
    """Store a set in an agent of each preset. Yield each ranking with its results for the questions."""
    only, language = args.only, args.keyword_language or args.language or DEFAULT_LANGUAGE
    with Client(stack.api_url) as api:
        for place, (name, spec) in enumerate(presets(language).items()):
            if only and name not in only:
                continue
            slug = f"{prefix}-{place}"
            marks = _stored(stack, api, slug, spec | {"embedding": embedding}, questions)
            yield (
                Variant(name, {}, WHOLE),
                [run_question(api, slug, question, marks) for question in questions.questions],
            )
        slug = f"{prefix}-standard"
        keyword = {"enabled": True, "language": language}
        whole: Json = {"preset": "standard", "embedding": embedding, "index": {"keyword": keyword}}
        marks = _stored(stack, api, slug, whole, questions)
        for variant in variants():
            if only and variant.name not in only:
                continue
            _rank_by(stack, api, slug, whole | ({"scoring": variant.scoring} if variant.scoring else {}))
            yield variant, [run_question(api, slug, question, marks) for question in questions.questions]


def _stored(stack: Stack, api: Client, slug: str, spec: Json, asked: QuestionSet) -> dict[str, set[str]]:
    stack.apply(agent_manifest(slug, spec=spec))
    stack.wait_ready(slug)
    log_progress(f"storing {len(asked.memories)} memories of {asked.name} in {slug}")
    return store(api, slug, asked.memories)


def _rank_by(stack: Stack, api: Client, slug: str, spec: Json) -> None:
    """Change the ranking of an agent, and wait until it is in effect."""
    path, manifest = f"/v1/agents/{slug}", agent_manifest(slug, spec=spec)
    if manifest == stack.applied(slug):
        return
    before = api.call("GET", path)["generation"]
    stack.apply(manifest)
    stack.wait_until(lambda: api.call("GET", path)["generation"] > before, f"{slug} keeps its ranking")


def rows(variants_of: Sequence[Variant], answers: Answers) -> Iterator[Cells]:
    """Yield one row for each ranking: its figures, and its differences from the baseline if that was measured."""
    for variant in variants_of:
        own = answers[variant.name]
        figures = [fmean(result.recall(count) for result in own) for count in (5, TOP_K)]
        figures.append(fmean(result.reciprocal_rank for result in own))
        baseline, users = answers.get(variant.baseline, ()), [result.user_id for result in own]
        differences = [
            render_difference([a.recall(TOP_K) - b.recall(TOP_K) for a, b in zip(own, baseline, strict=True)], users)
            if baseline
            else "",
            render_difference(
                [a.reciprocal_rank - b.reciprocal_rank for a, b in zip(own, baseline, strict=True)], users
            )
            if baseline
            else "",
        ]
        yield (variant.name, *(f"{figure:.3f}" for figure in figures), variant.baseline, *differences)


def ndcg_rows(answers: Answers) -> tuple[Cells, list[Cells]]:
    """Return the head and the rows of nDCG@10: of all questions, the mean of the categories, and each category."""
    counts = Counter(result.category for result in next(iter(answers.values())))
    categories = sorted(counts)
    rows_ = []
    for name, results in answers.items():
        by_category = [
            fmean(result.ndcg(TOP_K) for result in results if result.category == category) for category in categories
        ]
        figures = [fmean(result.ndcg(TOP_K) for result in results), fmean(by_category), *by_category]
        rows_.append((name, *(f"{figure:.3f}" for figure in figures)))
    return (*NDCG_HEAD, *(f"{category} ({counts[category]})" for category in categories)), rows_


def render_difference(differences: Sequence[float], users: Sequence[str]) -> str:
    """Render a mean difference and its interval over conversations.

    Args:
        users: User of each difference: one conversation each.
    """
    by_user: dict[str, list[float]] = {}
    for user, difference in zip(users, differences, strict=True):
        by_user.setdefault(user, []).append(difference)
    low, high = interval(list(by_user.values()))
    return f"{fmean(differences):+.3f} ({low:+.3f} to {high:+.3f})"


def interval(conversations: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean, from 2,000 draws of as many conversations, with replacement."""
    generator = random.Random(SEED)
    sums = [(sum(of), len(of)) for of in conversations]
    means = []
    for _ in range(DRAWS):
        drawn = generator.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]


def main() -> None:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    embedding = _embedding(args)
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-evidence-") as folder,
        running(Path(folder), [], args.qdrant, version=args.qdrant_version) as stack,
    ):
        print(f"{machine()}, {stack.engine}, embedder {embedding.get('baseURL', embedding['provider'])}", flush=True)
        for number, file in enumerate(args.data or [SETS[args.set]]):
            asked = read_set(file, args.language)
            results = list(answers_of(stack, asked, embedding, f"evidence-{number}", args))
            answers = {variant.name: answered for variant, answered in results}
            table = render(HEAD, list(rows([variant for variant, _ in results], answers)))
            users = len({question.user_id for question in asked.questions})
            print(f"\n{asked.name}: {users} conversations, {len(asked.questions)} questions\n\n{table}", flush=True)
            print(f"\n{render(*ndcg_rows(answers))}", flush=True)


def _embedding(args: argparse.Namespace) -> Json:
    if not args.embeddings:
        return WORDLLAMA
    return {"provider": "openai", "model": "measured", "dimensions": args.dimensions, "baseURL": args.embeddings}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=SETS, default="own", help="conversations of ours (default: %(default)s)")
    parser.add_argument("--data", type=Path, action="append", help="a file of conversations instead of ours")
    parser.add_argument("--language", help="of the conversations to ask about, and of their keywords")
    parser.add_argument("--keyword-language", help="of the keywords, if it is another, for example auto")
    parser.add_argument("--embeddings", metavar="URL", help="an OpenAI-compatible embedder (default: wordllama)")
    parser.add_argument(
        "--only", metavar="RANKING", action="append", default=[], help="that one alone; may be repeated"
    )
    parser.add_argument("--dimensions", type=int, default=384, help="of that embedder (default: %(default)s)")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, which keeps the collections")
    parser.add_argument("--qdrant-version", default="1.18.3", help="what the dev server answers as")
    return parser.parse_args()


if __name__ == "__main__":
    main()
