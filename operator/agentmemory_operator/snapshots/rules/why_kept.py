"""Why each snapshot of an agent stays or goes, from what is known of them, or from the objects as they came."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.snapshots.rules.due import Outlook, figures_of
from agentmemory_operator.snapshots.rules.facts import candidate_of, taken_of
from agentmemory_operator.snapshots.rules.retention import RetentionVerdict, judge
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import condition_of

Documents = Sequence[Mapping[str, Any]]


def verdicts_of(outlook: Outlook, users: Mapping[str, Sequence[str]] | None = None) -> tuple[RetentionVerdict, ...]:
    """What becomes of each of an agent's snapshots, newest first; nothing where no rule holds.

    Args:
        users: who needs each, by its name.
    """
    if outlook.figures.rules is None:
        return ()
    candidates = [candidate_of(one, outlook.running, (users or {}).get(one.name, ())) for one in outlook.taken]
    return judge(candidates, outlook.figures.rules, now_ms=outlook.now_ms)


def reasons_of(
    memory: AgentMemory,
    snapshots: Documents,
    *,
    restores: Documents,
    memories: Documents,
    running: str | None,
    now_ms: int,
) -> dict[str, RetentionVerdict]:
    """What becomes of each snapshot by its name; empty where the agent has no rules.

    Args:
        snapshots: MemorySnapshots of the agent as they came.
        restores: MemoryRestores of its namespace.
        memories: AgentMemories of its namespace.
        running: version of its server, as the connection's status has it.
        now_ms: Unix milliseconds.
    """
    taken = [taken_of(document) for document in snapshots]
    outlook = Outlook(
        memory=memory,
        figures=figures_of(memory.spec.snapshots),
        taken=taken,
        slot_ms=0,
        running=running,
        now_ms=now_ms,
    )
    users = {one.name: users_of(one.name, restores=restores, memories=memories) for one in taken}
    return {verdict.name: verdict for verdict in verdicts_of(outlook, users)}


def users_of(name: str, *, restores: Documents, memories: Documents) -> list[str]:
    """Who needs a snapshot: restores under way that name it, and agents that are to begin with it.

    Args:
        restores: MemoryRestores of its namespace as they came.
        memories: AgentMemories of its namespace as they came.
    """
    found = [f"MemoryRestore {item['metadata']['name']}" for item in restores if _reads(item, name)]
    return found + [f"AgentMemory {item['metadata']['name']}" for item in memories if _begins_with(item, name)]


def _reads(restore: Mapping[str, Any], name: str) -> bool:
    succeeded = condition_of(restore.get("status"), "Succeeded").get("status", "Unknown")
    return succeeded == "Unknown" and _named(restore, "source", "snapshotRef") == name


def _begins_with(memory: Mapping[str, Any], name: str) -> bool:
    has_collection = bool((memory.get("status") or {}).get("collection"))
    return not has_collection and _named(memory, "bootstrap", "fromSnapshot") == name


def _named(document: Mapping[str, Any], *path: str) -> object:
    found: Any = document.get("spec")
    for part in (*path, "name"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
