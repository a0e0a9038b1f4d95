"""Sizes that `plan` shows, against real segments, for each profile: their files, and what the engine holds in memory.

Both for the memories beyond the first 1,000, so that what a server and a collection take by themselves is left out.
RAM is what a server has resident that was started again on the filled collection and asked: its own memory, and what
it mapped of its files but for payload and log; vectors count whole, or not at all where the profile keeps them cold.
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
# The engine writes what it holds to its files every five seconds.
FLUSHED_S = 6
SEARCHES = 500
FIRST = 1_000


@dataclass(frozen=True, slots=True)
class Files:
    """Bytes of the files of one collection, by what they hold."""

    vectors: int
    payload: int
    log: int
    others: int

    @property
    def total(self) -> int:
        return self.vectors + self.payload + self.log + self.others


def main() -> None:
    """Run the command."""
    args = parse_args()
    print(f"{machine()}, 384 dimensions, contents of about 120 characters", flush=True)
    print(render(HEAD, list(rows_of(args.sizes, args.profiles))))


def rows_of(sizes: list[int], profiles: list[str]) -> Iterator[Cells]:
    """Measure every profile at every size."""
    for size in sizes:
        for profile in profiles:
            first, (seen, expected) = measure(profile, FIRST), measure(profile, size)
            yield (
                f"{size:,}",
                profile,
                *(
                    cell
                    for here, there in (
                        (seen.ram - first[0].ram, expected.ram - first[1].ram),
                        (seen.disk - first[0].disk, expected.disk - first[1].disk),
                    )
                    for cell in (f"{here / MIB:.0f}", f"{there / MIB:.0f}", f"{there / here - 1:+.0%}")
                ),
            )


def measure(profile: str, size: int) -> tuple[Estimate, Estimate]:
    """Fill a collection of the profile until it is indexed; return what it takes, and what was estimated."""
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
    """Ask what loads all that searches use: the memories of each user."""
    with Client(url) as qdrant:
        for row in range(SEARCHES):
            user = {"key": "userId", "match": {"value": data.user_name(row % data.users)}}
            body = {"query": data.vectors[row], "limit": 10, "filter": {"must": [user]}, "with_payload": True}
            qdrant.call("POST", f"/collections/{data.alias}/points/query", body)


def files_in(folder: Path) -> Files:
    """Return what the files below a folder take."""
    sizes = dict.fromkeys(KINDS, 0)
    for path in folder.rglob("*"):
        if path.is_file():
            sizes[kind_of(path.relative_to(folder).parts)] += path.stat().st_blocks * BLOCK_BYTES
    return Files(**sizes)


def own_bytes(pid: int) -> int:
    """Return the resident bytes of a process that are no file's."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def mapped_files(pid: int, folder: Path) -> Files:
    """Return what of the files below a folder a process has mapped and resident."""
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
    """Return what a file holds, by its place in the engine's folders."""
    if "wal" in parts:
        return "log"
    if "payload_storage" in parts:
        return "payload"
    is_original = any(part.startswith("vector_storage") for part in parts) and not parts[-1].startswith("quantized")
    return "vectors" if is_original else "others"


def parse_args() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m bench.estimates", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="memories (default: %(default)s)")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES))
    return parser.parse_args()


if __name__ == "__main__":
    main()
