"""Shared parts of a release: the sources, the published addresses, and commands that fail with their output.

Standard library only: release/wheels.py runs before any package is installed.
"""

import os
import pathlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from release.version import semver

ROOT = pathlib.Path(__file__).resolve().parents[1]
# In Chart.yaml, until a release fills in the repository.
PLACEHOLDER = "https://example.invalid/agentmemory"


class CheckFailed(Exception):
    """Raised if a step of a release fails; the message may have several lines."""


@dataclass(frozen=True, slots=True)
class Release:
    """Version of a release, and the addresses under which it is published.

    Attributes:
        version: Version in the form of the sources.
        homepage: URL of the repository. The files belong to its release v*.
        image: Registry and name of the image, without a tag.
    """

    version: str
    homepage: str = PLACEHOLDER
    image: str = "agentmemory-operator"

    @property
    def is_prerelease(self) -> bool:
        """True for a version such as 0.2.0rc1."""
        return not self.version.replace(".", "").isdigit()

    @property
    def semver(self) -> str:
        """The version in the form of npm and Helm."""
        return semver(self.version)

    @property
    def chart(self) -> str:
        """Address of the chart, in the same path of the registry as the image."""
        return f"oci://{self.image.rpartition('/')[0] or 'example.invalid'}/charts/agentmemory-operator"

    @property
    def files(self) -> str:
        """Address of the folder with the published files."""
        return f"{self.homepage}/releases/download/v{self.version}"

    def url(self, path: str, view: str = "blob") -> str:
        """Return the address of a source file of this version: as a page (`blob`), or `raw`."""
        return f"{self.homepage}/{view}/v{self.version}/{path}"


def run(
    *command: str | os.PathLike[str], env: Mapping[str, str] | None = None, folder: pathlib.Path | None = None
) -> str:
    """Run a command, in the sources by default; return its output.

    Raises:
        CheckFailed: If it fails.
    """
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=folder or ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        output = (done.stdout + done.stderr)[-3000:]
        raise CheckFailed(f"{' '.join(map(str, command))}: exit {done.returncode}\n{output}")
    return done.stdout


def expect(holds: object, fault: str) -> None:
    """Raise CheckFailed with a sentence if a condition is false."""
    if not holds:
        raise CheckFailed(fault)
