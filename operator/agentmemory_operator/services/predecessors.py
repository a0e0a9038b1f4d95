"""What a memory may supersede."""

from agentmemory_operator.domain.expiry import is_expired
from agentmemory_operator.domain.records import ITEM_NAMESPACE_KEY, TOMBSTONE_KEY, MemoryRecord, Payload
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.checks import type_of
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.stored import superseded


async def check_predecessor(agent: Agent, record: MemoryRecord, chains: Chains, now_ms: int) -> None:
    """Check that a memory may supersede the one that it names.

    Raises:
        NotFound: this user has no such memory.
        Conflict: that one is superseded, immutable, an item, or of another identity.
    """
    if record.supersedes_id is None:
        return
    old = await chains.settled_row(agent, record.supersedes_id)
    # Of what was erased nobody knows any more whose it was.
    if old is None or old.get("userId") != record.user_id or _is_expired(agent, old, now_ms):
        raise NotFound(f"supersedes: this user has no memory {record.supersedes_id}")
    if ITEM_NAMESPACE_KEY in old:
        raise Conflict(f"supersedes: {record.supersedes_id} is an item, which has no versions: put its key anew")
    if old.get("working"):
        raise Conflict("supersedes: a working memory is not superseded: put the new content into its session")
    if TOMBSTONE_KEY in old or old.get("supersededById"):
        raise superseded(record.supersedes_id)
    _check_rules(agent, old, record)


def _is_expired(agent: Agent, old: Payload, now_ms: int) -> bool:
    return TOMBSTONE_KEY not in old and is_expired(old, agent.settings.ranking.types, now_ms)


def _check_rules(agent: Agent, old: Payload, record: MemoryRecord) -> None:
    kind = type_of(agent, old["type"])
    if kind and kind.immutable:
        rule = f"memories of type {kind.name!r} are immutable (types[].immutable)"
        raise Conflict(f"supersedes: {rule}: store a new one beside {record.supersedes_id}")
    if old.get("identityId") != record.identity_id:
        rule = "a memory with a key or subject that its type goes by (types[].supersedeBy) supersedes only its own"
        raise Conflict(f"supersedes: {record.supersedes_id} has another identity: {rule}; leave supersedes out")
