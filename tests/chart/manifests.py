"""examples/install, rendered from the chart: `python -m tests.chart.manifests` writes it."""

import pathlib
import re

from tests.chart.rendering import rendered_text
from tests.support.cluster.installation import MANIFESTS

# File of each template that renders something by default; the definitions have a folder of their own, crds/.
FILES = {
    "rbac": "10-rbac.yaml",
    "operator": "20-operator.yaml",
    "api": "30-api.yaml",
    "tenants": "40-tenants.yaml",
    "networkpolicy": "50-networkpolicy.yaml",
}
OMITTED = {"crds", "tests/reachable"}
HEADER = (
    "# Rendered from charts/agentmemory-operator with its default values: change that, then run `make manifests`.\n"
)
# Labels of Helm, which plain manifests have no use for.
OF_HELM = re.compile(r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.M)


def manifests() -> dict[str, str]:
    """Return the text of every rendered file by name."""
    objects: dict[str, list[str]] = {}
    for source, text in re.findall(
        r"^# Source: [^/]+/templates/(\S+)\.yaml\n(.*?)(?=^---$|\Z)", rendered_text(), re.M | re.S
    ):
        objects.setdefault(source, []).append(OF_HELM.sub("", text).strip() + "\n")
    assert set(objects) == set(FILES) | OMITTED, "name a file for each template that renders something by default"
    return {name: HEADER + "---\n".join(objects[source]) for source, name in FILES.items()}


def write(folder: pathlib.Path) -> None:
    """Write every file."""
    for name, text in manifests().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write(MANIFESTS)
