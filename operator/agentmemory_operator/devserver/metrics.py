"""The metrics that the development server has, under the names that the server uses."""

from collections.abc import Iterable

from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.optimizations import Optimizations
from agentmemory_operator.devserver.shards import Shards


def render_metrics(
    version: str, collections: Iterable[Collection], shards: Shards, optimizations: Optimizations
) -> str:
    """Return the metrics in Prometheus' text format.

    Counts of collections whose shard is closed are those of the moment when it was.
    """
    listed = sorted(collections, key=lambda collection: collection.name)
    lines = [
        "# TYPE app_info gauge",
        f'app_info{{name="qdrant",version="{version}"}} 1',
        "# TYPE collections_total gauge",
        f"collections_total {len(listed)}",
        "# TYPE collection_points gauge",
    ]
    lines += [f'collection_points{{id="{_escaped(item.name)}"}} {shards.summary(item).points}' for item in listed]
    lines.append("# TYPE collection_running_optimizations gauge")
    lines += [
        f'collection_running_optimizations{{id="{_escaped(item.name)}"}} {int(optimizations.is_running(item))}'
        for item in listed
    ]
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
