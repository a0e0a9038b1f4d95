"""What a Rebuild costs, before anybody approves it: estimates, and what makes it impossible. Pure.

| figure | from |
|---|---|
| disk, RAM | the estimate of the new collection (`estimate.py`) times its copies, contents of the sampled length |
| per node | spread evenly over as many nodes as there are copies of shards |
| embedding calls | points over batchSize; none where the vectors are copied |
| tokens | the sampled lengths, 4 characters a token, as elsewhere |
| time | 2,000 points a second, what one client stores at least (bench/README.md); longer with a bound on the calls |
| room | what the server says of its machine: the size of its disk and RAM, never what is free of them |

How long the provider itself takes is not known beforehand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.changes import Rebuild
from agentmemory_operator.collections.rules.collection import Collection, Observed
from agentmemory_operator.collections.rules.estimate import Estimate, estimate, layout_of
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.spec.effective.policies import RebuildSettings

GIB = 1024**3
COPIED_PER_S = 2_000
SAMPLED = 256
"""Memories whose lengths are looked at."""

# Of a content of which length the estimate knows the payload.
_ESTIMATED_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is room for.

    Attributes:
        nodes: servers of the cluster.
        disk_bytes, ram_bytes: of one node's machine, in all; None where the server does not tell.
        most_bytes: of disk that a Rebuild may take, of all nodes together; None leaves it to the size of the disk. That
            says less: a server does not see every kind of volume.
    """

    nodes: int = 1
    disk_bytes: int | None = None
    ram_bytes: int | None = None
    most_bytes: int | None = None


def room_of(server: ServerCapabilities, *, most_bytes: int | None = None) -> Room:
    """The room that a server reports.

    Args:
        most_bytes: of disk, by somebody's decision.
    """
    return Room(
        nodes=server.peers or 1, disk_bytes=server.disk_bytes, ram_bytes=server.ram_bytes, most_bytes=most_bytes
    )


@dataclass(frozen=True, slots=True)
class Survey:
    """What was looked at of a collection that is to be rebuilt.

    Attributes:
        lengths: characters of the content of some memories; 0 of one without.
    """

    lengths: tuple[int, ...]
    room: Room = Room()


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a Rebuild takes; bytes are beside what the collection takes already, until that one is removed.

    Attributes:
        calls: requests to the embedding provider; 0 where vectors are copied.
        tokens: to embed; None where no content was looked at.
        price: of the tokens, in the currency of the object's price; None where it gives none.
        disk_bytes, ram_bytes: of all nodes together.
        nodes: over which they are spread.
        shortage: why there is no room for it; None where nothing speaks against it.
        obstacle: why it cannot be done at all.
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
        """Bytes of disk on each of the nodes."""
        return math.ceil(self.disk_bytes / self.nodes)

    @property
    def ram_per_node(self) -> int:
        """Bytes of RAM on each of the nodes."""
        return math.ceil(self.ram_bytes / self.nodes)


def costs_of(
    plan: Plan, desired: Collection, observed: Observed, *, settings: RebuildSettings, batch: int, survey: Survey | None
) -> Costs:
    """What the Rebuild of a plan costs.

    Args:
        settings: the object's.
        batch: texts in one request to the embedding provider.
        survey: what was looked at; None knows of no contents and bounds nothing.
    """
    room = survey.room if survey else Room()
    lengths = survey.lengths if survey else ()
    is_embedded = embeds(plan)
    calls = math.ceil(observed.points / batch) if is_embedded else 0
    tokens = _tokens(lengths, observed.points) if is_embedded else None
    needed, nodes = _needed(desired, observed.points, lengths, room)
    there, _ = _needed(observed.collection, observed.points, lengths, room)
    if observed.is_plain:
        # A copy of it is made too: the collection itself cannot be the way back.
        needed = Estimate(needed.ram + there.ram, needed.disk + there.disk)
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
    return replace(costs, shortage=_shortage(costs, there, room))


def embeds(plan: Plan) -> bool:
    """Whether a plan's Rebuild makes every vector anew: another vector space is asked for."""
    return any(isinstance(change, Rebuild) and change.field.startswith("embedding.") for change in plan.changes)


def describe_costs(costs: Costs) -> str:
    """The costs in a few words."""
    told = [f"about {_gib(costs.disk_bytes)} of disk and {_gib(costs.ram_bytes)} of RAM during the rebuild"]
    if costs.calls:
        told.insert(0, f"{costs.calls:,} embedding call{'s' if costs.calls > 1 else ''}{_words(costs)}")
    return f"{', '.join(told)}, at least {_duration(costs.seconds)}"


def _words(costs: Costs) -> str:
    if costs.tokens is None:
        return ""
    price = "" if costs.price is None else f", {costs.price:.2f} at the given price"
    return f" (about {costs.tokens:,} tokens{price})"


def _tokens(lengths: Sequence[int], points: int) -> int | None:
    """How many tokens all contents have, to two digits: a sample tells no more."""
    if not lengths:
        return None
    exact = round(points * sum(lengths) / len(lengths) / CHARACTERS_A_TOKEN)
    return round(exact, 2 - len(str(exact)))


def _seconds(points: int, calls: int, settings: RebuildSettings) -> float:
    most = settings.max_calls_per_hour
    embedding_s = calls * 3600 / most if most else 0.0
    return max(points / COPIED_PER_S, embedding_s)


def _needed(shape: Collection, points: int, lengths: Sequence[int], room: Room) -> tuple[Estimate, int]:
    """What a collection takes on all nodes together, and over how many of them it is spread."""
    copies = shape.replication_factor or 1
    nodes = max(1, min(room.nodes, copies * (shape.shard_number or room.nodes)))
    one = estimate(layout_of(shape), points)
    mean = sum(lengths) / len(lengths) if lengths else _ESTIMATED_CHARACTERS
    longer = points * max(0.0, mean - _ESTIMATED_CHARACTERS)
    return Estimate(one.ram * copies, (one.disk + longer) * copies), nodes


def _obstacle(desired: Collection, observed: Observed, lengths: Sequence[int]) -> str | None:
    """Why vectors cannot be made anew."""
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


def _shortage(costs: Costs, there: Estimate, room: Room) -> str | None:
    if room.most_bytes is not None and costs.disk_bytes > room.most_bytes:
        return (
            f"it needs about {_gib(costs.disk_bytes)} of disk, but the operator's AGENTMEMORY_MAX_REBUILD_GIB allows "
            f"{_gib(room.most_bytes)}: raise it"
        )
    disk_bytes = room.disk_bytes if room.most_bytes is None else None
    for what, needed, taken, has in (
        ("disk", costs.disk_per_node, there.disk / costs.nodes, disk_bytes),
        ("RAM", costs.ram_per_node, there.ram / costs.nodes, room.ram_bytes),
    ):
        if has is not None and needed + taken > has:
            known = (
                ", or set the operator's AGENTMEMORY_MAX_REBUILD_GIB to the available space" if what == "disk" else ""
            )
            return (
                f"it needs about {_gib(needed)} of {what} on each node in addition to the {_gib(taken)} that the "
                f"collection uses now, but the server reports {_gib(has)} in total: add more, choose a smaller "
                f"layout (index.profile LowMemory){known}"
            )
    return None


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{math.ceil(size / 1024**2)} MiB"


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{math.ceil(seconds)} seconds" if seconds > 1 else "a second"


TOKENS_MAX, CHARACTERS_A_TOKEN = 2048, 4
"""The design's limit, counted as it counts: no tokenizer, which would be another one for each model."""
