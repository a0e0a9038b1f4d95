"""Rendered objects of every documented combination of values: valid for the API server and our programs."""

import os
import pathlib
import subprocess
from typing import Any

import pytest
import typer
import yaml

from agentmemory_operator.connections.rules.host_lists import destinations_of, find_unlisted
from agentmemory_operator.settings import IN_CLUSTER, Settings
from tests.chart.manifests import FILES, manifests
from tests.chart.rendering import (
    CHART,
    COMBINATIONS,
    OF_OTHERS,
    RELEASE,
    containers,
    helm,
    key_of,
    of_kind,
    pods_of,
    render,
)
from tests.controlplane.build import CHARTS, CHARTS_BEFORE
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import MANIFESTS, NAMESPACE, shell
from tests.support.command_line import command_line
from tests.support.pages import read_commands
from tests.support.programs import ROOT
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER

KEYS, OPERATOR_KEYS = "agentmemory-zone-keys", "agentmemory-operator-zone-keys"
DRY_RUN = ("--server-side", "--field-manager=helm", "--force-conflicts", "--dry-run=server", "--validate=strict")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_api_server_accepts_every_object(control_plane: ControlPlane, namespaces: None, name: str) -> None:
    rendered = [found for found in render(COMBINATIONS[name]) if found["kind"] not in OF_OTHERS]

    done = control_plane.kubectl("apply", *DRY_RUN, "-f", "-", stdin=yaml.safe_dump_all(rendered))

    assert done.returncode == 0, done.stderr
    # Pod Security warns of the one pod that does not pass; see below.
    assert ("Warning" in done.stderr) is raises_memory_maps(name)
    assert done.stdout.count("serverside-applied (server dry run)") == len(rendered) > 0


@pytest.mark.parametrize("name", COMBINATIONS)
def test_objects_are_unique_and_in_named_namespaces(name: str) -> None:
    values = COMBINATIONS[name]
    keys = [key_of(found) for found in render(values)]
    named = {"", NAMESPACE, *values.get("namespaces", ()), *values.get("secretNamespaces", ())}
    if zones := values.get("zones"):
        named.add(zones.get("namespace", KEYS))

    assert len(keys) == len(set(keys))
    assert {namespace for _, namespace, _ in keys} <= named


@pytest.mark.parametrize("name", [name for name in COMBINATIONS if "zones" in COMBINATIONS[name]])
def test_programs_use_namespace_writable_by_api(name: str) -> None:
    rendered = render(COMBINATIONS[name])
    (namespace,) = {
        place for (_, place, role) in of_kind(rendered, "Role") if role in ("agentmemory-api-zone-keys", OPERATOR_KEYS)
    }

    for container in containers(rendered).values():
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        assert Settings.from_env(environment).zone_keys_namespace == namespace


def test_key_namespace_is_optional_and_kept() -> None:
    made, elsewhere = (of_kind(render(values), "Namespace") for name, values in COMBINATIONS.items() if "zones" in name)

    assert [found["metadata"]["annotations"] for found in made.values()] == [{"helm.sh/resource-policy": "keep"}]
    assert list(made) == [("Namespace", "", KEYS)]
    assert elsewhere == of_kind(render(), "Namespace") == {}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_pods_pass_restricted_security_standard(control_plane: ControlPlane, namespaces: None, name: str) -> None:
    """Only the pod that raises a sysctl of its node is exempt, because it needs a privileged container."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    refused = []
    for found in pods_of(render(COMBINATIONS[name])):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**found["metadata"], "generateName": "pod-"}}
        answer = control_plane.http.post(path, params={"dryRun": "All"}, json={**pod, "spec": found["spec"]})
        assert answer.status_code in (201, 403), answer.text
        if answer.status_code == 403:
            refused.append((found["metadata"]["labels"]["app.kubernetes.io/component"], answer.text))

    assert [component for component, _ in refused] == (["qdrant"] if raises_memory_maps(name) else []), refused


def raises_memory_maps(name: str) -> bool:
    """Return whether a combination has the privileged container."""
    return bool(COMBINATIONS[name].get("qdrant", {}).get("maxMapCount"))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_programs_accept_their_container_settings(name: str) -> None:
    values = COMBINATIONS[name]
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    found = containers(render(values))

    assert set(found) == {"operator", "api"}
    for component, container in found.items():
        verb, *options = container["args"]
        parsed = commands[verb].make_context(verb, options)
        listens = parsed.params["health_port" if verb == "operator" else "port"]
        environment = {variable["name"]: variable.get("value", "of-a-secret") for variable in container.get("env", ())}
        assert verb == component
        assert list(parsed.params["namespace"] or ()) == values.get("namespaces", [])
        assert [port["containerPort"] for port in container["ports"]] == [listens]
        Settings.from_env({IN_CLUSTER: "10.0.0.1", **environment})


def test_component_settings_override_shared_ones() -> None:
    found = containers(render(COMBINATIONS["settings"]))
    variables = {name: {one["name"]: one["value"] for one in container["env"]} for name, container in found.items()}

    assert variables["operator"]["AGENTMEMORY_LOG_LEVEL"] == "debug"
    assert variables["api"]["AGENTMEMORY_LOG_LEVEL"] == "warning"
    assert variables["api"]["AGENTMEMORY_MAX_REQUESTS"] == "1000000"
    assert variables["api"]["AGENTMEMORY_MAX_CALLER_RATE"] == "0"
    assert "AGENTMEMORY_MAX_REQUESTS" not in variables["operator"]
    assert {one["OTEL_SDK_DISABLED"] for one in variables.values()} == {"true"}


@pytest.mark.parametrize("part", ["mem0", "ui"])
def test_optional_parts_are_served_by_the_api_only(part: str) -> None:
    found = containers(render({"api": {part: {"enabled": True}}}))
    variable = f"AGENTMEMORY_{part.upper()}"
    values = {
        name: [one["value"] for one in container.get("env", ()) if one["name"] == variable]
        for name, container in found.items()
    }

    assert values == {"operator": [], "api": ["true"]}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_selectors_match_one_deployment(name: str) -> None:
    rendered = render(COMBINATIONS[name])
    deployments = of_kind(rendered, "Deployment", "StatefulSet").values()
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in deployments}
    labels |= {one["metadata"]["name"]: one["metadata"]["labels"] for one in of_kind(rendered, "Pod").values()}
    selectors = {key_of(found): selector_of(found) for found in rendered}

    for (kind, _, named), selector in selectors.items():
        if selector:
            assert [one for one in labels if selector.items() <= labels[one].items()] == [named], kind


def selector_of(document: Document) -> Any:
    """Return the labels by which an object selects pods, or nothing."""
    spec = document.get("spec", {})
    if document["kind"] == "Service":
        return spec["selector"]
    return (spec.get("selector") or spec.get("podSelector") or {}).get("matchLabels")


@pytest.mark.parametrize("name", FILES.values())
def test_plain_manifests_match_the_chart(name: str) -> None:
    """The results of tests/operator/test_install.py are therefore valid for the chart too."""
    assert (MANIFESTS / name).read_text() == manifests()[name], "run `make manifests`, and commit what it wrote"


def test_kustomize_base_has_all_manifests(control_plane: ControlPlane, namespaces: None) -> None:
    files = [path for folder in (ROOT / "crds", MANIFESTS) for path in folder.glob("*.yaml")]
    plain = [found for path in files for found in yaml.load_all(path.read_text(), Loader=LOADER)]

    built = control_plane.kubectl("kustomize", str(ROOT))
    (command,) = read_commands("install.md", "Apply with Kustomize")
    output = shell(control_plane, f"{command} --dry-run=server --validate=strict")

    rendered = {key_of(found): found for found in yaml.load_all(built.stdout, Loader=LOADER)}
    assert rendered == {key_of(found): found for found in plain}
    assert output.count("serverside-applied (server dry run)") == len(plain)


def test_overlay_sets_image_and_namespace_once(control_plane: ControlPlane, tmp_path: pathlib.Path) -> None:
    overlay = {
        "resources": [os.path.relpath(ROOT, tmp_path.resolve())],
        "namespace": "elsewhere",
        "images": [{"name": "agentmemory-operator", "newName": "images.example.com/agentmemory", "newTag": "1"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))

    built = control_plane.kubectl("kustomize", str(tmp_path))

    rendered = [*yaml.load_all(built.stdout, Loader=LOADER)]
    accounts = [subject for found in rendered for subject in found.get("subjects", ())]
    assert {one["image"] for one in containers(rendered).values()} == {"images.example.com/agentmemory:1"}
    assert {key_of(found)[1] for found in rendered} == {"", "elsewhere"}
    assert {subject["namespace"] for subject in accounts} == {"elsewhere"}


def test_defaults_have_budgets_and_network_policies() -> None:
    rendered = of_kind(render(), "PodDisruptionBudget", "NetworkPolicy")

    assert {(kind, name) for kind, _, name in rendered} == {
        (kind, f"agentmemory-{component}")
        for kind in ("PodDisruptionBudget", "NetworkPolicy")
        for component in ("operator", "api")
    }


@pytest.mark.parametrize("name", COMBINATIONS)
def test_network_policies_open_declared_ports_only(name: str) -> None:
    rendered = render(COMBINATIONS[name])
    declared = {name: container["ports"][0]["name"] for name, container in containers(rendered).items()}
    declared["qdrant"] = "http"

    for policy in of_kind(rendered, "NetworkPolicy").values():
        (rule,) = policy["spec"]["ingress"]
        component = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert rule["ports"] == [{"port": declared[component], "protocol": "TCP"}]
        assert ("Egress" in policy["spec"]["policyTypes"]) == ("egress" in policy["spec"])


def test_trial_qdrant_key_matches_its_connection() -> None:
    rendered = render(COMBINATIONS["a Qdrant to try it out"])
    (secret,), (connection,), (server,) = (
        of_kind(rendered, kind).values() for kind in ("Secret", "QdrantConnection", "StatefulSet")
    )
    (container,) = server["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable for variable in container["env"]}
    key = connection["spec"]["apiKeySecretRef"]

    assert key == variables["QDRANT__SERVICE__API_KEY"]["valueFrom"]["secretKeyRef"]
    assert (key["name"], [key["key"]]) == (secret["metadata"]["name"], [*secret["data"]])
    assert (
        find_unlisted(
            destinations_of(connection["spec"]["url"]), secret["metadata"]["annotations"]["agentmemory.dev/hosts"]
        )
        == ()
    )


@pytest.mark.parametrize(("had", "has"), [("65530", "1048576"), ("2000000", "2000000")])
def test_map_limit_is_raised_but_never_lowered(tmp_path: pathlib.Path, had: str, has: str) -> None:
    rendered = render(COMBINATIONS["a Qdrant that keeps nothing, with many memory maps and a key of ours"])
    (server,) = of_kind(rendered, "StatefulSet").values()
    (container,) = server["spec"]["template"]["spec"]["initContainers"]
    limit = tmp_path / "max_map_count"
    limit.write_text(had)

    done = subprocess.run([str(limit) if "/proc/" in part else part for part in container["command"]])

    assert (done.returncode, limit.read_text().strip()) == (0, has)


def test_autoscaled_api_sets_no_replicas() -> None:
    rendered = render(COMBINATIONS["autoscaled API behind a load balancer"])
    (api,) = [found for found in of_kind(rendered, "Deployment").values() if "api" in found["metadata"]["name"]]
    (scaler,) = of_kind(rendered, "HorizontalPodAutoscaler").values()

    assert "replicas" not in api["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == api["metadata"]["name"]


def definitions(values: Document) -> dict[str, Document]:
    return {name: found for (_, _, name), found in of_kind(render(values), "CustomResourceDefinition").items()}


def test_definitions_match_the_models() -> None:
    files = [yaml.load(path.read_text(), Loader=LOADER) for path in (ROOT / "crds").glob("*.yaml")]

    assert {name: found["spec"] for name, found in definitions({}).items()} == {
        found["metadata"]["name"]: found["spec"] for found in files
    }


@pytest.mark.parametrize(("keep", "policy"), [(True, "keep"), (False, None)])
def test_definitions_are_kept_by_default(keep: bool, policy: str | None) -> None:
    found = definitions({"crds": {"keep": keep}}).values()

    assert {one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for one in found} == {policy}


def test_definitions_can_be_omitted() -> None:
    assert definitions({"crds": {"enabled": False}}) == {}


def test_chart_has_no_crds_folder() -> None:
    """Helm would never upgrade definitions in it."""
    done = helm("show", "crds", str(CHART))

    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_packaged_chart_renders_the_same(tmp_path: pathlib.Path) -> None:
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    (archive,) = tmp_path.glob("*.tgz")

    done = helm("template", RELEASE, str(archive), "--namespace", NAMESPACE)

    rendered = [found for found in yaml.load_all(done.stdout, Loader=LOADER) if found is not None]
    assert {key_of(found): found for found in rendered} == {key_of(found): found for found in render()}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_previous_helm_renders_the_same(name: str) -> None:
    now, before = (
        {key_of(found): found for found in render(COMBINATIONS[name], version)} for version in (CHARTS, CHARTS_BEFORE)
    )
    for found in (now, before):
        # The key is random at each rendering without a cluster.
        found.get(("Secret", NAMESPACE, "agentmemory-qdrant"), {}).pop("data", None)

    assert before == now


def test_monitors_use_existing_ports() -> None:
    rendered = render(COMBINATIONS["metrics for Prometheus' operator"])
    found = containers(rendered)
    monitors = {name.removeprefix("agentmemory-"): one for (_, _, name), one in of_kind(rendered, "PodMonitor").items()}

    assert set(monitors) == set(found)
    for component, monitor in monitors.items():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        port = found[component]["ports"][0]["name"]
        # Without honorLabels the namespace of an agent's snapshots would be replaced by the operator's.
        assert endpoint == {"port": port, "interval": "15s", "honorLabels": True}
