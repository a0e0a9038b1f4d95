"""What a collection says of itself: whose memories they are, what their vectors mean, and whether its alias moves."""

from dataclasses import dataclass, field

from agentmemory_operator.domain.collection import (
    METADATA_KEY,
    ORIGIN_KEY,
    EmbeddingSource,
    KeywordSource,
    embedding_from_json,
    keyword_from_json,
)
from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.domain.rebuilding import MOVING_KEY, Phase, epoch_of, phase_of
from agentmemory_operator.errors import NotFound, StoreUnavailable
from agentmemory_operator.ports import Json, PointStore
from agentmemory_operator.services.closing import CLOSED_KEY, RETRY_AFTER_S

Space = tuple[str, tuple[str, str | None, int], str]
"""Epoch, embedding and distance: what is made for one of these fits no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an agent's collection says of itself; two that are equal need no other agent.

    Attributes:
        source: the embedding in force for the collection's vectors.
        keyword: what its keyword vectors are made of; None where it has none.
        distance: Cosine, Dot or Euclid.
        origin: the agent that the memories were first stored for, where they are a copy of another's.
        epoch: tells it from every other that the alias led to, or will.
        phase: how near the move of the alias is.
        upcoming: the embedding in force after it.
    """

    source: EmbeddingSource
    keyword: KeywordSource | None
    distance: str
    origin: str | None
    epoch: str = ""
    phase: Phase | None = field(default=None, compare=False)
    upcoming: EmbeddingSource | None = field(default=None, compare=False)

    @property
    def space(self) -> Space:
        """What vectors are made for, and writes meant for."""
        return self.epoch, self.source.identity, self.distance


async def read_facts(store: PointStore, settings: AgentSettings) -> Facts:
    """Return what the collection behind an agent's alias says.

    Raises:
        StoreUnavailable: it is not there yet, is another object's, or a snapshot is being restored into it.
    """
    try:
        described = await store.describe(settings.alias)
    except NotFound as error:
        raise _not_ready(settings) from error
    config = described["config"]
    metadata = config.get("metadata") or {}
    if metadata.get(CLOSED_KEY):
        raise closed(settings.slug)
    marker = metadata.get(METADATA_KEY) or {}
    if "embedding" not in marker or not _is_of(marker, settings):
        raise _not_ready(settings)
    return Facts(
        source=embedding_from_json(marker["embedding"]),
        keyword=keyword_from_json(marker.get("keyword")),
        distance=config["params"]["vectors"]["distance"],
        origin=metadata.get(ORIGIN_KEY),
        epoch=epoch_of(metadata),
        phase=phase_of(metadata),
        upcoming=_upcoming(metadata),
    )


def closed(slug: str) -> StoreUnavailable:
    """Return the error for an agent that is to be left alone."""
    return StoreUnavailable(
        f"a snapshot is being restored into agent {slug!r}: nothing was written; try again", retry_after_s=RETRY_AFTER_S
    )


def _upcoming(metadata: Json) -> EmbeddingSource | None:
    told = (metadata.get(MOVING_KEY) or {}).get("embedding")
    return embedding_from_json(told) if told else None


def _is_of(marker: Json, settings: AgentSettings) -> bool:
    """Tell whether the collection is this object's: a slug may pass on, the memories of its last owner do not."""
    owner = marker.get("namespace", settings.namespace), marker.get("name", settings.name)
    return owner == (settings.namespace, settings.name)


def _not_ready(settings: AgentSettings) -> StoreUnavailable:
    return StoreUnavailable(
        f"the collection of agent {settings.slug!r} is not ready yet: see the object's Ready condition", retry_after_s=2
    )
