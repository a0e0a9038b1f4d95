"""Version of a release, which is in several files: print it, or write another one into all of them.

    usage: release/version.py [NEW]

Without NEW it prints the version, and fails if the files differ. After writing, run `make manifests` to render
examples/install again. Standard library only.
"""

import pathlib
import re
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
FORM = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
# The same version in the form of npm and Helm.
SEMVER = re.compile(r"\d+\.\d+\.\d+(?:-(?:a|b|rc)\.\d+)?")


def semver(version: str) -> str:
    """Return a version in the form of npm and Helm: 0.2.0-rc.1 for 0.2.0rc1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


@dataclass(frozen=True, slots=True)
class Place:
    """Version in a file, between the patterns `before` and `behind`. is_semver: True for the form of npm and Helm."""

    file: str
    before: str
    behind: str = ""
    is_semver: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern with the version as its second group."""
        return re.compile(f"(?m)({self.before})({(SEMVER if self.is_semver else FORM).pattern})(?={self.behind})")

    def found(self, root: pathlib.Path) -> list[str]:
        """Return the versions at this place of the file, in the form of Python."""
        return [
            re.sub("-(a|b|rc).", r"\1", match[2]) for match in self.pattern.finditer((root / self.file).read_text())
        ]

    def write(self, root: pathlib.Path, version: str) -> None:
        """Write another version into the file."""
        path = root / self.file
        written = semver(version) if self.is_semver else version
        path.write_text(self.pattern.sub(lambda match: match[1] + written, path.read_text()))


PACKAGE = r'"name": "agentmemory-client",\s+"version": "'
IMAGE = "agentmemory-operator:"
PLACES = (
    Place("operator/agentmemory_operator/__init__.py", '^__version__ = "', '"$'),
    Place("client/agentmemory_client/__init__.py", '^__version__ = "', '"$'),
    Place("devserver/qdrant_devserver/__init__.py", '^__version__ = "', '"$'),
    *(Place(f"client-ts/{name}.json", PACKAGE, '"', is_semver=True) for name in ("package", "package-lock")),
    Place("Dockerfile", 'image.version="', '"'),
    Place("charts/agentmemory-operator/Chart.yaml", "^version: ", "$", is_semver=True),
    Place("charts/agentmemory-operator/Chart.yaml", "^appVersion: ", "$"),
    Place("examples/gitops/pipelines/gitlab-ci.yaml", IMAGE),
    Place("examples/gitops/pipelines/github-actions.yaml", IMAGE),
    Place("docs/install.md", f"{IMAGE}|newTag: "),
    Place("docs/versions.md", r"^\$ version=", "$"),
)


def disagreements(root: pathlib.Path = ROOT) -> tuple[str, list[str]]:
    """Return the version of the first place, and a message for each place with another version or none."""
    (version,) = PLACES[0].found(root)
    wrong = []
    for place in PLACES:
        found = place.found(root)
        wrong += [f"{place.file}: {other}, not {version}" for other in found if other != version]
        wrong += [] if found else [f"{place.file}: no version after {place.before!r}"]
    return version, wrong


def main(arguments: list[str]) -> int:
    """Write the version if one is given; print it, or the places that differ."""
    if arguments:
        [version] = arguments
        if not FORM.fullmatch(version):
            print(f"release/version.py: {version!r} is no version like 0.2.0 or 0.2.0rc1", file=sys.stderr)
            return 2
        for place in PLACES:
            place.write(ROOT, version)
    version, wrong = disagreements()
    print(version if not wrong else "\n".join(wrong), file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
