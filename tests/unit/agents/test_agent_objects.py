"""Objects of agents that the API shows: which are found, and which parts of them are kept."""

from typing import Any

from agentmemory_operator.agents.agent_objects import AgentObjects, shown_part
from agentmemory_operator.errors import SpecInvalid, TransientError
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT, ObjectTable
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import memory_document
from tests.support.web.shown_objects import ShownObjects, snapshot_of

BOT = memory_document("bot")
SETTINGS = effective_settings(parse_agent_memory(BOT))


def test_an_object_of_another_uid_is_not_found() -> None:
    shown = ShownObjects()
    shown.put(BOT)
    found = shown.objects.find_memory(SETTINGS)
    shown.put(BOT | {"metadata": BOT["metadata"] | {"uid": "another"}})

    assert found is not None
    assert shown.objects.find_memory(SETTINGS) is None


def test_snapshots_are_none_until_their_namespace_was_listed() -> None:
    shown = ShownObjects(has_jobs=False)
    shown.put(snapshot_of("bot", "a"))

    lists = [shown.objects.list_jobs(SETTINGS, MEMORY_SNAPSHOT)]
    for namespace in ("others", "agents"):
        shown.objects.record_list(MEMORY_SNAPSHOT, namespace)
        lists.append(shown.objects.list_jobs(SETTINGS, MEMORY_SNAPSHOT))

    assert [found and len(found) for found in lists] == [None, None, 1]


def test_only_shown_parts_of_snapshots_are_kept() -> None:
    document = snapshot_of("bot", "a", sha256="0" * 64, shards=[{"shard": 0}], sizeBytes=7)
    document["metadata"] |= {"labels": {"a": "b"}, "annotations": {"c": "d"}}

    kept = shown_part(document)

    assert set(kept["status"]) == {"conditions", "startTime", "sizeBytes"}
    assert set(kept["metadata"]) == {"name", "namespace", "uid", "creationTimestamp"}
    assert shown_part(BOT) is BOT
    assert shown_part(document | {"status": "text"})["status"] == "text"


async def test_a_connection_that_may_not_be_used_has_no_status() -> None:
    errors = [SpecInvalid("ConnectionNotAllowed", "it may not be used"), TransientError("later")]

    async def read(settings: AgentSettings) -> dict[str, Any]:
        raise errors.pop()

    objects = AgentObjects(ObjectTable(), read, is_cluster=True)

    assert [await objects.read_connection_status(SETTINGS) for _ in range(2)] == [{}, {}]
