"""`python -m bench.graph`: what following entities finds that words and meaning do not, and what it costs.

A generated set of questions whose answer names nobody that the question names: one memory says where somebody works,
another what that company does. Beside it conversations, which have few such names, to see that nothing is lost there.
Two agents of preset brain for each fusion, alike but for `entities.enabled`, are asked the same in turn.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.clients import Client
from bench.progress import say
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import Cells, machine, render

SEED, PEOPLE, USERS, TOP_K, BATCH = 22, 400, 4, 10, 100
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


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a user, and the marks of the memories that answer it."""

    user_id: str
    text: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Memories and questions about them; the metadata of each memory holds its mark."""

    name: str
    memories: Sequence[Json]
    questions: Sequence[Question]


def hops(people: int, seed: int) -> QuestionSet:
    """Return people, companies and what is known of those, and questions that need two memories."""
    chance = random.Random(seed)
    memories: list[Json] = []
    questions: list[Question] = []
    for number in range(people):
        person = f"{_word(chance, 2)} {_word(chance, 3)}"
        company = f"{_word(chance, 2)} {_word(chance, 2)} {chance.choice(KINDS)}"
        told = {"person": person, "company": company, "word": _word(chance, 3)}
        user_id, (fact, question) = f"u{number % USERS}", chance.choice(FACTS)
        for mark, text in (("w", chance.choice(WORKS)), ("f", fact)):
            memories.append(_memory(user_id, text.format(**told), f"{mark}{number}"))
        questions.append(Question(user_id, question.format(**told), frozenset({f"f{number}"})))
    chance.shuffle(memories)
    return QuestionSet("generated, two memories", memories, questions)


def dialogues(file: Path) -> QuestionSet:
    """Return the turns of conversations and the questions about them; the form of bench/README.md."""
    memories: list[Json] = []
    questions: list[Question] = []
    for talk in json.loads(file.read_text(encoding="utf-8"))["conversations"]:
        for turn in talk["turns"]:
            text = f"{turn['speaker']}: {turn['text']}"
            memories.append(_memory(talk["id"], text, f"{talk['id']} {turn['id']}") | {"created_at": turn["at"]})
        for one in talk["questions"]:
            evidence = frozenset(f"{talk['id']} {turn}" for turn in one["evidence"])
            questions.append(Question(talk["id"], one["question"], evidence))
    return QuestionSet(file.stem, memories, questions)


def _memory(user_id: str, content: str, mark: str) -> Json:
    return {"user_id": user_id, "content": content, "type": "decision", "metadata": {"mark": mark}}


def _word(chance: random.Random, syllables: int) -> str:
    return "".join(chance.choice(SOUNDS) for _ in range(syllables)).capitalize()


def rows(stack: Stack, asked: QuestionSet, prefix: str) -> Iterator[Cells]:
    """Store a set in four agents, ask each the same, and yield a row for each fusion."""
    for fusion, figures in FUSIONS.items():
        slugs = [f"{prefix}-{fusion.lower()}-{name}" for name in ("without", "with")]
        for slug, enabled in zip(slugs, (False, True), strict=True):
            stack.apply(agent_manifest(slug, spec=_spec(figures, enabled=enabled)))
            stack.wait_ready(slug)
        with Client(stack.api_url) as api:
            for slug in slugs:
                _store(api, slug, asked.memories)
            say(f"asking {len(asked.questions)} questions of {asked.name}, {fusion}")
            yield _compared(api, slugs, asked, fusion)


def _spec(fusion: Json, *, enabled: bool) -> Json:
    return {
        "preset": "brain",
        "embedding": {"provider": "wordllama", "dimensions": DIMENSIONS},
        "scoring": {"fusion": fusion},
        "entities": {"enabled": enabled},
    }


def _store(api: Client, slug: str, memories: Sequence[Json]) -> None:
    for start in range(0, len(memories), BATCH):
        told = api.call(
            "POST", f"/v1/agents/{slug}/memories/batch", {"memories": list(memories[start : start + BATCH])}
        )
        refused = [one for one in told["results"] if "error" in one]
        if refused:
            raise RuntimeError(f"{slug} refused {len(refused)} memories: {refused[0]}")


def _compared(api: Client, slugs: Sequence[str], asked: QuestionSet, fusion: str) -> Cells:
    recalls: tuple[list[float], list[float]] = [], []
    ranks: tuple[list[float], list[float]] = [], []
    took: tuple[list[float], list[float]] = [], []
    for number, question in enumerate(asked.questions):
        body = {"user_id": question.user_id, "query": question.text, "top_k": TOP_K}
        for side in (0, 1) if number % 2 else (1, 0):
            answer, took_ms = api.timed(api.prepare("POST", f"/v1/agents/{slugs[side]}/search", body))
            marks = [one["metadata"].get("mark") for one in answer["results"]]
            found = [place for place, mark in enumerate(marks, 1) if mark in question.evidence]
            recalls[side].append(len(found) / len(question.evidence) if question.evidence else 0.0)
            ranks[side].append(1 / found[0] if found else 0.0)
            took[side].append(took_ms)
    shares = [_pair([sum(of) / len(of) for of in figures], 3) for figures in (recalls, ranks)]
    middle = [median(of) for of in took]
    ratio = f"{middle[1] / middle[0]:.2f}"
    return (asked.name, str(len(asked.questions)), fusion, *shares, _pair(middle, 1), ratio)


def _pair(figures: Sequence[float], digits: int) -> str:
    return " / ".join(f"{figure:.{digits}f}" for figure in figures)


def main() -> None:
    """Run the command."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sets = [hops(args.people, args.seed), *map(dialogues, args.dialogues)]
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-graph-") as folder,
        running(Path(folder), [], args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}, seed {args.seed}", flush=True)
        told = [row for number, asked in enumerate(sets) for row in rows(stack, asked, f"graph-{number}")]
        print("\n" + render(HEAD, told))


def parse_args() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m bench.graph", description=__doc__)
    parser.add_argument("--people", type=int, default=PEOPLE, help="of the generated set (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the generated set (default: %(default)s)")
    parser.add_argument("--dialogues", type=Path, action="append", default=[], help="a file of conversations")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, which keeps the collections")
    return parser.parse_args()


if __name__ == "__main__":
    main()
