"""examples/production on a real API server: its commands, objects and chart values agree with each other."""

import pathlib
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from agentmemory_operator.connections.rules.egress_policy import parse_allowed
from agentmemory_operator.connections.rules.host_lists import destinations_of, find_unlisted
from agentmemory_operator.entrypoints.cli.look.validate import check_manifests
from tests.chart.rendering import COMBINATIONS, PRODUCTION, of_kind, render
from tests.support.cluster.controlplane import ControlPlane
from tests.support.pages import read_commands
from tests.support.programs import ROOT, clean_environment
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER

MANIFESTS = PRODUCTION / "manifests"
OBJECTS: list[Document] = [
    document for path in sorted(MANIFESTS.glob("*.yaml")) for document in yaml.load_all(path.read_text(), Loader=LOADER)
]
COMMANDS = read_commands("../examples/production/README.md")
VALUES = COMBINATIONS["examples/production"]


def spec_of(kind: str) -> Document:
    (found,) = [document["spec"] for document in OBJECTS if document["kind"] == kind]
    return dict(found)


def destinations() -> dict[str, str]:
    """Return the URL that the value of each Secret is sent to."""
    connection, agent = spec_of("QdrantConnection"), spec_of("AgentMemory")
    embedding, bucket = agent["embedding"], agent["snapshots"]["storage"]["s3"]
    return {
        connection["apiKeySecretRef"]["name"]: connection["url"],
        embedding["secretRef"]["name"]: embedding["baseURL"],
        bucket["secretRef"]["name"]: bucket["endpoint"],
    }


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Cluster with Qdrant's namespace; the other two are made by the commands, and stay for other tests."""
    control_plane.kubectl("create", "namespace", "qdrant")
    yield control_plane
    for path in set(MANIFESTS.glob("*.yaml")) - {MANIFESTS / "00-namespace.yaml"}:
        control_plane.kubectl("delete", "-f", str(path), "--ignore-not-found", "--wait=false")


def run(cluster: ControlPlane, command: str, folder: pathlib.Path) -> None:
    """Run a command of the README as the admin; a namespace may exist from another test."""
    environment = clean_environment() | {"KUBECONFIG": str(cluster.kubeconfig), "PATH": str(cluster.assets)}
    line = ["/bin/sh", "-c", command]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or "create namespace" in command, f"{command}: {done.stderr}"


def test_commands_and_objects_are_accepted(cluster: ControlPlane, tmp_path: pathlib.Path) -> None:
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    made_here = [command for command in COMMANDS if command.startswith("kubectl") and " wait " not in command]
    for command in made_here:
        run(cluster, command, tmp_path)

    found = cluster.http.get("/api/v1/namespaces/agents/secrets").json()["items"]
    hosts = {one["metadata"]["name"]: one["metadata"].get("annotations", {}) for one in found}
    unlisted = {
        name: find_unlisted(destinations_of(url), hosts[name].get("agentmemory.dev/hosts"))
        for name, url in destinations().items()
    }
    assert unlisted == dict.fromkeys(unlisted, ())
    assert {"qdrant-ca", *unlisted} <= set(hosts)
    for document in OBJECTS:
        metadata = document["metadata"]
        place = ("-n", metadata.get("namespace", "agents"))
        assert cluster.kubectl("get", *place, document["kind"], metadata["name"]).returncode == 0, metadata


def test_objects_are_valid() -> None:
    report = check_manifests([MANIFESTS], is_recursive=False)

    assert report.findings == []


def test_each_host_is_allowed() -> None:
    allowed = parse_allowed(VALUES["settings"]["AGENTMEMORY_ALLOWED_HOSTS"])
    assert allowed is not None
    named = [place for url in destinations().values() for place in destinations_of(url).host_ports]
    ports = {port["port"] for rule in VALUES["networkPolicy"]["egress"] for port in rule["ports"]}

    assert [str(place) for place in named if not allowed.lists_name(place.host, place.port)] == []
    assert {place.port for place in named} | {53, 6443, 4318} == ports


def test_callers_are_let_through_by_account_and_network() -> None:
    accounts = {found["metadata"]["name"] for found in OBJECTS if found["kind"] == "ServiceAccount"}
    subjects = spec_of("AgentMemory")["access"]["subjects"]
    policies = {name: one["spec"] for (_, _, name), one in of_kind(render(VALUES), "NetworkPolicy").items()}
    (rule,) = policies["agentmemory-api"]["ingress"]
    (qdrant, _) = spec_of("NetworkPolicy")["ingress"]
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(render(VALUES), "Deployment").values()]

    assert {subject["name"] for subject in subjects} == accounts
    assert any("delegate" in subject["verbs"] for subject in subjects)
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agents"}}} in rule["from"]
    assert all(qdrant["from"][0]["podSelector"]["matchLabels"].items() <= labels.items() for labels in pods)


def test_every_file_is_listed() -> None:
    page = (PRODUCTION / "README.md").read_text()

    assert [path.name for path in PRODUCTION.rglob("*.yaml") if f"[{path.name}]" not in page] == []
