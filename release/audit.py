"""Hold the locked packages against known vulnerabilities, offline: `make audit`.

    usage: release/audit.py [--refresh DATABASE]

advisories.json has what the Python Packaging Advisory Database knew of the locked packages on a day: ids and ranges of
versions, no texts (https://github.com/pypa/advisory-database, CC BY 4.0). Of what became known later the audit says
nothing. DATABASE is a clone, from which `--refresh` writes the file again. A package that the file was not made for
fails the audit. What does not concern us stands in accepted.json, with the reason.
"""

import datetime
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parents[1]
ADVISORIES, ACCEPTED = ROOT / "release" / "advisories.json", ROOT / "release" / "accepted.json"
LOCKED = re.compile(r"(?m)^([A-Za-z0-9_.-]+)==([^\s;\\]+)")
Advisory = Mapping[str, Any]
STALE_DAYS = 30


def locked() -> set[tuple[str, str]]:
    """Every package of every lock, with its version."""
    texts = (path.read_text() for path in sorted((ROOT / "requirements").glob("*.txt")))
    return {(canonicalize_name(name), version) for text in texts for name, version in LOCKED.findall(text)}


def is_affected(version: str, advisory: Advisory) -> bool:
    """Whether a version is in one of the ranges of an advisory: from the first version in, up to the second, not in."""
    this = Version(version)
    for introduced, fixed in advisory["ranges"]:
        if (introduced == "0" or Version(introduced) <= this) and (fixed is None or this < Version(fixed)):
            return True
    return version in advisory.get("versions", ())


def ranges_of(affected: Advisory) -> Iterator[list[str | None]]:
    """The ranges of an OSV entry; one that has no end is open."""
    for spans in affected.get("ranges", ()):
        if spans["type"] != "ECOSYSTEM":
            continue
        introduced: str | None = None
        for event in spans["events"]:
            if "introduced" in event:
                introduced = str(event["introduced"])
            elif introduced is not None and "fixed" in event:
                yield [introduced, str(event["fixed"])]
                introduced = None
            elif "last_affected" in event:
                introduced = None  # the list of versions says it
        if introduced is not None:
            yield [introduced, None]


def read_advisory(path: pathlib.Path, name: str) -> Advisory | None:
    """What an entry says of a package; None where it was withdrawn, or is another package's."""
    entry = yaml.safe_load(path.read_text())
    parts = [part for part in entry["affected"] if canonicalize_name(part["package"]["name"]) == name]
    if entry.get("withdrawn") or not parts:
        return None
    ranges = [span for part in parts for span in ranges_of(part)]
    # The list of versions says what a range without a fixed version leaves open.
    versions = sorted({str(one) for part in parts for one in part.get("versions", ())})
    return {"id": entry["id"], "aliases": sorted(entry.get("aliases", ())), "ranges": ranges, "versions": versions}


def refresh(database: pathlib.Path) -> None:
    """Write what a clone knows of the locked packages."""
    log = ["git", "-C", str(database), "log", "-1", "--format=%H %cs"]
    commit, day = subprocess.run(log, capture_output=True, text=True, check=True).stdout.split()
    known: dict[str, list[Advisory]] = {}
    for name in sorted({name for name, _ in locked()}):
        entries = (read_advisory(path, name) for path in sorted((database / "vulns" / name).glob("*.yaml")))
        known[name] = [entry for entry in entries if entry]
    written = {"database": "https://github.com/pypa/advisory-database", "commit": commit, "day": day, "packages": known}
    ADVISORIES.write_text(json.dumps(written, indent=1) + "\n")


def accepted() -> set[tuple[str, str]]:
    """Package and id of what does not concern us."""
    return {(one["package"], one["id"]) for one in json.loads(ACCEPTED.read_text())}


def problems() -> Iterator[str]:
    """Each locked version that is affected and not accepted, and each package that nothing is known of."""
    known = json.loads(ADVISORIES.read_text())["packages"]
    left = accepted()
    met = set()
    for name, version in sorted(locked()):
        if name not in known:
            yield f"{name} {version}: advisories.json was made without it: `release/audit.py --refresh DATABASE`"
        for advisory in known.get(name, ()):
            if is_affected(version, advisory):
                met.add(key := (name, advisory["id"]))
                if key not in left:
                    yield f"{name} {version}: {advisory['id']} ({', '.join(advisory['aliases'])})"
    for name, one in sorted(left - met):
        yield f"accepted.json: {name} {one} affects no locked version any more: remove it"


def main(arguments: list[str]) -> int:
    """Print what is wrong."""
    if arguments:
        [_, database] = arguments
        refresh(pathlib.Path(database))
    found, data = list(problems()), json.loads(ADVISORIES.read_text())
    for problem in found:
        print(problem, file=sys.stderr)
    advisories = sum(map(len, data["packages"].values()))
    print(f"{len(locked())} locked versions, {advisories} advisories as of {data['day']}: {len(found)} to look at")
    age = (datetime.date.today() - datetime.date.fromisoformat(data["day"])).days
    if age > STALE_DAYS:
        print(f"what was found since is not known here ({age} days): refresh before a release", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
