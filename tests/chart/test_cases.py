"""Rendering of each value of the chart (cases.yaml), and the pods that OpenShift admits."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, COMBINATIONS, RELEASE, VALUES, helm, key_of, pods_of, render
from tests.controlplane.build import CHARTS, CHARTS_BEFORE, Toolset
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER

CASES: list[Document] = yaml.load((pathlib.Path(__file__).parent / "cases.yaml").read_text(), Loader=LOADER)
# Values whose fields the user may choose freely.
FREE = {"podSecurityContext", "securityContext", "labels", "requests", "limits"}


def merged(given: Any, values: Any) -> Any:
    """Return values on top of others, as helm does with two files."""
    if not (isinstance(given, dict) and isinstance(values, dict)):
        return values
    return given | {name: merged(given.get(name), value) for name, value in values.items()}


def find_difference(found: Any, part: Any, path: str = "") -> str | None:
    """Return the path of the first element of `part` that `found` lacks, or None.

    For a list, each element must match some element of the found list, in any order. None matches a missing field.
    """
    if isinstance(part, dict) and isinstance(found, dict):
        parts = (find_difference(found.get(name), inner, f"{path}/{name}") for name, inner in part.items())
        return next(filter(None, parts), None)
    if isinstance(part, list) and isinstance(found, list):
        for inner in part:
            lacks = [find_difference(one, inner, f"{path}/-") for one in found] or [f"{path}/-"]
            if None not in lacks:
                return f"{max(filter(None, lacks), key=len)} of {inner!r}"
        return None
    return None if found == part else f"{path}: {found!r} is not {part!r}"


def find_differences(case: Document, rendered: list[Document]) -> list[str]:
    """Return the parts of a case that rendered objects lack, and the rendered objects that the case excludes."""
    objects = {}
    for document in rendered:
        kind, namespace, name = key_of(document)
        objects |= {f"{kind}/{name}": document, f"{kind}/{namespace}/{name}": document}
    lacks = {key: find_difference(objects.get(key), part) for key, part in case["has"].items()}
    found = [f"{key} {difference}" for key, difference in lacks.items() if difference]
    return [*found, *(f"{key} is rendered" for key in case.get("lacks", ()) if key in objects)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case["values"])[:80])
def test_value_renders_what_the_case_says(case: Document) -> None:
    given = case.get("given", {})

    assert find_differences(case, render(merged(given, case["values"]))) == []
    assert find_differences(case, render(given)), "the case holds without its values too"


def leaves(values: Document, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in FREE:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def has_path(values: Any, path: tuple[str, ...]) -> bool:
    return not path or (isinstance(values, dict) and path[0] in values and has_path(values[path[0]], path[1:]))


def test_every_value_has_a_case() -> None:
    bare = [path for path in leaves(VALUES) if not any(has_path(case["values"], path) for case in CASES)]

    assert bare == []


@pytest.mark.parametrize(
    ("values", "says", "omits"),
    [
        (
            {},
            ["http://agentmemory-api.agentmemory-system/v1/agents/NAME", "0.1.0 names no registry"],
            ["https", "outside"],
        ),
        ({"image": {"repository": "example.com/memory"}}, [], ["registry", "imagePullSecrets"]),
        ({"api": {"service": {"port": 8080}}}, ["http://agentmemory-api.agentmemory-system:8080/v1"], []),
        (
            {"api": {"tls": {"enabled": True, "secretName": "ours"}}},
            ["https://agentmemory-api.agentmemory-system/v1", "that of the Secret\n   ours;"],
            [],
        ),
        (
            {"api": {"ingress": {"enabled": True, "hosts": ["a.b"]}}},
            ["http://a.b/v1", "set api.ingress.tlsSecretName"],
            [],
        ),
        (
            {"api": {"ingress": {"enabled": True, "hosts": ["a.b"], "tlsSecretName": "c"}}},
            ["https://a.b/v1"],
            ["set api.ingress"],
        ),
        ({"api": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}}}, ["all their host names"], []),
    ],
    ids=str,
)
def test_notes_name_the_next_step(
    control_plane: ControlPlane, values: Document, says: list[str], omits: list[str]
) -> None:
    command = ("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=client", "--values", "-")
    done = helm(*command, stdin=json.dumps(values), kubeconfig=control_plane.kubeconfig)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]

    assert [word for word in says if word not in notes] == []
    assert [word for word in omits if word in notes] == []


# Volumes and fields by which OpenShift's SecurityContextConstraints restricted-v2 decide. Each namespace has a range of
# users, of groups for volumes and of SELinux levels: a pod with another one is refused, a pod without gets one.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
OF_A_RANGE = ("runAsUser", "fsGroup", "seLinuxOptions")


def find_scc_violations(pod: Document) -> set[str]:
    """Return the fields for which restricted-v2 refuses a pod."""
    spec = pod["spec"]
    found = {field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)}
    found |= {
        f"volumes.{name}" for volume in spec.get("volumes", ()) for name in volume if name not in {"name", *VOLUMES}
    }
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    for context in (spec.get("securityContext", {}), *(one.get("securityContext", {}) for one in containers)):
        found |= {field for field in OF_A_RANGE if field in context}
        profile = context.get("seccompProfile", {"type": "RuntimeDefault"})["type"]
        found |= {"seccompProfile"} if profile != "RuntimeDefault" else set()
        found |= {field for field in ("privileged", "allowPrivilegeEscalation") if context.get(field)}
        added = set(context.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}
        found |= {"capabilities"} if added else set()
    for one in containers:
        found |= {"hostPort"} if any(port.get("hostPort") for port in one.get("ports", ())) else set()
    return found


@pytest.mark.parametrize("version", [CHARTS, CHARTS_BEFORE], ids=lambda version: version.prefix)
def test_openshift_admits_every_pod_without_fixed_users(version: Toolset) -> None:
    values = COMBINATIONS["OpenShift, whose restricted-v2 gives each namespace its users"]
    pods = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in pods_of(render(values, version))}

    assert set(pods) == {"operator", "api", "qdrant", "test"}
    assert [(name, fields) for name, pod in pods.items() if (fields := find_scc_violations(pod))] == []


def test_openshift_refuses_fixed_users() -> None:
    """Proves that the test above would fail for the default values."""
    found = [find_scc_violations(pod) for pod in pods_of(render({"qdrant": {"enabled": True}}))]

    assert sorted(map(sorted, found)) == [["fsGroup", "runAsUser"], *[["runAsUser"]] * 3]
