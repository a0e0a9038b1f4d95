"""Rewrites of keyword texts: other tasks run between the texts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime import tasks
from tests.support.engine.agents import agent_of, settings_of

IDS = [f"{number:02}" for number in range(20)]


class Store:
    """Responds without a pause, so that another task runs only if the work itself pauses."""

    def __init__(self) -> None:
        self.rewritten = 0

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        rows = [{"id": id_, "userId": "u", "content": "apple", "createdAt": 0, "rev": 1} for id_ in IDS]
        return [{"id": row["id"], "vector": {}, "payload": row} for row in rows], None

    async def batch(self, collection: str, operations: Sequence[Json], **how: Any) -> None:
        self.rewritten += sum(len(operation["upsert"]["points"]) for operation in operations)


async def test_other_tasks_run_between_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0.0)
    store, turns = Store(), 0
    agent = agent_of(settings_of("bot"), store, keyword=KeywordSource(language="english", window=2))  # type: ignore[arg-type]
    rewriting = asyncio.create_task(session_keywords.rewrite_texts(agent, set(IDS)))

    while not rewriting.done():
        await asyncio.sleep(0)
        turns += 1

    assert store.rewritten == len(IDS)
    assert turns >= len(IDS)
