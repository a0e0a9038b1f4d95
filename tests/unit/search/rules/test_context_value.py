"""Order of the memories of a context."""

from typing import Any

import pytest

from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.search.rules.context_value import MAX_QUESTION_CHARS, order_facts, order_hits, question_of


def memory(id: str, content: str = "some words", *, at: int = 0, **more: Any) -> MemoryRecord:
    kept: dict[str, Any] = {"agent_id": "a", "user_id": "u", "type": "fact", "created_at": at, "updated_at": at}
    return MemoryRecord(**kept | more, id=id, content=content)


def ids(records: list[MemoryRecord]) -> str:
    return "".join(record.id for record in records)


def test_results_keep_their_rank() -> None:
    assert ids(order_hits([memory(id) for id in "hgfedcba"])) == "hgfedcba"


def test_shorter_result_precedes_a_slightly_better_one() -> None:
    assert ids(order_hits([memory("a", "long " * 200), memory("b"), memory("c", "long " * 200)])) == "bac"


def test_neighbours_in_a_session_raise_each_other() -> None:
    alone = [memory(id) for id in "abcdef"]
    beside = [memory(id, session_id="s") if id in "af" else memory(id) for id in "abcdef"]

    assert ids(order_hits(alone)) == "abcdef"
    assert ids(order_hits(beside)) == "abcfde"


def test_sessions_of_two_users_are_apart() -> None:
    apart = [memory("a"), memory("b"), memory("c", session_id="s"), memory("d", session_id="s", user_id="group:x")]

    assert ids(order_hits(apart)) == "abcd"


def test_facts_are_pinned_then_important_then_new() -> None:
    facts = [memory("o", at=1), memory("n", at=2), memory("i", importance=1.0), memory("p", pinned=True)]

    assert ids(order_facts(facts)) == "pino"


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ([("user", "a"), ("assistant", "b")], "a"),
        ([("user", "a"), ("user", "b")], "b"),
        ([("system", "a"), ("tool", "b")], "b"),
        ([("user", "x" * 9_000)], "x" * MAX_QUESTION_CHARS),
        ([("user", "\n" * 9_000 + "a")], "a"),
    ],
)
def test_question_is_the_last_of_a_user(messages: list[tuple[str, str]], question: str) -> None:
    assert question_of(messages) == question
