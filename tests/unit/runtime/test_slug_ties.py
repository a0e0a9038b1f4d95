"""Two objects of one second claim a slug: the operator and the API choose the same one."""

from typing import Any

import pytest

from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, has_collection
from tests.support.spec.documents import memory_document

COLLECTION = {"collection": {"physical": "agent_memory_bot__1"}}


def claim(name: str, uid: str, status: Any = None) -> dict[str, Any]:
    return memory_document(name, agent="bot", metadata={"uid": uid}) | {"status": status}


@pytest.mark.parametrize(
    ("first", "second", "owner"),
    [(None, None, "a"), (COLLECTION, None, "a"), (None, COLLECTION, "b"), (COLLECTION, COLLECTION, "a")],
)
def test_the_one_with_the_collection_owns_the_slug_else_the_smaller_uid(first: Any, second: Any, owner: str) -> None:
    table = ObjectTable()
    for document in (claim("b", "2", second), claim("a", "1", first)):
        table.put(document)

    assert table.find_owner("bot") == Key(AGENT_MEMORY, "agents", owner)


@pytest.mark.parametrize("status", [None, {}, {"collection": None}, "nonsense"])
def test_a_status_without_a_collection_holds_none(status: Any) -> None:
    assert not has_collection(claim("a", "1", status))
