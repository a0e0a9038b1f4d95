"""Retention verdict of each snapshot of an agent, from a `SnapshotOverview` or from the objects as received."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.snapshots.rules.due import SnapshotOverview, read_settings
from agentmemory_operator.snapshots.rules.facts import candidate_of, parse_facts
from agentmemory_operator.snapshots.rules.retention import RetentionVerdict, judge
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import find_condition

Documents = Sequence[Mapping[str, Any]]


def judge_overview(
    overview: SnapshotOverview, users: Mapping[str, Sequence[str]] | None = None
) -> tuple[RetentionVerdict, ...]:
    """Return the verdict on each snapshot of an agent, newest first; empty without a valid `snapshots` block.

    Args:
        users: Objects that need a snapshot, as in `find_users`, by the snapshot's name. None means that there are none.
    """
    if overview.figures.rules is None:
        return ()
    candidates = [
        candidate_of(item, overview.server_version, (users or {}).get(item.name, ())) for item in overview.snapshots
    ]
    return judge(candidates, overview.figures.rules, now_ms=overview.now_ms)


def judge_documents(
    memory: AgentMemory,
    snapshots: Documents,
    *,
    restores: Documents,
    memories: Documents,
    running: str | None,
    now_ms: int,
) -> dict[str, RetentionVerdict]:
    """Return the verdict on each snapshot by its name; empty without a valid `snapshots` block.

    Args:
        snapshots: MemorySnapshots of the agent as received.
        restores: MemoryRestores of its namespace as received.
        memories: AgentMemories of its namespace as received.
        running: Qdrant version of its server, from the connection's status; None if unknown.
        now_ms: Current time, Unix milliseconds.
    """
    facts = [parse_facts(document) for document in snapshots]
    outlook = SnapshotOverview(
        memory=memory,
        figures=read_settings(memory.spec.snapshots),
        snapshots=facts,
        slot_ms=0,
        server_version=running,
        now_ms=now_ms,
    )
    users = {snapshot.name: find_users(snapshot.name, restores=restores, memories=memories) for snapshot in facts}
    return {verdict.name: verdict for verdict in judge_overview(outlook, users)}


def find_users(name: str, *, restores: Documents, memories: Documents) -> list[str]:
    """Return the objects that need a snapshot, each as kind and name.

    These are unfinished restores from it, and agents without a collection that bootstrap from it.

    Args:
        restores: MemoryRestores of its namespace as received.
        memories: AgentMemories of its namespace as received.
    """
    users = [f"MemoryRestore {item['metadata']['name']}" for item in restores if _restores_from(item, name)]
    return users + [f"AgentMemory {item['metadata']['name']}" for item in memories if _bootstraps_from(item, name)]


def _restores_from(restore: Mapping[str, Any], name: str) -> bool:
    succeeded = find_condition(restore.get("status"), "Succeeded").get("status", "Unknown")
    return succeeded == "Unknown" and _referenced_name(restore, "source", "snapshotRef") == name


def _bootstraps_from(memory: Mapping[str, Any], name: str) -> bool:
    has_collection = bool((memory.get("status") or {}).get("collection"))
    return not has_collection and _referenced_name(memory, "bootstrap", "fromSnapshot") == name


def _referenced_name(document: Mapping[str, Any], *path: str) -> object:
    value: Any = document.get("spec")
    for key in (*path, "name"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
