"""Start the product, measure it against the bare engine, and print the tables."""

import argparse
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import measures, rivals
from bench.datasets import Dataset, make_dataset
from bench.progress import log_progress
from bench.stacks import Stack, remove_collections, running, standard_manifest
from bench.tables import GOAL_HEAD, SEARCH_HEAD, SearchRow, goals, machine, render

SIZES, USERS = (20_000, 100_000), (1, 100)
STORED, STORED_USERS = 20_000, 10
SEARCHES, QUESTIONS, CHANGES = 1_000, 200, 20
RIVALS_SIZE, RIVALS_USERS, SAMPLES = 20_000, 20, 10_000


def main() -> None:
    args = parse_args()
    # On SIGTERM, raise SystemExit, so the contexts stop the servers and remove the folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if args.rivals:
        run_rivals(args)
        return
    sizes = [args.size] if args.size else list(SIZES[:1] if args.quick else SIZES)
    stored, *sets = make_datasets(sizes, suffix=secrets.token_hex(2))
    slugs = [data.slug for data in (stored, *sets)]
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as folder,
        running(Path(folder), slugs, args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}", flush=True)
        try:
            run(stack, stored, sets, searches=args.searches)
        finally:
            if args.qdrant:
                remove_collections(args.qdrant, [data.alias for data in (stored, *sets)])


def make_datasets(sizes: list[int], *, suffix: str) -> list[Dataset]:
    """Return the dataset that is stored through the API, then those that are searched."""
    now_ms = time.time_ns() // 1_000_000
    shapes = [("store", min(STORED, sizes[0]), STORED_USERS), *((str(size), size, 1) for size in sizes)]
    return [
        make_dataset(f"bench-{name}-{suffix}", size=size, users=users, now_ms=now_ms) for name, size, users in shapes
    ]


def run(stack: Stack, stored: Dataset, sets: list[Dataset], *, searches: int) -> None:
    """Measure everything and print the tables."""
    for data in (stored, *sets):
        stack.wait_ready(data.slug)
    log_progress(f"storing {len(stored):,} memories through the API")
    per_second = measures.store_per_second(stack, stored)
    for data in sets:
        log_progress(f"loading {len(data):,} memories")
        measures.load(stack, data)
    for data in (stored, *sets):
        log_progress(f"indexed {stack.wait_indexed(data.alias):,} of {len(data):,} memories")
    rows = [row for data in sets for row in search_rows(stack, data, searches)]
    log_progress(f"changing weights {CHANGES} times")
    effect = measures.weights_to_effect(stack, sets[0].distributed_to(USERS[-1]), CHANGES)
    log_progress(f"done\n\n{searches:,} searches a row, one at a time, API and engine in turn; milliseconds.\n")
    print(render(SEARCH_HEAD, [row.cells for row in rows]))
    print("\n" + render(GOAL_HEAD, goals(rows, per_second, effect)))


def run_rivals(args: argparse.Namespace) -> None:
    """Start the product with one agent of each of two presets. Compare both with hand-written queries."""
    suffix, now_ms = secrets.token_hex(2), time.time_ns() // 1_000_000
    size = args.size or RIVALS_SIZE
    names = (f"bench-{preset}-{suffix}" for preset in (rivals.CORTEX, rivals.STANDARD))
    cortex, standard = (make_dataset(name, size=size, users=args.users, now_ms=now_ms).all_visible() for name in names)
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as folder,
        running(Path(folder), [cortex.slug], args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}, {size:,} memories of {args.users} users", flush=True)
        try:
            stack.apply(standard_manifest(standard.slug))
            rivals.fill(stack, cortex, standard)
            rivals.measure(stack, cortex, standard, searches=args.searches, samples=args.samples)
        finally:
            if args.qdrant:
                remove_collections(args.qdrant, [cortex.alias, standard.alias])


def search_rows(stack: Stack, data: Dataset, searches: int) -> Iterator[SearchRow]:
    """Measure the searches of one collection.

    First all memories belong to one user. Then they are distributed over many.
    """
    for users in USERS:
        owned = data.distributed_to(users)
        if users != data.users:
            measures.assign_users(stack, owned)
            stack.wait_indexed(data.alias)
        log_progress(f"searching {len(data):,} memories of {users} users")
        share = measures.measure_recall(stack, owned, min(QUESTIONS, searches))
        yield SearchRow(owned, measures.compare_searches(stack, owned, searches), share)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only 20,000 memories")
    parser.add_argument("--size", type=int, help="this many memories in the place of 20,000 and 100,000")
    parser.add_argument("--searches", type=int, default=SEARCHES, help="a row (default: %(default)s)")
    parser.add_argument("--rivals", action="store_true", help="beside what is written by hand, and with writes between")
    parser.add_argument("--users", type=int, default=RIVALS_USERS, help="with --rivals (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="with --rivals (default: %(default)s)")
    parser.add_argument("--qdrant", metavar="URL", help="a real server (default: the dev server)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
