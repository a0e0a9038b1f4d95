"""Read conversations and questions about them from files, and store and search them through the API.

`bench/data/README.md` describes the file format. Each conversation belongs to one user.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clients import Client

Json = dict[str, Any]

OWN = Path(__file__).with_name("data")
ROLES = {"Assistant": "assistant"}
TOP_K, BATCH = 10, 100


@dataclass(frozen=True, slots=True)
class Question:
    """A user's question, and the marks of the memories that answer it.

    Attributes:
        category: Subset of the questions that it belongs to.
        asked_at: Time that times in the question refer to, RFC 3339; None is now.
    """

    user_id: str
    text: str
    evidence: frozenset[str]
    category: str = ""
    asked_at: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Memories and questions about them. The metadata of each memory contains its mark."""

    name: str
    memories: Sequence[Json]
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """Result of one question.

    Attributes:
        ranks: Ranks of the evidence among the results, from 1.
        missed: Number of memories of the evidence that were not found.
        category: Category of the question.
    """

    user_id: str
    ranks: Sequence[int]
    missed: int
    latency_ms: float
    category: str = ""

    def recall(self, count: int) -> float:
        """Return the share of the evidence that is among the first `count` results, 0..1."""
        return sum(rank <= count for rank in self.ranks) / (len(self.ranks) + self.missed)

    @property
    def reciprocal_rank(self) -> float:
        """1 / rank of the first evidence, or 0 if none was found."""
        return 1 / self.ranks[0] if self.ranks else 0.0

    def ndcg(self, count: int) -> float:
        """Return the normalised discounted cumulative gain of the first `count` results, 0..1.

        Each memory of the evidence has relevance 1, as in LMEB. Several turns with the same text are one memory.
        """
        ranks = set(self.ranks)
        ideal = range(1, min(len(ranks) + self.missed, count) + 1)
        return _discounted(rank for rank in ranks if rank <= count) / _discounted(ideal)


def _discounted(ranks: Iterable[int]) -> float:
    return sum(1 / math.log2(rank + 1) for rank in ranks)


def read_set(file: Path, language: str | None = None) -> QuestionSet:
    """Return the turns of the conversations in a file, and the questions about them.

    Args:
        language: Language of the conversations to return. None returns all.
    """
    memories: list[Json] = []
    questions: list[Question] = []
    for talk in json.loads(file.read_text(encoding="utf-8"))["conversations"]:
        if language not in (None, talk.get("language")):
            continue
        memories += (_memory(talk["id"], turn) for turn in talk["turns"])
        for question in talk["questions"]:
            evidence = frozenset(f"{talk['id']} {turn}" for turn in question["evidence"])
            category, asked_at = str(question["category"]), talk["turns"][-1]["at"]
            questions.append(Question(talk["id"], question["question"], evidence, category, asked_at))
    return QuestionSet(file.stem, memories, questions)


def _memory(user_id: str, turn: Json) -> Json:
    return {
        "user_id": user_id,
        "content": f"{turn['speaker']}: {turn['text']}",
        "type": "episodic",
        "speaker": turn["speaker"],
        "role": ROLES.get(turn["speaker"], "user"),
        "session_id": f"{user_id}-{turn['session']}",
        "created_at": turn["at"],
        "metadata": {"mark": f"{user_id} {turn['id']}"},
    }


def store(api: Client, slug: str, memories: Sequence[Json]) -> dict[str, set[str]]:
    """Store memories. Return the marks of each id; identical texts are one memory with several marks.

    Raises:
        RuntimeError: If a memory was rejected.
    """
    marks: dict[str, set[str]] = {}
    for start in range(0, len(memories), BATCH):
        batch = list(memories[start : start + BATCH])
        results = api.call("POST", f"/v1/agents/{slug}/memories/batch", {"memories": batch})["results"]
        for memory, result in zip(batch, results, strict=True):
            if "id" not in result:
                raise RuntimeError(f"{slug} refused a memory: {result}")
            marks.setdefault(result["id"], set()).add(memory["metadata"]["mark"])
    return marks


def run_question(api: Client, slug: str, question: Question, marks: Mapping[str, set[str]]) -> QuestionResult:
    """Search with a question and find the ranks of its evidence."""
    body = {"user_id": question.user_id, "query": question.text, "top_k": TOP_K, "reference_time": question.asked_at}
    answer, took_ms = api.timed(api.prepare("POST", f"/v1/agents/{slug}/search", body))
    places: dict[str, int] = {}
    for place, result in enumerate(answer["results"], 1):
        for mark in marks.get(result["id"], ()):
            places.setdefault(mark, place)
    found = sorted(places[mark] for mark in question.evidence if mark in places)
    missed = len(question.evidence) - len(found)
    return QuestionResult(question.user_id, found, missed, took_ms, question.category)
