"""What the steps of the demo tell each other, and what they ask of the agent."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_stack import Api, Json, Qdrant, Stack

MANIFEST = "20-support-bot.yaml"
FIRST = 5


@dataclass(slots=True)
class Story:
    """What the steps tell each other.

    Attributes:
        asked: questions.toml.
        api, qdrant: of the stack that runs now.
        stored: the acknowledged memories as sent, by id.
        rankings: of each weight change's question, under the first weights.
        known, answered: every memory and every question's answers as they were at the snapshot.
        numbers: what the last table shows.
    """

    stack: Stack
    asked: Json
    api: Api = field(init=False)
    qdrant: Qdrant = field(init=False)
    stored: dict[str, Json] = field(default_factory=dict)
    rankings: dict[str, list[Json]] = field(default_factory=dict)
    known: dict[str, Json] = field(default_factory=dict)
    answered: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> Path:
        """Return the file that declares the agent."""
        return self.stack.manifests / MANIFEST


def ask(story: Story, question: Json, *, top_k: int = FIRST, explain: bool = False) -> Json:
    """Return the whole answer to a question."""
    return story.api.search(question["user_id"], question["query"], top_k=top_k, explain=explain)


def answers(story: Story, question: Json) -> list[Json]:
    """Return the first memories for a question."""
    return list(ask(story, question)["results"])


def all_memories(story: Story) -> dict[str, Json]:
    """Return every memory that the API lists, by id, without what a search changes in it."""
    users = sorted({memory["user_id"] for memory in story.stored.values()})
    counted = {"access_count", "last_accessed_at"}
    found = (memory for user_id in users for memory in story.api.memories(user_id))
    return {memory["id"]: {key: memory[key] for key in memory.keys() - counted} for memory in found}


def all_answers(story: Story) -> dict[str, list[str]]:
    """Return the ids of the first answers to each question, by its name."""
    questions = story.asked["questions"]
    return {question["name"]: [memory["id"] for memory in answers(story, question)] for question in questions}


def different(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the keys whose values are gone or another."""
    return [key for key, value in before.items() if after.get(key) != value]
