"""Conversations and questions about them: read from files, stored and asked through the API.

The form of a file is in `bench/data/README.md`. Each conversation is one user's.
"""

import json
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Answered:
    """How well one question was answered.

    Attributes:
        ranks: of the evidence that was found, from 1.
        missed: how many memories of the evidence were not among the results.
    """

    user_id: str
    ranks: Sequence[int]
    missed: int
    took_ms: float

    def recall(self, count: int) -> float:
        """The share of the evidence among the first results, 0..1."""
        return sum(rank <= count for rank in self.ranks) / (len(self.ranks) + self.missed)

    @property
    def reciprocal_rank(self) -> float:
        """1 over the rank of the first evidence, 0 where none was found."""
        return 1 / self.ranks[0] if self.ranks else 0.0


def read_set(file: Path, language: str | None = None) -> QuestionSet:
    """The turns of conversations and the questions about them.

    Args:
        language: of the conversations; None for all of them.
    """
    memories: list[Json] = []
    questions: list[Question] = []
    for talk in json.loads(file.read_text(encoding="utf-8"))["conversations"]:
        if language not in (None, talk.get("language")):
            continue
        memories += (_memory(talk["id"], turn) for turn in talk["turns"])
        for one in talk["questions"]:
            evidence = frozenset(f"{talk['id']} {turn}" for turn in one["evidence"])
            questions.append(Question(talk["id"], one["question"], evidence))
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
    """Store memories; return the marks of each id, several where what is said again is one memory.

    Raises:
        RuntimeError: one was refused.
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


def ask(api: Client, slug: str, question: Question, marks: Mapping[str, set[str]]) -> Answered:
    """Ask a question."""
    body = {"user_id": question.user_id, "query": question.text, "top_k": TOP_K}
    answer, took_ms = api.timed(api.prepare("POST", f"/v1/agents/{slug}/search", body))
    places: dict[str, int] = {}
    for place, one in enumerate(answer["results"], 1):
        for mark in marks.get(one["id"], ()):
            places.setdefault(mark, place)
    found = sorted(places[mark] for mark in question.evidence if mark in places)
    return Answered(question.user_id, found, len(question.evidence) - len(found), took_ms)
