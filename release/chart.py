"""Published form of the Helm chart, with the addresses, images and changes of the release.

The sources contain no registry and no repository; the packed copy does. Thus a fork releases under its own name.
"""

import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import yaml

from release.changelog import changes, read_section
from release.commands import PLACEHOLDER, ROOT, Release, expect, run
from release.links import absolute

CHART = ROOT / "charts" / "agentmemory-operator"
EXAMPLES = ROOT / "examples" / "quickstart"
REPOSITORY = "  repository: agentmemory-operator\n"
INSTALL = "helm install agentmemory charts/agentmemory-operator"


def pack(target: pathlib.Path, release: Release, helm: pathlib.Path) -> None:
    """Lint the chart of the release and pack it into a folder.

    Raises:
        CheckFailed: If helm reports a fault, or the chart has another version.
    """
    with tempfile.TemporaryDirectory() as home:
        chart = pathlib.Path(home) / CHART.name
        shutil.copytree(CHART, chart)
        fill_in(chart, release)
        alone = {"HOME": home, "KUBECONFIG": os.devnull}
        run(helm, "lint", "--strict", chart, env=alone)
        run(helm, "package", chart, "--destination", target, env=alone)
    expect((target / f"{CHART.name}-{release.semver}.tgz").is_file(), "the chart has another version")


def fill_in(chart: pathlib.Path, release: Release) -> None:
    """Write the release's addresses, images and changes into a copy of the chart."""
    shutil.copy(ROOT / "LICENSE", chart)
    values = (chart / "values.yaml").read_text()
    expect(values.count(REPOSITORY) == 1, "values.yaml has another image.repository: see release/chart.py")
    (chart / "values.yaml").write_text(values.replace(REPOSITORY, f"  repository: {release.image}\n"))
    page = (chart / "README.md").read_text()
    expect(INSTALL in page, f"the chart's README does not say `{INSTALL}`")
    page = page.replace(INSTALL, f"helm install agentmemory {release.chart} --version {release.semver}")
    (chart / "README.md").write_text(absolute(page, release, CHART.relative_to(ROOT).as_posix()))
    text = (chart / "Chart.yaml").read_text().replace(PLACEHOLDER, release.homepage)
    metadata = yaml.safe_load(text.replace("/HEAD/", f"/v{release.version}/"))
    metadata["annotations"] |= annotations(release, yaml.safe_load(values))
    (chart / "Chart.yaml").write_text(dump(metadata))


def annotations(release: Release, values: dict[str, Any]) -> dict[str, str]:
    """Return the annotations for Artifact Hub that are not in Chart.yaml.

    There is no `signKey`, which is for a PGP key: the chart is signed in the registry, with cosign.
    """
    qdrant = values["qdrant"]["image"]
    images = [
        {"name": "agentmemory-operator", "image": f"{release.image}:{release.version}"},
        {"name": "qdrant", "image": f"{qdrant['repository']}:{qdrant['tag']}"},
    ]
    section = read_section(release.version, (ROOT / "CHANGELOG.md").read_text())
    documents = (yaml.safe_load_all(path.read_text()) for path in sorted(EXAMPLES.glob("*.yaml")))
    examples = [document for each in documents for document in each if document["apiVersion"].startswith("agentmemory")]
    return {
        "artifacthub.io/prerelease": str(release.is_prerelease).lower(),
        "artifacthub.io/images": dump(images),
        "artifacthub.io/changes": dump(changes(section)),
        "artifacthub.io/crds": dump([kind(path) for path in sorted((ROOT / "crds").glob("*.yaml"))]),
        "artifacthub.io/crdsExamples": dump(examples),
    }


def kind(path: pathlib.Path) -> dict[str, str]:
    """Return the entry of a CRD for Artifact Hub."""
    definition = yaml.safe_load(path.read_text())
    name, (version, *_) = definition["spec"]["names"]["kind"], definition["spec"]["versions"]
    return {
        "kind": name,
        "version": version["name"],
        "name": definition["metadata"]["name"],
        "displayName": re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name),
        "description": version["schema"]["openAPIV3Schema"]["description"],
    }


def dump(value: object) -> str:
    """Return a value as YAML with keys in their order and long lines unfolded."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
