"""What a collection says of itself: whose memories they are, what their vectors mean, and whether its alias moves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.announcement import Phase, carries, embedding_after, phase_of
from agentmemory_operator.collections.rules.collection import (
    METADATA_KEY,
    ORIGIN_KEY,
    KeywordSource,
    embedding_from_json,
    is_owner,
    keyword_from_json,
    owner_in,
)
from agentmemory_operator.collections.rules.epochs import closed_until, epoch_in
from agentmemory_operator.collections.rules.rebuild_record import epoch_of
from agentmemory_operator.errors import AgentClosed, NotFound, NotServed
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Identity
from agentmemory_operator.spec.effective.settings import AgentSettings

Space = tuple[str, Identity, str]
"""Epoch, embedding and distance: what is made for one of these fits no other."""

CLOSED_RETRY_AFTER_S = 10.0
"""What callers are told to wait while an agent is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an agent's collection says of itself; two that are equal need no other agent.

    Attributes:
        source: the embedding in force for the collection's vectors.
        keyword: what its keyword vectors are made of; None where it has none.
        distance: Cosine, Dot or Euclid.
        origin: the agent that the memories were first stored for, where they are a copy of another's.
        vectors: the names of all its vectors; the nameless one's is empty.
        epoch: tells it from every other that the alias led to, or will, and its owner from those before it.
        number: of the epoch: greater after each change of what the alias leads to.
        allows_exact: its strict mode lets searches and counts be exact.
        contents: what was read of other contents says nothing of these; they stay the same where all is carried over.
        phase: how near the move of the alias is.
        carries: what is written until then is there after it.
        upcoming: the embedding in force after it.
    """

    source: EmbeddingSource
    keyword: KeywordSource | None
    distance: str
    origin: str | None
    allows_exact: bool
    vectors: tuple[str, ...] = ("",)
    epoch: str = ""
    number: int = 0
    contents: int = 0
    phase: Phase | None = field(default=None, compare=False)
    carries: bool = field(default=True, compare=False)
    upcoming: EmbeddingSource | None = field(default=None, compare=False)

    @property
    def space(self) -> Space:
        """What vectors are made for, and writes meant for."""
        return self.epoch, self.source.identity, self.distance

    @property
    def keeps_contents(self) -> bool:
        """Whether no other contents come behind the alias before another reading can tell."""
        return self.phase is None or self.carries


async def read_facts(store: PointStore, settings: AgentSettings, cluster_id: ClusterId) -> Facts:
    """What the collection behind an agent's alias says.

    Raises:
        TransientError: which cluster this is, is not known; nothing was read.
        NotServed: it is not there yet, or is another owner's.
        AgentClosed: a snapshot is being restored into it.
    """
    ours = await cluster_id(), settings.namespace, settings.name
    try:
        described = await store.describe(settings.alias)
    except NotFound as error:
        raise not_ready(settings) from error
    config = described["config"]
    metadata = config.get("metadata") or {}
    # A slug may pass on, the memories of its last owner do not.
    if not is_owner(owner_in(metadata), ours):
        raise not_ready(settings)
    if (until := closed_until(metadata)) is not None:
        raise closed(settings.slug, until)
    marker = metadata[METADATA_KEY]
    if not isinstance(marker.get("embedding"), Mapping):
        raise not_ready(settings)
    epoch = epoch_in(metadata)
    return Facts(
        source=embedding_from_json(marker["embedding"]),
        keyword=keyword_from_json(marker.get("keyword")),
        distance=config["params"]["vectors"]["distance"],
        origin=metadata.get(ORIGIN_KEY),
        vectors=names_of_vectors(config["params"]),
        # A takeover changes nothing but this.
        epoch=f"{epoch_of(metadata)} of {marker.get('uid', '')}",
        number=epoch.number,
        contents=epoch.contents,
        allows_exact=allows_exact(config),
        phase=phase_of(metadata),
        carries=carries(metadata),
        upcoming=embedding_from_json(after) if (after := embedding_after(metadata)) else None,
    )


def allows_exact(config: Json) -> bool:
    """Whether a collection's strict mode lets searches and counts be exact."""
    strict = config.get("strict_mode_config") or {}
    return not strict.get("enabled") or strict.get("search_allow_exact") is not False


def names_of_vectors(params: Json) -> tuple[str, ...]:
    """The names of a collection's vectors: the nameless one, and those of words."""
    return ("", *sorted(params.get("sparse_vectors") or {}))


def check_epoch(facts: Facts, slug: str, least: int) -> None:
    """Pass unless a collection is of the past: a snapshot is being restored into it, and brought its metadata along.

    Args:
        least: number of the epoch from which on it is served.

    Raises:
        AgentClosed: it is.
    """
    if facts.number < least:
        raise closed(slug, least)


def closed(slug: str, until: int) -> AgentClosed:
    """The error for an agent that is to be left alone until its collection has an epoch."""
    message = f"a snapshot is being restored into agent {slug!r}: nothing was written; retry"
    return AgentClosed(message, until=until, retry_after_s=CLOSED_RETRY_AFTER_S)


def not_ready(settings: AgentSettings) -> NotServed:
    """The error for an agent whose collection is not there yet, or not any more, or is another's."""
    return NotServed(
        f"the collection of agent {settings.slug!r} is not ready or was deleted: see the object's Ready condition",
        retry_after_s=2,
    )
