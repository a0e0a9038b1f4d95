"""Earlier versions of the product: taken out of the repository's history, and run beside the present one."""

import os
import pathlib
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO

import pytest

from tests.support.programs import ROOT

COMMITS = ("a9184fb",)
"""Versions that are upgraded under load: the one before this."""


@dataclass(frozen=True, slots=True)
class ProductVersion:
    """Sources of the product.

    Attributes:
        name: the commit; empty is the present.
        sources: a checkout.
    """

    name: str
    sources: pathlib.Path

    @property
    def crds(self) -> pathlib.Path:
        """Its definitions."""
        return self.sources / "crds"

    @property
    def environment(self) -> dict[str, str]:
        """What has `python -m agentmemory_operator` run it, with the packages of the present."""
        if not self.name:
            return {}
        folders = (self.sources / part for part in ("operator", "client", "devserver"))
        return {"PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder.is_dir())}


PRESENT = ProductVersion("", ROOT)


def earlier(commit: str, folder: pathlib.Path) -> ProductVersion:
    """Unpack a commit into a new folder; skips where the history is not there (an archive, a shallow clone)."""
    command = ["git", "archive", "--format=tar", commit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.skip(f"the history has no {commit} here: `git fetch --unshallow` brings it")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return ProductVersion(commit, folder)
