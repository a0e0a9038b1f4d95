"""Run helm on the chart: rendered objects, or error messages."""

import functools
import json
import os
import pathlib
import subprocess
from typing import Any

import yaml

from tests.controlplane.build import CHARTS, CONTROL_PLANE, Toolset
from tests.support.cluster.installation import NAMESPACE
from tests.support.programs import ROOT, clean_environment, find_built
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER

CHART = ROOT / "charts" / "agentmemory-operator"
RELEASE = "agentmemory"
SCHEMA: Document = json.loads((CHART / "values.schema.json").read_text())
VALUES: Document = yaml.load((CHART / "values.yaml").read_text(), Loader=LOADER)
DASHBOARD: Document = json.loads((CHART / "files" / "dashboard.json").read_text())
# Variable of Grafana; Prometheus reads no variables.
RATE_INTERVAL = "$__rate_interval"
PRODUCTION = ROOT / "examples" / "production"
# Supported combinations of values, by purpose.
COMBINATIONS: dict[str, Document] = {
    **yaml.load((pathlib.Path(__file__).parent / "combinations.yaml").read_text(), Loader=LOADER),
    "examples/production": yaml.load((PRODUCTION / "values.yaml").read_text(), Loader=LOADER),
}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
# Their definitions belong to the Prometheus operator, cert-manager and the Gateway API, and are not built here.
OF_OTHERS = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "Certificate", "HTTPRoute"}


def helm(
    *arguments: str, kubeconfig: pathlib.Path | None = None, stdin: str = "", version: Toolset = CHARTS
) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller checks `returncode`, `stdout` and `stderr`. Without a kubeconfig it reaches no cluster."""
    environment = clean_environment() | {"KUBECONFIG": str(kubeconfig or os.devnull)}
    command = [str(find_built(version) / "helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, input=stdin, timeout=120)


def template(values: Document, *, version: Toolset = CHARTS) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with values on top of the chart's."""
    # A helm built from its module assumes an old cluster.
    options = ("--namespace", NAMESPACE, "--values", "-", "--kube-version", CONTROL_PLANE.version)
    return helm("template", RELEASE, str(CHART), *options, stdin=json.dumps(values), version=version)


@functools.cache
def _rendered(values: str, version: Toolset) -> str:
    done = template(json.loads(values), version=version)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered_text(values: Document | None = None, version: Toolset = CHARTS) -> str:
    """Return the output of `helm template`."""
    return _rendered(json.dumps(values or {}), version)


def render(values: Document | None = None, version: Toolset = CHARTS) -> list[Document]:
    """Return every object that the chart renders."""
    text = rendered_text(values, version)
    return [found for found in yaml.load_all(text, Loader=LOADER) if found is not None]


def of_kind(rendered: list[Document], *kinds: str) -> dict[tuple[str, str, str], Document]:
    """Return the objects of some kinds by kind, namespace and name."""
    return {key_of(found): found for found in rendered if found["kind"] in kinds}


def key_of(document: Document) -> tuple[str, str, str]:
    """Return kind, namespace (empty for cluster-scoped objects) and name."""
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def containers(rendered: list[Document]) -> dict[str, Any]:
    """Return the only container of each Deployment, by component."""
    deployments = of_kind(rendered, "Deployment").values()
    found = [container for one in deployments for container in one["spec"]["template"]["spec"]["containers"]]
    return {container["name"]: container for container in found}


def pods_of(rendered: list[Document]) -> list[Document]:
    """Return every pod, as its controller would create it."""
    found = [one["spec"] for one in of_kind(rendered, "Deployment", "StatefulSet").values()]
    for spec in found:
        claimed = [
            {"name": claim["metadata"]["name"], "emptyDir": {}} for claim in spec.get("volumeClaimTemplates", ())
        ]
        pod = spec["template"]["spec"]
        pod["volumes"] = [*pod.get("volumes", ()), *claimed]
    return [*(spec["template"] for spec in found), *of_kind(rendered, "Pod").values()]
