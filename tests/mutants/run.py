"""Change the source in one place at a time, chosen at random, and see whether the tests near it fail: `make mutants`.

cosmic-ray finds the places and makes the changes. Here is the sample, as many of each area of `areas.toml`, and a copy
of the tree for each worker: an interrupted run changes nothing in it.
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
# Tests that take as many times what they take without any change have noticed it: they wait for what never comes.
PATIENCE = 4.0


class Area(NamedTuple):
    """Modules that are changed, and the tests that have to notice."""

    name: str
    modules: list[str]
    tests: list[str]

    @property
    def command(self) -> str:
        return f"{sys.executable} -m pytest -q -x -p no:cacheprovider {' '.join(self.tests)}"


def main() -> None:
    """Try a sample, and print what nobody noticed: survivors are no error."""
    told = tomllib.loads((HERE / "areas.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--each", type=int, default=15, help="how many changes of each area")
    parser.add_argument("areas", nargs="*", default=[*told["areas"]], help="all, if none is named")
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    os.chdir(ROOT)
    areas = [Area(name, **told["areas"][name]) for name in wanted.areas]
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(os.cpu_count(), initializer=move_to_copy, initargs=[folder]) as pool,
    ):
        for area, limit_s in zip(areas, [*pool.map(limit_of, areas)], strict=True):
            found = places_in(area, told["operators"])
            places = random.Random(f"{wanted.seed} {area.name}").sample(found, min(wanted.each, len(found)))
            survived = [*filter(None, pool.map(partial(survives, area=area, limit_s=limit_s), places))]
            print(f"{area.name}: {len(places)} of {len(found)} changes, {len(survived)} survived", flush=True)
            print(*survived, sep="\n", flush=True)


def places_in(area: Area, operators: list[str]) -> list[MutationSpec]:
    """Return every change that could be made in an area, in the same order each time."""
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init([SOURCE / module for module in area.modules], database, {})
        places = [item.mutations[0] for item in database.work_items]
    named = [place for place in places if re.fullmatch(f"core/({'|'.join(operators)})", place.operator_name)]
    return sorted(named, key=lambda place: (str(place.module_path), place.operator_name, place.occurrence))


def move_to_copy(folder: str) -> None:
    """Go to a copy of the tree, for as long as this worker lives."""
    os.chdir(shutil.copytree(ROOT, Path(folder) / str(os.getpid()), ignore=LEFT))


def limit_of(area: Area) -> float:
    """Return for how many seconds an area's tests may run; without any change they have to pass."""
    began = time.monotonic()
    subprocess.run(area.command.split(), check=True)
    return PATIENCE * (time.monotonic() - began)


def survives(place: MutationSpec, area: Area, limit_s: float) -> str:
    """Make one change; return it where the area's tests passed all the same."""
    result = mutate_and_test([place], area.command, limit_s)
    if result.worker_outcome != WorkerOutcome.NORMAL or result.test_outcome == TestOutcome.INCOMPETENT:
        raise RuntimeError(f"{place}: {result.output}")
    return f"{place.operator_name}: {result.diff}" if result.test_outcome == TestOutcome.SURVIVED else ""


if __name__ == "__main__":
    main()
