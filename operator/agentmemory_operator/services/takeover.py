"""Which objects are refused a collection and may take it over, after a cluster was rebuilt or one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.resources import TAKEOVER, Metadata
from agentmemory_operator.ports import AgentMemories, Json
from agentmemory_operator.services.objects import AGENT_MEMORY, slug_of


@dataclass(frozen=True, slots=True)
class Refused:
    """An object that is refused its collection, and whose that is."""

    metadata: Metadata
    alias: str
    cluster_id: str
    namespace: str
    name: str
    uid: str

    @property
    def is_same_name(self) -> bool:
        """Tell whether the owner is the same object of another cluster."""
        return (self.namespace, self.name) == (self.metadata.namespace, self.metadata.name)


def refused_in(documents: Sequence[Json]) -> Iterator[Refused]:
    """Yield the objects that are refused their collection, as their status says."""
    for document in documents:
        status = document.get("status") or {}
        owner = status.get("foreignOwner")
        reasons = {entry["reason"] for entry in status.get("conditions") or [] if entry["type"] == "Stalled"}
        if owner and owner.get("uid") and Reason.COLLECTION_NOT_OWNED in reasons:
            yield Refused(
                Metadata.model_validate(document["metadata"]),
                alias_of(slug_of(document)),
                owner.get("clusterId", ""),
                owner.get("namespace", ""),
                owner.get("name", ""),
                owner["uid"],
            )


def of_rebuilt_cluster(refused: Sequence[Refused], cluster_id: str) -> list[Refused]:
    """Return the objects whose collection is that of the same namespace and name in the cluster that was."""
    return [one for one in refused if one.cluster_id == cluster_id and one.is_same_name]


async def allow_takeover(refused: Sequence[Refused], objects: AgentMemories) -> None:
    """Set the annotation on each; the operator does the rest, and checks the owner again."""
    for one in refused:
        await objects.annotate(AGENT_MEMORY, one.metadata, {TAKEOVER: one.uid})
