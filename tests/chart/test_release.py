"""helm installs, upgrades and removes the chart on an API server of its own."""

import pathlib
import shutil
from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.chart.rendering import CHART, RELEASE, helm
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, install
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import find_built
from tests.support.spec.documents import Document

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agentmemories.agentmemory.dev"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/agentmemory-operator"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
QDRANTS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/qdrantconnections"
CONNECTIONS = f"/apis/{API_VERSION}/namespaces/default/qdrantconnections"


@pytest.fixture
def cluster() -> Iterator[ControlPlane]:
    """Control plane without our kinds."""
    with ControlPlane(find_built()) as started:
        yield started


INSTALL, LABEL, UPGRADE, TAKE_OVER = read_commands("install.md", "Install with Helm")
(ROLL_BACK,) = read_commands("versions.md", "Roll back")
UNINSTALL = f"helm uninstall {RELEASE} --namespace {NAMESPACE}"


def run(cluster: ControlPlane, command: str, *, chart: pathlib.Path = CHART) -> str:
    """Run a command of docs/install.md as the admin; return its output."""
    program, *arguments = [str(chart) if part == "charts/agentmemory-operator" else part for part in command.split()]
    done = cluster.kubectl(*arguments) if program == "kubectl" else helm(*arguments, kubeconfig=cluster.kubeconfig)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_served(cluster: ControlPlane) -> httpx.Response:
    """Wait until the definitions are served, and return the one of AgentMemory."""
    wait_until(lambda: cluster.http.get(CONNECTIONS).status_code == 200, seconds=20, what="the kinds")
    return cluster.http.get(CRD)


def copy_newer_chart(folder: pathlib.Path) -> pathlib.Path:
    """Return a copy of the chart whose definition of AgentMemory has an additional short name."""
    copy = folder / "newer"
    shutil.copytree(CHART, copy)
    (path,) = copy.glob("files/crds/*_agentmemories.yaml")
    text = path.read_text()
    assert text.count("    - amem\n") == 1
    path.write_text(text.replace("    - amem\n", "    - amem\n    - newer\n"))
    return copy


def short_names(definition: Document) -> set[str]:
    return set(definition["spec"]["names"]["shortNames"])


def test_crds_survive_upgrade_rollback_and_reinstall(cluster: ControlPlane, tmp_path: pathlib.Path) -> None:
    def objects() -> list[str]:
        return [found["metadata"]["name"] for found in cluster.http.get(CONNECTIONS).json()["items"]]

    notes = run(cluster, INSTALL)
    assert f"kubectl -n {NAMESPACE} rollout status deployment/agentmemory-operator deployment/agentmemory-api" in notes
    run(cluster, LABEL)
    first = wait_served(cluster).json()
    connection = {"apiVersion": API_VERSION, "kind": "QdrantConnection", "metadata": {"name": "main"}}
    created = cluster.http.post(CONNECTIONS, json={**connection, "spec": {"url": "http://qdrant:6333"}})
    assert created.status_code == 201, created.text

    run(cluster, UPGRADE, chart=copy_newer_chart(tmp_path))
    second = cluster.http.get(CRD).json()
    run(cluster, ROLL_BACK.removesuffix(" --wait"))  # pods do not become ready on this control plane
    third = cluster.http.get(CRD).json()

    assert short_names(second) - short_names(first) == {"newer"}
    assert short_names(third) == short_names(first)
    assert objects() == ["main"]

    run(cluster, UNINSTALL)
    remaining = cluster.http.get(CRD).json()
    assert cluster.http.get(DEPLOYMENT).status_code == 404
    assert objects() == ["main"]
    run(cluster, INSTALL)

    assert {one["metadata"]["uid"] for one in (first, second, third, remaining, cluster.http.get(CRD).json())} == {
        first["metadata"]["uid"]
    }
    assert cluster.http.get(DEPLOYMENT).status_code == 200
    assert objects() == ["main"]


def state_of_qdrant(cluster: ControlPlane) -> tuple[str, str, Document]:
    """Return the key of the trial Qdrant, the uid of its connection, and the annotations of the connection."""
    secret, connection = (cluster.http.get(f"{path}/agentmemory-qdrant").json() for path in (SECRETS, QDRANTS))
    return secret["data"]["api-key"], connection["metadata"]["uid"], connection["metadata"].get("annotations", {})


def test_trial_qdrant_keeps_key_and_connection(cluster: ControlPlane) -> None:
    """The kind is part of the same release: a hook creates the connection, the upgrade adopts it."""
    install_it, _ = read_commands("install.md", "A Qdrant to try it out")
    run(cluster, install_it.removesuffix(" --wait"))  # pods do not become ready on this control plane
    *first, annotations = state_of_qdrant(cluster)
    run(cluster, UPGRADE)
    *second, adopted = state_of_qdrant(cluster)
    run(cluster, UPGRADE)
    *third, _ = state_of_qdrant(cluster)
    run(cluster, f"{ROLL_BACK.removesuffix(' --wait')} 1")
    *fourth, _ = state_of_qdrant(cluster)
    run(cluster, UNINSTALL)

    assert first == second == third == fourth
    assert ("helm.sh/hook" in annotations, "helm.sh/hook" in adopted) == (True, False)
    assert [found["metadata"]["uid"] for found in cluster.http.get(QDRANTS).json()["items"]] == first[1:]
    assert cluster.http.get(f"{SECRETS}/agentmemory-qdrant").status_code == 404


def test_upgrade_creates_a_missing_connection(cluster: ControlPlane) -> None:
    """The installation runs no hooks, as if the API server had not served the kind then."""
    install_it, _ = read_commands("install.md", "A Qdrant to try it out")
    run(cluster, install_it.replace("--wait", "--no-hooks"))
    wait_served(cluster)
    assert cluster.http.get(QDRANTS).json()["items"] == []

    run(cluster, UPGRADE)

    assert [found["metadata"]["name"] for found in cluster.http.get(QDRANTS).json()["items"]] == ["agentmemory-qdrant"]


def test_plain_installation_migrates_to_chart(cluster: ControlPlane) -> None:
    install(cluster)
    uids = {path: cluster.http.get(path).json()["metadata"]["uid"] for path in (CRD, DEPLOYMENT)}

    run(cluster, TAKE_OVER)

    found = {path: cluster.http.get(path).json()["metadata"] for path in uids}
    assert {path: one["uid"] for path, one in found.items()} == uids
    assert {one["labels"]["app.kubernetes.io/managed-by"] for one in found.values()} == {"Helm"}
    run(cluster, UPGRADE)
