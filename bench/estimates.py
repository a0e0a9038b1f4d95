"""`status.estimate` against the files of real segments, for each profile.

RAM is held against the files that have to lie in memory for searches not to read the disk: everything but the payload,
the log and, where the profile keeps them cold, the vectors as they came. The process itself is not in it.
"""

import argparse
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentmemory_operator.domain.desired import newest_collection
from agentmemory_operator.domain.estimate import Estimate, Layout, estimate, layout_of
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.profiles import PROFILES
from bench import measures
from bench.datasets import make_dataset
from bench.stacks import agent_manifest, running
from bench.tables import Cells, machine, render

SIZES = (10_000, 100_000)
MIB = 1024**2
HEAD = ("memories", "profile", "RAM, MiB", "estimated", "off", "disk, MiB", "estimated", "off")
BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Files:
    """Bytes on disk of one collection, by what they hold."""

    vectors: int
    payload: int
    log: int
    others: int

    @property
    def disk(self) -> int:
        return self.vectors + self.payload + self.log + self.others

    def ram(self, layout: Layout) -> int:
        return self.others + (0 if layout.is_cold else self.vectors)


def main() -> None:
    """Run the command."""
    args = parse_args()
    print(f"{machine()}, 384 dimensions, contents of about 120 characters", flush=True)
    print(render(HEAD, list(rows_of(args.sizes, args.profiles))))


def rows_of(sizes: list[int], profiles: list[str]) -> Iterator[Cells]:
    """Measure every profile at every size."""
    for size in sizes:
        for profile in profiles:
            files, expected, layout = measure(profile, size)
            ram, disk = files.ram(layout), files.disk
            yield (
                f"{size:,}",
                profile,
                *(f"{ram / MIB:.0f}", f"{expected.ram / MIB:.0f}", f"{expected.ram / ram - 1:+.0%}"),
                *(f"{disk / MIB:.0f}", f"{expected.disk / MIB:.0f}", f"{expected.disk / disk - 1:+.0%}"),
            )


def measure(profile: str, size: int) -> tuple[Files, Estimate, Layout]:
    """Fill a collection of the profile until it is indexed; return its files and what was estimated."""
    data = make_dataset(
        f"bench-{profile.lower()}-{secrets.token_hex(2)}", size=size, users=10, now_ms=time.time_ns() // 10**6
    )
    spec = {"index": {"profile": profile, "expectedMemories": size}}
    layout = layout_of(newest_collection(parse_agent_memory(agent_manifest(data.slug, spec=spec)), cluster_id="bench"))
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-estimates-") as name,
        running(Path(name), [data.slug], None, spec=spec) as stack,
    ):
        stack.wait_ready(data.slug)
        measures.load(stack, data)
        stack.wait_indexed(data.alias)
        return files_in(Path(name) / "qdrant"), estimate(layout, size), layout


def files_in(folder: Path) -> Files:
    """Return what the files below a folder take."""
    sizes = {"vectors": 0, "payload": 0, "log": 0, "others": 0}
    for path in folder.rglob("*"):
        if path.is_file():
            sizes[kind_of(path.relative_to(folder).parts)] += path.stat().st_blocks * BLOCK_BYTES
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
