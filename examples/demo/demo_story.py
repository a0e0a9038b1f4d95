"""State that the steps of the demo share, and their searches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_stack import Api, Json, Qdrant, Stack

MANIFEST = "20-support-bot.yaml"
TOP_K = 5


@dataclass(slots=True)
class Story:
    """State that the steps of the demo share.

    Attributes:
        script: Contents of questions.toml: questions, weights and their effects.
        api, qdrant: Clients of the running stack.
        stored: Acknowledged memories as sent, by id.
        rankings: Ranking with the initial weights, by the name of the weight change.
        snapshot_memories: All memories at the time of the snapshot, by id.
        snapshot_answers: Ids of the first results at that time, by the name of the question.
        numbers: Rows of the last table.
    """

    stack: Stack
    script: Json
    api: Api = field(init=False)
    qdrant: Qdrant = field(init=False)
    stored: dict[str, Json] = field(default_factory=dict)
    rankings: dict[str, list[Json]] = field(default_factory=dict)
    snapshot_memories: dict[str, Json] = field(default_factory=dict)
    snapshot_answers: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> Path:
        """Return the path of the agent's manifest."""
        return self.stack.manifests / MANIFEST


def search(story: Story, question: Json, *, top_k: int = TOP_K, explain: bool = False) -> Json:
    """Return the whole response to a question."""
    return story.api.search(question["user_id"], question["query"], top_k=top_k, explain=explain)


def find_memories(story: Story, question: Json) -> list[Json]:
    """Return the first memories for a question."""
    return list(search(story, question)["results"])


def read_memories(story: Story) -> dict[str, Json]:
    """Return all memories of the users by id, without the fields that a search changes."""
    users = sorted({memory["user_id"] for memory in story.stored.values()})
    counted = {"access_count", "last_accessed_at"}
    found = (memory for user_id in users for memory in story.api.memories(user_id))
    return {memory["id"]: {key: memory[key] for key in memory.keys() - counted} for memory in found}


def read_answer_ids(story: Story) -> dict[str, list[str]]:
    """Return the ids of the first memories for each question, by the name of the question."""
    questions = story.script["questions"]
    return {question["name"]: [memory["id"] for memory in find_memories(story, question)] for question in questions}


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the keys of `before` that are missing or have another value in `after`."""
    return [key for key, value in before.items() if after.get(key) != value]
