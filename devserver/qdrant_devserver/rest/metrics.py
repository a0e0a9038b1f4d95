"""Metrics of the development server, with Qdrant's names."""

import pathlib
import resource
from collections.abc import Iterable, Mapping

from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.optimizations import Optimizations
from qdrant_devserver.storage.shards import Shards


def render_metrics(
    version: str,
    collections: Iterable[ServedCollection],
    shards: Shards,
    optimizations: Optimizations,
    *,
    figures: Mapping[str, int],
) -> str:
    """Render the metrics in Prometheus' text format.

    A collection with a closed shard has the counts of the moment at which it was closed.

    Args:
        figures: Figures to report instead of the process's own, by metric name.
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
    for name, value in {**_process(), **figures}.items():
        lines += [f"# TYPE {name} gauge", f"{name} {value}"]
    return "\n".join(lines) + "\n"


def _process() -> Mapping[str, int]:
    """Return resource usage and limits of this process; empty if the system does not provide them."""
    try:
        maps = (pathlib.Path("/proc/self/maps").read_bytes()).count(b"\n")
        max_maps = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        files = sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir())
    except (OSError, ValueError):
        return {}
    max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "process_open_mmaps": maps,
        "system_max_mmaps": max_maps,
        "process_open_fds": files,
        "process_max_fds": 0 if max_files == resource.RLIM_INFINITY else max_files,
    }


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
