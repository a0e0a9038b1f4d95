"""Tie-break for a slug claimed by two objects of the same second, equal in operator and API."""

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
def test_collection_then_smaller_uid_owns_slug(first: Any, second: Any, owner: str) -> None:
    table = ObjectTable()
    for document in (claim("b", "2", second), claim("a", "1", first)):
        table.put(document)

    assert table.find_owner("bot") == Key(AGENT_MEMORY, "agents", owner)


@pytest.mark.parametrize("status", [None, {}, {"collection": None}, "nonsense"])
def test_invalid_status_has_no_collection(status: Any) -> None:
    assert not has_collection(claim("a", "1", status))
