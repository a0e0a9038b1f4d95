"""Facts about an agent's collection, read from its metadata: owner, embedding, and the state of a move of its alias."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.announcement import Phase, copies_writes, embedding_after, phase_of
from agentmemory_operator.collections.rules.collection import (
    METADATA_KEY,
    ORIGIN_KEY,
    KeywordSource,
    embedding_from_json,
    is_owner,
    keyword_from_json,
    read_owner,
)
from agentmemory_operator.collections.rules.epochs import read_epoch, read_reopening_epoch
from agentmemory_operator.collections.rules.rebuild_record import read_epoch_text
from agentmemory_operator.errors import AgentClosed, CollectionUnavailable, NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Identity
from agentmemory_operator.spec.effective.settings import AgentSettings

Space = tuple[str, Identity, str]
"""Epoch, embedding identity and distance. A vector made for one space must not be used in another."""

CLOSED_RETRY_AFTER_S = 10.0
"""Seconds after which clients are asked to retry while an agent is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionFacts:
    """Facts about an agent's collection. If two are equal, the opened agent can be reused.

    Attributes:
        source: Embedding of the stored vectors.
        keyword: Source of the collection's keyword vectors. None if it has none.
        distance: Cosine, Dot or Euclid.
        origin: Slug of the agent that the memories were first stored for. None if they were not cloned from another.
        vectors: Names of all its vectors; the default vector is "".
        epoch: Text that differs for every target of the alias, and for every owner of the collection.
        epoch_number: Number of the epoch; it increases with every change of the alias's target.
        allows_exact: True if its strict mode permits exact searches and counts.
        contents_number: Number of the last change of the alias's target that did not copy all data. Results that were
            read under another number are invalid.
        phase: Phase of an announced move of the alias. None if none is announced.
        copies_writes: True if the move copies everything that is written before it.
        next_embedding: Embedding after the move. None if it does not change.
    """

    source: EmbeddingSource
    keyword: KeywordSource | None
    distance: str
    origin: str | None
    allows_exact: bool
    vectors: tuple[str, ...] = ("",)
    epoch: str = ""
    epoch_number: int = 0
    contents_number: int = 0
    phase: Phase | None = field(default=None, compare=False)
    copies_writes: bool = field(default=True, compare=False)
    next_embedding: EmbeddingSource | None = field(default=None, compare=False)

    @property
    def space(self) -> Space:
        """Space of the stored vectors. A query vector or write made for another space is rejected."""
        return self.epoch, self.source.identity, self.distance

    @property
    def keeps_contents(self) -> bool:
        """True if no move is announced, or the announced one copies all data: the contents then stay the same."""
        return self.phase is None or self.copies_writes


async def read_facts(store: PointStore, settings: AgentSettings, cluster_id: ClusterId) -> CollectionFacts:
    """Read the facts about the collection behind an agent's alias.

    Raises:
        TransientError: If the cluster ID is unknown, or Qdrant is unavailable (StoreUnavailable).
        StoreRejected, SpecInvalid: If Qdrant rejected the read, or the egress policy forbids its host.
        CollectionUnavailable: If the collection does not exist, or has another owner or a malformed marker.
        AgentClosed: If a snapshot is being restored into it.
    """
    owner = await cluster_id(), settings.namespace, settings.name
    try:
        info = await store.describe(settings.alias)
    except NotFound as error:
        raise not_ready(settings) from error
    config = info["config"]
    metadata = config.get("metadata") or {}
    # Refuse a collection of another owner: a slug may be reused, and its previous owner's memories stay private.
    if not is_owner(read_owner(metadata), owner):
        raise not_ready(settings)
    if (closed_until := read_reopening_epoch(metadata)) is not None:
        raise agent_closed(settings.slug, closed_until)
    marker = metadata[METADATA_KEY]
    if not isinstance(marker.get("embedding"), Mapping):
        raise not_ready(settings)
    epoch = read_epoch(metadata)
    return CollectionFacts(
        source=embedding_from_json(marker["embedding"]),
        keyword=keyword_from_json(marker.get("keyword")),
        distance=config["params"]["vectors"]["distance"],
        origin=metadata.get(ORIGIN_KEY),
        vectors=vector_names(config["params"]),
        # Include the uid, because a takeover by another object changes nothing else.
        epoch=f"{read_epoch_text(metadata)} of {marker.get('uid', '')}",
        epoch_number=epoch.number,
        contents_number=epoch.contents,
        allows_exact=allows_exact(config),
        phase=phase_of(metadata),
        copies_writes=copies_writes(metadata),
        next_embedding=embedding_from_json(next_embedding) if (next_embedding := embedding_after(metadata)) else None,
    )


def allows_exact(config: Json) -> bool:
    """Return whether a collection permits exact searches and counts: strict mode is off, or does not forbid them."""
    strict = config.get("strict_mode_config") or {}
    return not strict.get("enabled") or strict.get("search_allow_exact") is not False


def vector_names(params: Json) -> tuple[str, ...]:
    """Return the names of a collection's vectors: "" for the default one, and the sparse ones."""
    return ("", *sorted(params.get("sparse_vectors") or {}))


def check_epoch(facts: CollectionFacts, slug: str, min_epoch: int) -> None:
    """Raise AgentClosed if a collection has an outdated epoch: a restore has recovered old metadata with the snapshot.

    Args:
        min_epoch: Lowest epoch number that is served.

    Raises:
        AgentClosed: If the epoch is lower.
    """
    if facts.epoch_number < min_epoch:
        raise agent_closed(slug, min_epoch)


def agent_closed(slug: str, epoch: int) -> AgentClosed:
    """Return the error for an agent whose collection is closed until it has the given epoch."""
    message = f"a snapshot is being restored into agent {slug!r}: nothing was written; retry"
    return AgentClosed(message, reopening_epoch=epoch, retry_after_s=CLOSED_RETRY_AFTER_S)


def not_ready(settings: AgentSettings) -> CollectionUnavailable:
    """Return the error for an agent whose collection does not exist, has another owner, or names no embedding."""
    return CollectionUnavailable(
        f"the collection of agent {settings.slug!r} is not ready or was deleted: see the object's Ready condition",
        retry_after_s=2,
    )
