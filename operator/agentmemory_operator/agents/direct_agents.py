"""Open an agent over a replaced, restored or not yet live collection, by the collection's own name, not the alias."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentmemory_operator.agents.collection_facts import vector_names
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import METADATA_KEY, marker_from_json
from agentmemory_operator.ports.base import Clock, Vector
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.effective.settings import AgentSettings


async def open_by_name(store: PointStore, settings: AgentSettings, physical: str, clock: Clock) -> Agent:
    """Open an agent over one collection by its own name, without checking its owner. It cannot embed texts.

    Raises:
        NotFound: If the collection does not exist.
        StoreUnavailable: If Qdrant is unavailable, or the collection's metadata is malformed (CollectionUnavailable).
        StoreRejected: If Qdrant rejected the read.
        SpecInvalid: If the egress policy forbids the host of Qdrant.
    """
    config = (await store.describe(physical))["config"]
    marker = marker_from_json((config.get("metadata") or {}).get(METADATA_KEY) or {})
    strict = config.get("strict_mode_config") or {}
    limits = strict if strict.get("enabled") else {}
    ranking = replace(
        settings.ranking,
        max_query_limit=limits.get("max_query_limit"),
        max_batched_searches=limits.get("search_max_batchsize"),
    )
    return Agent(
        settings=replace(settings, ranking=ranking),
        physical=physical,
        store=store,
        source=marker.embedding,
        embedder=_NoEmbedder(marker.embedding.dimensions),
        clock=clock,
        distance=config["params"]["vectors"]["distance"],
        vectors=vector_names(config["params"]),
        keyword=marker.keyword,
    )


@dataclass(frozen=True, slots=True)
class _NoEmbedder:
    dimensions: int

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        raise AssertionError("a copy is read-only")
