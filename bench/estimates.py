"""`python -m bench.estimates`: compare the sizes that `plan` estimates with real segments, for each profile.

It measures disk files and the engine's memory. Both are differences to a collection of 1,000 memories, to exclude the
fixed part of a server and a collection. RAM is measured on a server that was restarted on the filled collection and
searched: its anonymous memory, and its resident mapped files except payload and log. Vectors count completely, or not
at all if the profile keeps them cold.
"""

import argparse
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentmemory_operator.collections.rules.desired import newest_collection
from agentmemory_operator.collections.rules.estimate import Estimate, estimate, layout_of
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets.profiles import PROFILES
from bench import measures
from bench.clients import Client
from bench.datasets import Dataset, make_dataset
from bench.stacks import KillableQdrant, agent_manifest, running
from bench.tables import Cells, machine, render

SIZES = (10_000, 100_000)
MIB = 1024**2
HEAD = ("memories", "profile", "RAM, MiB", "estimated", "off", "disk, MiB", "estimated", "off")
BLOCK_BYTES = 512
KINDS = ("vectors", "payload", "log", "others")
# The engine flushes to its files every five seconds.
FLUSHED_S = 6
SEARCHES = 500
FIRST = 1_000


@dataclass(frozen=True, slots=True)
class Files:
    """Bytes of one collection's files, by content."""

    vectors: int
    payload: int
    log: int
    others: int

    @property
    def total(self) -> int:
        return self.vectors + self.payload + self.log + self.others


def main() -> None:
    args = parse_args()
    print(f"{machine()}, 384 dimensions, contents of about 120 characters", flush=True)
    print(render(HEAD, list(rows_of(args.sizes, args.profiles))))


def rows_of(sizes: list[int], profiles: list[str]) -> Iterator[Cells]:
    """Measure every profile at every size."""
    for size in sizes:
        for profile in profiles:
            first, (observed, expected) = measure(profile, FIRST), measure(profile, size)
            yield (
                f"{size:,}",
                profile,
                *(
                    cell
                    for actual, estimated in (
                        (observed.ram - first[0].ram, expected.ram - first[1].ram),
                        (observed.disk - first[0].disk, expected.disk - first[1].disk),
                    )
                    for cell in (f"{actual / MIB:.0f}", f"{estimated / MIB:.0f}", f"{estimated / actual - 1:+.0%}")
                ),
            )


def measure(profile: str, size: int) -> tuple[Estimate, Estimate]:
    """Fill a collection of the profile until it is indexed. Return its actual and its estimated sizes."""
    data = make_dataset(
        f"bench-{profile.lower()}-{secrets.token_hex(2)}", size=size, users=10, now_ms=time.time_ns() // 10**6
    )
    spec = {"index": {"profile": profile, "expectedMemories": size}}
    layout = layout_of(newest_collection(parse_agent_memory(agent_manifest(data.slug, spec=spec)), cluster_id="bench"))
    with tempfile.TemporaryDirectory(prefix="agentmemory-estimates-") as name:
        folder = Path(name)
        with running(folder, [data.slug], None, spec=spec) as stack:
            stack.wait_ready(data.slug)
            measures.load(stack, data)
            stack.wait_indexed(data.alias)
            time.sleep(FLUSHED_S)
        files = files_in(folder / "qdrant")
        with KillableQdrant(folder) as server:
            search(server.url, data)
            ram = own_bytes(server.pid) + mapped_files(server.pid, folder).others
    return Estimate(ram + (0 if layout.is_cold else files.vectors), files.total), estimate(layout, size)


def search(url: str, data: Dataset) -> None:
    """Search the memories of each user, to load all that searches need."""
    with Client(url) as qdrant:
        for row in range(SEARCHES):
            user = {"key": "userId", "match": {"value": data.user_name(row % data.users)}}
            body = {"query": data.vectors[row], "limit": 10, "filter": {"must": [user]}, "with_payload": True}
            qdrant.call("POST", f"/collections/{data.alias}/points/query", body)


def files_in(folder: Path) -> Files:
    """Return the disk usage of the files below a folder."""
    sizes = dict.fromkeys(KINDS, 0)
    for path in folder.rglob("*"):
        if path.is_file():
            sizes[kind_of(path.relative_to(folder).parts)] += path.stat().st_blocks * BLOCK_BYTES
    return Files(**sizes)


def own_bytes(pid: int) -> int:
    """Return the anonymous resident bytes of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def mapped_files(pid: int, folder: Path) -> Files:
    """Return the resident bytes of the mapped files below a folder."""
    sizes, kind = dict.fromkeys(KINDS, 0), None
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            path = Path(words[5]) if len(words) > 5 else Path()
            kind = kind_of(path.relative_to(folder).parts) if path.is_relative_to(folder) else None
        elif kind and words[0] == "Rss:":
            sizes[kind] += int(words[1]) * 1024
    return Files(**sizes)


def kind_of(parts: tuple[str, ...]) -> str:
    """Return the content of a file, by its path in the engine's folders."""
    if "wal" in parts:
        return "log"
    if "payload_storage" in parts:
        return "payload"
    is_original = any(part.startswith("vector_storage") for part in parts) and not parts[-1].startswith("quantized")
    return "vectors" if is_original else "others"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.estimates", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="memories (default: %(default)s)")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES))
    return parser.parse_args()


if __name__ == "__main__":
    main()
