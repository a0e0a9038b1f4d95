"""Estimates of the costs of a Rebuild, shown before its approval, and reasons why it is impossible. Pure.

| figure | source |
|---|---|
| disk, RAM | estimate of the new collection (`estimate.py`) times its replicas, with contents of the sampled length |
| per node | spread evenly over as many nodes as there are replicas of shards |
| embedding calls | points divided by batchSize; none if vectors are copied |
| tokens | sampled lengths, 4 characters a token, as elsewhere |
| time | 2,000 points a second, the minimum rate of one client (bench/README.md); longer if calls are limited |
| room | total disk and RAM of the server's machine; free space is not reported |

The response time of the embedding provider is unknown in advance and not included.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.changes import Rebuild
from agentmemory_operator.collections.rules.collection import Collection, Observation
from agentmemory_operator.collections.rules.estimate import Estimate, estimate, layout_of
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.spec.effective.policies import RebuildSettings

GIB = 1024**3
MIN_COPY_RATE = 2_000
SAMPLE_SIZE = 256
"""Number of memories whose length is sampled."""

# Content length that the estimate of a payload assumes.
_ESTIMATED_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerResources:
    """Resources that are available for a Rebuild.

    Attributes:
        nodes: Number of servers in the cluster.
        disk_bytes, ram_bytes: Total of one node's machine. None if the server does not report it.
        max_rebuild_bytes: Maximum disk for a Rebuild, of all nodes together, set by the administrator. None uses the
            size of the disk, which is less reliable: a server does not detect every kind of volume.
    """

    nodes: int = 1
    disk_bytes: int | None = None
    ram_bytes: int | None = None
    max_rebuild_bytes: int | None = None


def server_resources(server: ServerCapabilities, *, max_bytes: int | None = None) -> ServerResources:
    """Return the resources that a server reports.

    Args:
        max_bytes: Maximum disk for a Rebuild, set by the administrator. None without one.
    """
    return ServerResources(
        nodes=server.peers or 1, disk_bytes=server.disk_bytes, ram_bytes=server.ram_bytes, max_rebuild_bytes=max_bytes
    )


@dataclass(frozen=True, slots=True)
class CollectionSample:
    """Facts about a collection that is to be rebuilt.

    Attributes:
        lengths: Characters of the contents of sampled memories; 0 for one without content.
    """

    lengths: tuple[int, ...]
    resources: ServerResources = ServerResources()


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Estimated costs of a Rebuild. Bytes are needed in addition to the current collection, until that is removed.

    Attributes:
        seconds: Minimum duration, without the response time of the embedding provider.
        calls: Requests to the embedding provider. 0 if vectors are copied.
        tokens: Tokens to embed. None if no content was sampled, or if vectors are copied.
        price: Price of the tokens, in the currency of the object's price. None without tokens, or if it has no price.
        disk_bytes, ram_bytes: Total of all nodes.
        nodes: Number of nodes over which they are spread.
        shortage: Reason why the server lacks space. None if the reported resources suffice, or nothing was reported.
        obstacle: Reason why the Rebuild is impossible. None if it is possible.
    """

    points: int
    calls: int
    seconds: float
    disk_bytes: int
    ram_bytes: int
    nodes: int
    tokens: int | None = None
    price: float | None = None
    shortage: str | None = None
    obstacle: str | None = None

    @property
    def disk_per_node(self) -> int:
        """Bytes of disk on each node, rounded up."""
        return math.ceil(self.disk_bytes / self.nodes)

    @property
    def ram_per_node(self) -> int:
        """Bytes of RAM on each node, rounded up."""
        return math.ceil(self.ram_bytes / self.nodes)


def estimate_costs(
    plan: Plan,
    desired: Collection,
    observed: Observation,
    *,
    settings: RebuildSettings,
    batch: int,
    survey: CollectionSample | None,
) -> Costs:
    """Estimate the costs of a plan's Rebuild.

    Args:
        settings: Rebuild settings of the object.
        batch: Number of texts in one request to the embedding provider.
        survey: Facts about the collection. None estimates without lengths and limits.
    """
    resources = survey.resources if survey else ServerResources()
    lengths = survey.lengths if survey else ()
    is_embedded = needs_embedding(plan)
    calls = math.ceil(observed.points / batch) if is_embedded else 0
    tokens = _tokens(lengths, observed.points) if is_embedded else None
    needed, nodes = _needed(desired, observed.points, lengths, resources)
    present, _ = _needed(observed.collection, observed.points, lengths, resources)
    if observed.is_plain:
        # Add the copy of a plain collection, which is kept for the rollback because the collection itself is deleted.
        needed = Estimate(needed.ram + present.ram, needed.disk + present.disk)
    costs = Costs(
        points=observed.points,
        calls=calls,
        seconds=_seconds(observed.points, calls, settings),
        disk_bytes=math.ceil(needed.disk),
        ram_bytes=math.ceil(needed.ram),
        nodes=nodes,
        tokens=tokens,
        price=None if tokens is None or settings.price is None else tokens * settings.price / 1e6,
        obstacle=_obstacle(desired, observed, lengths) if is_embedded else None,
    )
    return replace(costs, shortage=_shortage(costs, present, resources))


def needs_embedding(plan: Plan) -> bool:
    """Return whether a plan's Rebuild computes new embeddings, because it changes the vector space."""
    return any(isinstance(change, Rebuild) and change.field.startswith("embedding.") for change in plan.changes)


def describe_costs(costs: Costs) -> str:
    """Render calls, tokens, price, bytes and minimum duration as one phrase; unknown numbers are left out."""
    parts = [f"about {_gib(costs.disk_bytes)} of disk and {_gib(costs.ram_bytes)} of RAM during the rebuild"]
    if costs.calls:
        parts.insert(0, f"{costs.calls:,} embedding call{'s' if costs.calls > 1 else ''}{_words(costs)}")
    return f"{', '.join(parts)}, at least {_duration(costs.seconds)}"


def _words(costs: Costs) -> str:
    if costs.tokens is None:
        return ""
    price = "" if costs.price is None else f", {costs.price:.2f} at the given price"
    return f" (about {costs.tokens:,} tokens{price})"


def _tokens(lengths: Sequence[int], points: int) -> int | None:
    """Return the tokens of all contents, rounded to two digits, the precision of the sample."""
    if not lengths:
        return None
    exact = round(points * sum(lengths) / len(lengths) / CHARS_PER_TOKEN)
    return round(exact, 2 - len(str(exact)))


def _seconds(points: int, calls: int, settings: RebuildSettings) -> float:
    limit = settings.max_calls_per_hour
    embedding_s = calls * 3600 / limit if limit else 0.0
    return max(points / MIN_COPY_RATE, embedding_s)


def _needed(
    collection: Collection, points: int, lengths: Sequence[int], resources: ServerResources
) -> tuple[Estimate, int]:
    """Return the disk and RAM of a collection on all nodes together, and the number of nodes."""
    copies = collection.replication_factor or 1
    nodes = max(1, min(resources.nodes, copies * (collection.shard_number or resources.nodes)))
    single = estimate(layout_of(collection), points)
    mean = sum(lengths) / len(lengths) if lengths else _ESTIMATED_CHARACTERS
    longer = points * max(0.0, mean - _ESTIMATED_CHARACTERS)
    return Estimate(single.ram * copies, (single.disk + longer) * copies), nodes


def _obstacle(desired: Collection, observed: Observation, lengths: Sequence[int]) -> str | None:
    """Return why the points cannot be embedded again, or None."""
    if not observed.points:
        return None
    if desired.marker is not None and desired.marker.embedding.provider == "none":
        return (
            f"with embedding.provider none callers send the vectors, so the operator cannot embed the "
            f"{observed.points} existing points: choose a provider that embeds, revert the field, or create "
            f"another AgentMemory and store them there"
        )
    if lengths and not any(lengths):
        return (
            f"none of the {len(lengths)} sampled memories has content to embed: revert the "
            f"field, or create another AgentMemory"
        )
    return None


def _shortage(costs: Costs, present: Estimate, resources: ServerResources) -> str | None:
    if resources.max_rebuild_bytes is not None and costs.disk_bytes > resources.max_rebuild_bytes:
        return (
            f"it needs about {_gib(costs.disk_bytes)} of disk, but the operator's AGENTMEMORY_MAX_REBUILD_GIB allows "
            f"{_gib(resources.max_rebuild_bytes)}: raise it"
        )
    disk_bytes = resources.disk_bytes if resources.max_rebuild_bytes is None else None
    for resource, needed, used, total in (
        ("disk", costs.disk_per_node, present.disk / costs.nodes, disk_bytes),
        ("RAM", costs.ram_per_node, present.ram / costs.nodes, resources.ram_bytes),
    ):
        if total is not None and needed + used > total:
            remedy = (
                ", or set the operator's AGENTMEMORY_MAX_REBUILD_GIB to the available space"
                if resource == "disk"
                else ""
            )
            return (
                f"it needs about {_gib(needed)} of {resource} on each node in addition to the {_gib(used)} that the "
                f"collection uses now, but the server reports {_gib(total)} in total: add more, choose a smaller "
                f"layout (index.profile LowMemory){remedy}"
            )
    return None


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{math.ceil(size / 1024**2)} MiB"


def _duration(seconds: float) -> str:
    for unit, unit_s in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{math.ceil(seconds)} seconds" if seconds > 1 else "a second"


MAX_TOKENS, CHARS_PER_TOKEN = 2048, 4
"""Default maximum of tokens in a memory's content, and the characters that count as one token: a tokenizer would be
specific to one model."""
