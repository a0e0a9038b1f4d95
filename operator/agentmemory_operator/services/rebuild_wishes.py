"""What an object wants of its collection's rebuilds, now: asked before one is begun, and before each batch of it."""

from dataclasses import dataclass

from agentmemory_operator.domain.collection import Observed
from agentmemory_operator.domain.desired import newest_collection, terms_of
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.planning import rebuild_digest
from agentmemory_operator.domain.rebuild_decision import Wish, decide
from agentmemory_operator.domain.rebuilding import Record
from agentmemory_operator.domain.resources import PAUSE_REBUILD, ROLLBACK_REBUILD, AgentMemory
from agentmemory_operator.domain.safety import Refusal
from agentmemory_operator.errors import RebuildPaused, RebuildUnwanted
from agentmemory_operator.ports import Cluster
from agentmemory_operator.services.objects import Key, ObjectTable, owned_memory
from agentmemory_operator.services.reconcile import draft
from agentmemory_operator.services.restore_queue import restore_under_way


@dataclass(frozen=True, slots=True)
class RebuildWishes:
    """Reads what objects want."""

    table: ObjectTable
    cluster: Cluster

    async def read(self, memory: AgentMemory, live: Observed | None) -> Wish:
        """Return what the object wants; a Rebuild that is held is none."""
        back = memory.metadata.annotations.get(ROLLBACK_REBUILD)
        digest = await self.allowed(memory, live) if live else None
        return Wish(digest=digest, rollback=back)

    async def allowed(self, memory: AgentMemory, live: Observed) -> str | None:
        """Return the digest of the rebuild that the object asks for and that is not held."""
        cluster_id = await self.cluster.cluster_id()
        found = draft(
            alias_of(memory.slug),
            newest_collection(memory, cluster_id=cluster_id),
            live,
            last_physical=live.physical,
            last_points=live.points,
            terms=terms_of(memory, cluster_id=cluster_id),
        )
        return rebuild_digest(found.plan) if is_carried_out(found.refusal) else None

    async def check(self, key: Key, uid: str, live: Observed, record: Record) -> None:
        """Pass while a rebuild is to go on, by what is known of its object.

        Raises:
            RebuildPaused, RebuildUnwanted: it is not.
        """
        memory = owned_memory(self.table, key)
        if memory is None or memory.metadata.uid != uid:
            raise RebuildUnwanted("the AgentMemory was deleted, or is not valid any more")
        if memory.spec.suspend:
            raise RebuildPaused("spec.suspend is true: set it to false to go on")
        if PAUSE_REBUILD in memory.metadata.annotations:
            raise RebuildPaused(f"the annotation {PAUSE_REBUILD} pauses it: take it off to go on")
        if restore := restore_under_way(key, self.table):
            raise RebuildPaused(f"MemoryRestore {restore.name} is under way: it goes first")
        wish = await self.read(memory, live)
        wanted = decide(live, [record], wish)
        if wanted.going_on is None:
            raise RebuildUnwanted("the object does not ask for it any more")


def is_carried_out(refusal: Refusal | None) -> bool:
    """Tell whether a plan has a Rebuild that is carried out beside the passes."""
    return refusal is not None and refusal.is_carried_out
