"""`python -m bench.graph`: additional recall from following entities in a search, and its latency.

A generated set has questions that do not name the entity of their answer: one memory states a person's employer,
another a fact about that company. Conversations, which have few such names, check that nothing is lost there. For each
fusion, two agents of preset brain differ only in `entities.enabled` and receive the same questions in turn.
"""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from bench.clients import Client
from bench.dialogues import TOP_K, Question, QuestionResult, QuestionSet, read_set, run_question, store
from bench.progress import log_progress
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import Cells, machine, render

SEED, PEOPLE, USERS = 22, 400, 4
DIMENSIONS = 256
HEAD = ("set", "questions", "fusion", "R@10 without / with", "MRR without / with", "p50 ms without / with", "ratio")
FUSIONS: dict[str, Json] = {"RRF": {"method": "RRF"}, "Score": {"method": "Score", "keywordWeight": 0.7}}
SOUNDS = ("ba", "do", "fe", "gi", "ka", "lo", "mu", "ne", "pi", "ra", "so", "tu", "va", "wi", "ze")
KINDS = ("Labs", "Logistics", "Foods", "Partners", "Studios", "Works")
WORKS = (
    "{person} leads the work at {company}.",
    "{person} has been with {company} since spring.",
    "Our contact is {person} of {company}.",
)
FACTS = (
    ("{company} keeps its orders in a spreadsheet named {word}.", "Where do the orders of {person}'s employer lie?"),
    ("The warehouse of {company} is in {word} street.", "In which street is the warehouse of the firm of {person}?"),
    ("{company} pays its bills through {word}.", "How does the company that {person} works for pay?"),
    ("The newsletter of {company} is called {word}.", "What is the newsletter of {person}'s company called?"),
)


def generate_two_hop_set(people: int, seed: int) -> QuestionSet:
    """Generate people, companies, facts about these, and questions that need two memories."""
    generator = random.Random(seed)
    memories: list[Json] = []
    questions: list[Question] = []
    for number in range(people):
        person = f"{_word(generator, 2)} {_word(generator, 3)}"
        company = f"{_word(generator, 2)} {_word(generator, 2)} {generator.choice(KINDS)}"
        words = {"person": person, "company": company, "word": _word(generator, 3)}
        user_id, (fact, question) = f"u{number % USERS}", generator.choice(FACTS)
        for mark, text in (("w", generator.choice(WORKS)), ("f", fact)):
            memories.append(_memory(user_id, text.format(**words), f"{mark}{number}"))
        questions.append(Question(user_id, question.format(**words), frozenset({f"f{number}"})))
    generator.shuffle(memories)
    return QuestionSet("generated, two memories", memories, questions)


def _dialogues(file: Path) -> QuestionSet:
    """Read conversations without their sessions, so that only names connect the turns."""
    question_set = read_set(file)
    kept_keys = ("user_id", "content", "created_at", "metadata")
    memories = [{key: memory[key] for key in kept_keys} | {"type": "decision"} for memory in question_set.memories]
    return QuestionSet(question_set.name, memories, question_set.questions)


def _memory(user_id: str, content: str, mark: str) -> Json:
    return {"user_id": user_id, "content": content, "type": "decision", "metadata": {"mark": mark}}


def _word(generator: random.Random, syllables: int) -> str:
    return "".join(generator.choice(SOUNDS) for _ in range(syllables)).capitalize()


def rows(stack: Stack, questions: QuestionSet, prefix: str) -> Iterator[Cells]:
    """Store a set in two agents for each fusion, send both the same questions, and yield a row for each fusion."""
    for fusion, figures in FUSIONS.items():
        slugs = [f"{prefix}-{fusion.lower()}-{name}" for name in ("without", "with")]
        for slug, enabled in zip(slugs, (False, True), strict=True):
            stack.apply(agent_manifest(slug, spec=_spec(figures, enabled=enabled)))
            stack.wait_ready(slug)
        with Client(stack.api_url) as api:
            marks = {slug: store(api, slug, questions.memories) for slug in slugs}
            log_progress(f"asking {len(questions.questions)} questions of {questions.name}, {fusion}")
            yield _compared(api, marks, questions, fusion)


def _spec(fusion: Json, *, enabled: bool) -> Json:
    return {
        "preset": "brain",
        "embedding": {"provider": "wordllama", "dimensions": DIMENSIONS},
        "scoring": {"fusion": fusion},
        "entities": {"enabled": enabled},
    }


def _compared(api: Client, marks: Mapping[str, dict[str, set[str]]], asked: QuestionSet, fusion: str) -> Cells:
    """Send all questions to each agent of `marks` in turn."""
    sides: list[list[QuestionResult]] = [[] for _ in marks]
    for number, question in enumerate(asked.questions):
        for side, slug in list(enumerate(marks))[:: 1 if number % 2 else -1]:
            sides[side].append(run_question(api, slug, question, marks[slug]))
    shares = [
        _pair([fmean(result.recall(TOP_K) for result in side) for side in sides], 3),
        _pair([fmean(result.reciprocal_rank for result in side) for side in sides], 3),
    ]
    medians = [median(result.latency_ms for result in side) for side in sides]
    ratio = f"{medians[1] / medians[0]:.2f}"
    return (asked.name, str(len(asked.questions)), fusion, *shares, _pair(medians, 1), ratio)


def _pair(figures: Sequence[float], digits: int) -> str:
    return " / ".join(f"{figure:.{digits}f}" for figure in figures)


def main() -> None:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sets = [generate_two_hop_set(args.people, args.seed), *map(_dialogues, args.dialogues)]
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-graph-") as folder,
        running(Path(folder), [], args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}, seed {args.seed}", flush=True)
        table = [row for number, asked in enumerate(sets) for row in rows(stack, asked, f"graph-{number}")]
        print("\n" + render(HEAD, table))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.graph", description=__doc__)
    parser.add_argument("--people", type=int, default=PEOPLE, help="of the generated set (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the generated set (default: %(default)s)")
    parser.add_argument("--dialogues", type=Path, action="append", default=[], help="a file of conversations")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, which keeps the collections")
    return parser.parse_args()


if __name__ == "__main__":
    main()
