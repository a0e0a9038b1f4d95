"""`python -m bench.maps`: memory maps and open files that a collection takes on a server.

It creates and removes empty collections of each layout (384 dimensions, int8), and reads the server's `/metrics` before
and after. The dev server reports its own process, which differs from Qdrant's. For the table in docs/operations.md use
a real server without other changes to collections.

With --indexes: benefit of an index that is added later, by the number of points (docs/adr/0020).
"""

import argparse
import contextlib
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from agentmemory_operator.adapters.qdrant.server import parse_process
from agentmemory_operator.collections.rules.capacity import Process, need_of
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.table import Optimizers
from bench.datasets import DIMENSIONS
from bench.progress import log_progress
from bench.stacks import running
from bench.tables import machine, render

LAYOUTS = tuple((segments, indexes) for segments in (1, 2) for indexes in (0, 4, 11))
MAPS_HEAD = ("segments", "payload indexes", "memory maps", "estimated", "open files", "ms to make")
INDEX_HEAD = ("points", "p50 without, ms", "p50 with, ms", "ms to make it later", "memory maps of it")
POINTS, SEARCHES, LOAD_BATCH = (1_000, 10_000, 50_000), 40, 500
MATCHING = 50
"""One of this many points matches the filter."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A server, and the name prefix of the collections that are created on it."""

    http: httpx.Client
    prefix: str

    def process(self) -> Process:
        """Return the server's process metrics.

        Raises:
            SystemExit: If the server does not report them.
        """
        found = parse_process(self.http.get("/metrics").text)
        if found.open_maps is None:
            raise SystemExit("the server does not tell its memory maps: Qdrant does since 1.16, on Linux")
        return found

    @contextlib.contextmanager
    def removing(self, names: list[str]) -> Iterator[None]:
        """Remove the collections at the end of the context."""
        try:
            yield
        finally:
            for name in names:
                self.http.delete(f"/collections/{name}", params={"timeout": 60})

    def create(self, name: str, *, segments: int, indexes: int) -> None:
        """Create an empty collection with the first `indexes` of the product's payload indexes."""
        body = {
            "vectors": {"size": DIMENSIONS, "distance": "Cosine", "on_disk": False},
            "quantization_config": {"scalar": {"type": "int8", "always_ram": True}},
            "optimizers_config": {"default_segment_number": segments},
            "on_disk_payload": True,
        }
        self._put(f"/collections/{name}", body)
        for field, schema in RETRIEVAL_INDEXES[:indexes]:
            self.index(name, field, schema)

    def index(self, name: str, field: str, schema: str) -> None:
        """Create a payload index and wait for it."""
        self._put(f"/collections/{name}/index?wait=true", {"field_name": field, "field_schema": schema})

    def load(self, name: str, points: int) -> None:
        """Write memories of one user; each source occurs in one of `MATCHING` memories."""
        random = np.random.default_rng(7)
        for start in range(0, points, LOAD_BATCH):
            vectors = random.standard_normal((min(LOAD_BATCH, points - start), DIMENSIONS)).tolist()
            body = [
                {
                    "id": start + row,
                    "vector": vector,
                    "payload": {"userId": "u", "source": f"s{(start + row) % MATCHING}"},
                }
                for row, vector in enumerate(vectors)
            ]
            self._put(f"/collections/{name}/points?wait=true", {"points": body})

    def median_ms(self, name: str) -> float:
        """Return the median latency of searches with a keyword filter."""
        random, took = np.random.default_rng(8), []
        for number in range(SEARCHES):
            must = [
                {"key": "userId", "match": {"value": "u"}},
                {"key": "source", "match": {"value": f"s{number % MATCHING}"}},
            ]
            body = {"query": random.standard_normal(DIMENSIONS).tolist(), "filter": {"must": must}, "limit": 10}
            started_s = time.perf_counter()
            self.http.post(f"/collections/{name}/points/query", json=body).raise_for_status()
            took.append((time.perf_counter() - started_s) * 1000)
        return statistics.median(took)

    def _put(self, path: str, body: Any) -> None:
        self.http.put(path, json=body).raise_for_status()


def main() -> None:
    args = parse_args()
    with contextlib.ExitStack() as stack:
        url = args.qdrant
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentmemory-bench-"))
            url = stack.enter_context(running(Path(folder), [], None)).qdrant_url
        http = stack.enter_context(httpx.Client(base_url=url, timeout=120))
        engine = Engine(http, f"bench_maps_{secrets.token_hex(2)}")
        server = http.get("/").json()
        print(f"{machine()}, {server['title'].split()[0]} {server['version']}\n", flush=True)
        if args.indexes:
            print(render(INDEX_HEAD, [later_row(engine, points) for points in POINTS]))
            return
        print(render(MAPS_HEAD, [layout_row(engine, *layout, each=args.collections) for layout in LAYOUTS]))


def layout_row(engine: Engine, segments: int, indexes: int, *, each: int) -> tuple[str, ...]:
    """Return the average resources of one of `each` empty collections with a layout."""
    log_progress(f"{each} collections with {segments} segments and {indexes} indexes")
    names = [f"{engine.prefix}_{segments}_{indexes}_{number}" for number in range(each)]
    with engine.removing(names):
        before, started_s = engine.process(), time.perf_counter()
        for name in names:
            engine.create(name, segments=segments, indexes=indexes)
        took, after = time.perf_counter() - started_s, engine.process()
    shape = Collection(
        size=DIMENSIONS,
        distance="Cosine",
        optimizers=Optimizers(default_segment_number=segments),
        indexes=RETRIEVAL_INDEXES[:indexes],
    )
    maps = ((after.open_maps or 0) - (before.open_maps or 0)) / each
    files = ((after.open_files or 0) - (before.open_files or 0)) / each
    need = need_of(shape).maps
    return str(segments), str(indexes), f"{maps:.0f}", str(need), f"{files:.1f}", f"{took * 1000 / each:.0f}"


def later_row(engine: Engine, points: int) -> tuple[str, ...]:
    """Return the benefit and cost of a payload index in addition to 11 others, with `points` points of one user."""
    log_progress(f"{points:,} points")
    name = f"{engine.prefix}_later"
    with engine.removing([name]):
        engine.create(name, segments=2, indexes=11)
        engine.load(name, points)
        without = engine.median_ms(name)
        before, started_s = engine.process(), time.perf_counter()
        engine.index(name, "source", "keyword")
        took, after = time.perf_counter() - started_s, engine.process()
        maps = (after.open_maps or 0) - (before.open_maps or 0)
        return f"{points:,}", f"{without:.1f}", f"{engine.median_ms(name):.1f}", f"{took * 1000:.0f}", str(maps)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.maps", description=__doc__)
    parser.add_argument("--qdrant", metavar="URL", help="a real server (default: the dev server)")
    parser.add_argument("--collections", type=int, default=10, help="of each layout (default: %(default)s)")
    parser.add_argument("--indexes", action="store_true", help="what an index that is made later is worth")
    return parser.parse_args()


if __name__ == "__main__":
    main()
