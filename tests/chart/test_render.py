"""What the chart renders, with every documented combination of values: good for the API server and for our programs."""

import pathlib
from typing import Any

import pytest
import typer
import yaml

from agentmemory_operator.settings import IN_CLUSTER, Settings
from tests.chart.rendering import (
    CHART,
    COMBINATIONS,
    OF_PROMETHEUS,
    RELEASE,
    containers,
    helm,
    key_of,
    of_kind,
    render,
)
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, documents
from tests.support.command_line import command_line
from tests.support.programs import ROOT
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER

INSTALLED = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment", "Service")
# What every Deployment of the chart has on top of examples/install; the number is Kubernetes' own default.
ADDED = {"topologySpreadConstraints", "terminationGracePeriodSeconds"}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_api_server_accepts_every_object(control_plane: ControlPlane, namespaces: None, name: str) -> None:
    rendered = [found for found in render(COMBINATIONS[name]) if found["kind"] not in OF_PROMETHEUS]
    options = ("--server-side", "--field-manager=helm", "--force-conflicts", "--dry-run=server", "--validate=strict")

    done = control_plane.kubectl("apply", *options, "-f", "-", stdin=yaml.safe_dump_all(rendered))

    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stdout.count("serverside-applied (server dry run)") == len(rendered) > 0


@pytest.mark.parametrize("name", COMBINATIONS)
def test_no_object_is_rendered_twice_or_into_a_namespace_that_is_not_named(name: str) -> None:
    values = COMBINATIONS[name]
    keys = [key_of(found) for found in render(values)]
    named = {"", NAMESPACE, *values.get("namespaces", ()), *values.get("secretNamespaces", ())}

    assert len(keys) == len(set(keys))
    assert {namespace for _, namespace, _ in keys} <= named


@pytest.mark.parametrize("name", COMBINATIONS)
def test_pods_pass_the_restricted_pod_security_standard(
    control_plane: ControlPlane, namespaces: None, name: str
) -> None:
    rendered = render(COMBINATIONS[name])
    templates = [found["spec"]["template"] for found in of_kind(rendered, "Deployment").values()]
    for template in (*templates, *of_kind(rendered, "Pod").values()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "generateName": "pod-"}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"

        answer = control_plane.http.post(path, params={"dryRun": "All"}, json={**pod, "spec": template["spec"]})

        assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("name", COMBINATIONS)
def test_our_programs_take_the_arguments_and_variables_of_their_containers(name: str) -> None:
    values = COMBINATIONS[name]
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    found = containers(render(values))

    assert set(found) == {"operator", "api"}
    for component, container in found.items():
        verb, *options = container["args"]
        parsed = commands[verb].make_context(verb, options)
        listens = parsed.params["health_port" if verb == "operator" else "port"]
        environment = {variable["name"]: variable["value"] for variable in container.get("env", ())}
        assert verb == component
        assert list(parsed.params["namespace"] or ()) == values.get("namespaces", [])
        assert [port["containerPort"] for port in container["ports"]] == [listens]
        Settings.from_env({IN_CLUSTER: "10.0.0.1", **environment})


def test_settings_of_a_component_stand_above_those_of_both() -> None:
    found = containers(render(COMBINATIONS["settings"]))
    variables = {name: {one["name"]: one["value"] for one in container["env"]} for name, container in found.items()}

    assert variables["operator"]["AGENTMEMORY_LOG_LEVEL"] == "debug"
    assert variables["api"]["AGENTMEMORY_LOG_LEVEL"] == "warning"
    assert variables["api"]["AGENTMEMORY_MAX_REQUESTS"] == "1000000"
    assert variables["api"]["AGENTMEMORY_MAX_CALLER_RATE"] == "0"
    assert "AGENTMEMORY_MAX_REQUESTS" not in variables["operator"]
    assert {one["OTEL_SDK_DISABLED"] for one in variables.values()} == {"true"}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_selects_pods_finds_those_of_one_deployment(name: str) -> None:
    rendered = render(COMBINATIONS[name])
    deployments = of_kind(rendered, "Deployment").values()
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


def bare(document: Document) -> Document:
    """Return an object without the labels that every chart adds, and without what this one adds to pods."""
    labels = document["metadata"].get("labels", {}).items()
    kept = {name: value for name, value in labels if name.startswith("rbac.")}
    document = {**document, "metadata": {**document["metadata"], "labels": kept}}
    if document["kind"] != "Deployment":
        return document
    template = document["spec"]["template"]
    pod = {name: value for name, value in template["spec"].items() if name not in ADDED}
    return {**document, "spec": {**document["spec"], "template": {**template, "spec": pod}}}


@pytest.mark.parametrize("kind", INSTALLED)
def test_the_plain_manifests_say_what_the_chart_says(kind: str) -> None:
    """So what tests/operator/test_install.py proves of the manifests is so of the chart."""
    rendered = of_kind(render(), kind)

    assert {key: bare(found) for key, found in rendered.items()} == {
        key_of(found): bare(found) for found in documents(kind)
    }


def test_defaults_hold_budgets_and_network_policies() -> None:
    rendered = of_kind(render(), "PodDisruptionBudget", "NetworkPolicy")

    assert {(kind, name) for kind, _, name in rendered} == {
        (kind, f"agentmemory-{component}")
        for kind in ("PodDisruptionBudget", "NetworkPolicy")
        for component in ("operator", "api")
    }


@pytest.mark.parametrize("name", COMBINATIONS)
def test_network_policies_leave_the_declared_ports_alone_open(name: str) -> None:
    rendered = render(COMBINATIONS[name])
    declared = {name: container["ports"][0]["name"] for name, container in containers(rendered).items()}

    for policy in of_kind(rendered, "NetworkPolicy").values():
        (rule,) = policy["spec"]["ingress"]
        component = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert rule["ports"] == [{"port": declared[component], "protocol": "TCP"}]
        assert ("Egress" in policy["spec"]["policyTypes"]) == ("egress" in policy["spec"])


def test_a_scaled_api_says_no_number_of_replicas_of_its_own() -> None:
    rendered = render(COMBINATIONS["autoscaled API behind a load balancer"])
    (api,) = [found for found in of_kind(rendered, "Deployment").values() if "api" in found["metadata"]["name"]]
    (scaler,) = of_kind(rendered, "HorizontalPodAutoscaler").values()

    assert "replicas" not in api["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == api["metadata"]["name"]


def definitions(values: Document) -> dict[str, Document]:
    return {name: found for (_, _, name), found in of_kind(render(values), "CustomResourceDefinition").items()}


def test_the_definitions_are_those_of_the_models() -> None:
    files = [yaml.load(path.read_text(), Loader=LOADER) for path in (ROOT / "crds").glob("*.yaml")]

    assert {name: found["spec"] for name, found in definitions({}).items()} == {
        found["metadata"]["name"]: found["spec"] for found in files
    }


@pytest.mark.parametrize(("keep", "policy"), [(True, "keep"), (False, None)])
def test_the_definitions_outlive_the_release_unless_asked(keep: bool, policy: str | None) -> None:
    found = definitions({"crds": {"keep": keep}}).values()

    assert {one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for one in found} == {policy}


def test_the_definitions_can_be_left_out() -> None:
    assert definitions({"crds": {"enabled": False}}) == {}


def test_helm_is_given_no_definition_that_it_would_never_upgrade() -> None:
    done = helm("show", "crds", str(CHART))

    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_the_packaged_chart_renders_the_same(tmp_path: pathlib.Path) -> None:
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    (archive,) = tmp_path.glob("*.tgz")

    done = helm("template", RELEASE, str(archive), "--namespace", NAMESPACE)

    rendered = [found for found in yaml.load_all(done.stdout, Loader=LOADER) if found is not None]
    assert {key_of(found): found for found in rendered} == {key_of(found): found for found in render()}


def test_monitors_name_ports_that_the_containers_have() -> None:
    rendered = render(COMBINATIONS["metrics for Prometheus' operator"])
    found = containers(rendered)
    monitors = {name.removeprefix("agentmemory-"): one for (_, _, name), one in of_kind(rendered, "PodMonitor").items()}

    assert set(monitors) == set(found)
    for component, monitor in monitors.items():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        port = found[component]["ports"][0]["name"]
        # Without honorLabels the namespace of an agent's snapshots would be that of the operator.
        assert endpoint == {"port": port, "interval": "15s", "honorLabels": True}
