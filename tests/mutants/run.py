"""Mutation tests on a random sample: change the source in one place at a time and run the nearby tests: `make mutants`.

cosmic-ray finds the places and applies the changes. This script draws the sample, equally many for each area of
`areas.toml`, and copies the tree for each worker: an interrupted run leaves the tree unchanged.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = Path("operator/agentmemory_operator")
LEFT = shutil.ignore_patterns(".*", "__pycache__")
# Tests that take this many times their normal duration count as failed: they wait for something that never happens.
PATIENCE = 4.0


class Area(NamedTuple):
    """Modules to change, and the tests that should fail."""

    name: str
    modules: list[str]
    tests: list[str]

    @property
    def command(self) -> str:
        return f"{sys.executable} -m pytest -q -x -p no:cacheprovider {' '.join(self.tests)}"


def main() -> None:
    """Run a sample, and print the survivors, which are not an error."""
    config = tomllib.loads((HERE / "areas.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--each", type=int, default=15, help="how many changes of each area")
    parser.add_argument("areas", nargs="*", default=[*config["areas"]], help="all, if none is named")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    os.chdir(ROOT)
    areas = [Area(name, **config["areas"][name]) for name in options.areas]
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(os.cpu_count(), initializer=move_to_copy, initargs=[folder]) as pool,
    ):
        for area, limit_s in zip(areas, [*pool.map(limit_of, areas)], strict=True):
            found = places_in(area, config["operators"])
            places = random.Random(f"{options.seed} {area.name}").sample(found, min(options.each, len(found)))
            survived = [*filter(None, pool.map(partial(survives, area=area, limit_s=limit_s), places))]
            print(f"{area.name}: {len(places)} of {len(found)} changes, {len(survived)} survived", flush=True)
            print(*survived, sep="\n", flush=True)


def places_in(area: Area, operators: list[str]) -> list[MutationSpec]:
    """Return every possible change in an area, in a fixed order."""
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init([SOURCE / module for module in area.modules], database, {})
        places = [item.mutations[0] for item in database.work_items]
    named = [place for place in places if re.fullmatch(f"core/({'|'.join(operators)})", place.operator_name)]
    return sorted(named, key=lambda place: (str(place.module_path), place.operator_name, place.occurrence))


def move_to_copy(folder: str) -> None:
    """Change to a copy of the tree for the lifetime of this worker."""
    os.chdir(shutil.copytree(ROOT, Path(folder) / str(os.getpid()), ignore=LEFT))


def limit_of(area: Area) -> float:
    """Return the time limit of an area's tests in seconds; without a change they must pass."""
    began = time.monotonic()
    subprocess.run(area.command.split(), check=True)
    return PATIENCE * (time.monotonic() - began)


def survives(place: MutationSpec, area: Area, limit_s: float) -> str:
    """Apply one change; return it if the area's tests still pass, else ''."""
    result = mutate_and_test([place], area.command, limit_s)
    if result.worker_outcome != WorkerOutcome.NORMAL or result.test_outcome == TestOutcome.INCOMPETENT:
        raise RuntimeError(f"{place}: {result.output}")
    return f"{place.operator_name}: {result.diff}" if result.test_outcome == TestOutcome.SURVIVED else ""


if __name__ == "__main__":
    main()
