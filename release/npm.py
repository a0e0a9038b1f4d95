"""Published form of the TypeScript client, which `make client-ts` must have built."""

import json
import pathlib
import shutil
import tempfile

from release.commands import ROOT, Release, expect, run
from release.links import absolute

SOURCES = ROOT / "client-ts"


def is_built() -> bool:
    """Return whether the client is built."""
    return (SOURCES / "dist" / "index.js").is_file()


def pack(target: pathlib.Path, release: Release, *, has_sbom: bool = False) -> None:
    """Pack the client into a folder, with its SBOM if `has_sbom`.

    Raises:
        CheckFailed: If the client is not built, or has another version.
    """
    expect(is_built(), "client-ts/dist is missing: `make client-ts` builds it")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "agentmemory-client"  # the SBOM names it
        shutil.copytree(SOURCES / "dist", folder / "dist")
        for file in (SOURCES / "package-lock.json", ROOT / "LICENSE"):
            shutil.copy(file, folder)
        (folder / "README.md").write_text(absolute((SOURCES / "README.md").read_text(), release, SOURCES.name))
        # npm accepts a provenance only if this is the repository of the workflow's identity.
        manifest = json.loads((SOURCES / "package.json").read_text())
        repository = {"type": "git", "url": f"git+{release.homepage}.git", "directory": "client-ts"}
        manifest |= {"homepage": release.homepage, "repository": repository}
        (folder / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
        run("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", target, folder=folder)
        if has_sbom:
            listed = ("--sbom-format", "cyclonedx", "--omit", "dev", "--package-lock-only")
            (target / "agentmemory-client-npm.cdx.json").write_text(run("npm", "sbom", *listed, folder=folder))
    expect((target / f"agentmemory-client-{release.semver}.tgz").is_file(), "client-ts has another version")
