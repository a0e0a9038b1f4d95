"""Rights of the accounts in each mode of the chart, as reviewed by the API server."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from agentmemory_operator.adapters.kubernetes.signing_key import KEY_SECRET
from tests.chart.rendering import COMBINATIONS, VALUES, key_of, of_kind, render
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, Right, documents, rights
from tests.support.cluster.installation import RBAC as RBAC_PATH
from tests.support.cluster.workspace import MERGE, PLURALS
from tests.support.patience import wait_until
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success

RBAC = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
TENANTS = {"view", "edit", "connections"}
GROUPS = {"events": "", "namespaces": "", "secrets": "", "configmaps": "", "leases": "coordination.k8s.io"}
# Rules that are limited to some names.
NAMED = {"leases": "agentmemory-operator", "configmaps": "agentmemory-claims-0"}
LISTED, OTHER = "agents", "infra"
TOKENS = "tokenreviews"


def rules_of(rendered: list[Document], kind: str) -> dict[tuple[str, str], list[Document]]:
    return {(namespace, name): found["rules"] for (_, namespace, name), found in of_kind(rendered, kind).items()}


def test_namespaced_roles_equal_cluster_roles() -> None:
    whole, listed = rules_of(render(), "ClusterRole"), rules_of(render({"namespaces": ["a", "b"]}), "Role")
    api = [rule for rule in whole["", "agentmemory-api"] if rule["resources"] != [TOKENS]]

    for namespace in ("a", "b"):
        assert listed[namespace, "agentmemory-operator"] == whole["", "agentmemory-operator"]
        assert listed[namespace, "agentmemory-secrets"] == whole["", "agentmemory-secrets"]
        assert listed[namespace, "agentmemory-api"] == api
    assert len(api) == len(whole["", "agentmemory-api"]) - 1


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ["api-cluster", "operator-cluster", "tokens"]),
        ({"settings": {"AGENTMEMORY_CLUSTER_ID": "x"}}, ["tokens"]),
        ({"settings": {"AGENTMEMORY_CLUSTER_ID": "x"}, "rbac": {"clusterScoped": False}}, []),
    ],
    ids=str,
)
def test_cluster_roles_are_minimal_with_namespaces(values: Document, names: list[str]) -> None:
    rendered = render({**values, "namespaces": ["a"]})
    named = {f"agentmemory-{name}" for name in names}

    assert {name for _, name in rules_of(rendered, "ClusterRole")} == named | {f"agentmemory-{one}" for one in TENANTS}
    assert {name for _, _, name in of_kind(rendered, "ClusterRoleBinding")} == named


def test_rbac_can_be_disabled_except_for_tenants() -> None:
    rendered = of_kind(render(COMBINATIONS["rights given by somebody else"]), *RBAC)

    assert {kind for kind, _, _ in rendered} == {"ClusterRole", "ServiceAccount"}
    assert VALUES["rbac"]["create"] is True


@dataclass(frozen=True, slots=True)
class Mode:
    """Installation mode with names of its own, with its rights applied.

    Attributes:
        rendered: Its roles, bindings and accounts.
        everywhere: Returns whether a cluster-wide right of the manifests holds in a namespace.
        secrets: The same for the operator's right to read Secrets.
        tokens: True if the API may review tokens.
        cluster: True if both accounts may read the cluster's id.
    """

    control_plane: ControlPlane
    prefix: str
    rendered: list[Document]
    everywhere: Callable[[str], bool]
    secrets: Callable[[str], bool]
    tokens: bool
    cluster: bool

    def may(self, right: Right, namespace: str, name: str = "") -> bool:
        """Return whether an account has a right; without a name, for any object."""
        resource, _, part = right.resource.partition("/")
        group = GROUPS.get(resource, "authentication.k8s.io" if resource == TOKENS else "agentmemory.dev")
        attributes = {
            "verb": right.verb,
            "group": group,
            "resource": resource,
            "subresource": part,
            "namespace": namespace,
        }
        if right.verb in ("get", "update") and resource in NAMED:
            attributes["name"] = NAMED[resource]
        if name:
            attributes["name"] = name
        account = right.account.replace("agentmemory", self.prefix)
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        body = {"spec": {"user": user, "resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.control_plane.http.post(path, json=body).json()["status"]["allowed"])

    def should(self, right: Right, namespace: str) -> bool:
        """Return whether an account should have a right: as in the manifests, and in no namespace outside the mode."""
        if right.role not in CLUSTER_ROLES:
            return namespace == NAMESPACE
        if right.resource == TOKENS:
            return self.tokens and namespace == ""
        return self.secrets(namespace) if right.resource == "secrets" else self.everywhere(namespace)


CLUSTER_ROLES = {found["metadata"]["name"] for found in documents("ClusterRole")}
NAMED_CLUSTER = {"settings": {"AGENTMEMORY_CLUSTER_ID": "x"}}
MODES: dict[str, Document] = {
    "whole": {},
    "some-secrets": {"secretNamespaces": [LISTED]},
    "listed": {"namespaces": [LISTED]},
    "listed-and-release": {"namespaces": [LISTED, NAMESPACE]},
    "listed-named": {"namespaces": [LISTED], **NAMED_CLUSTER},
    "nothing-cluster-wide": {"namespaces": [LISTED], "rbac": {"clusterScoped": False}, **NAMED_CLUSTER},
}


@pytest.fixture(scope="module", params=MODES)
def mode(control_plane: ControlPlane, namespaces: None, request: pytest.FixtureRequest) -> Iterator[Mode]:
    values, prefix = MODES[request.param], f"mode-{request.param}"
    rendered = [*of_kind(render({**values, "fullnameOverride": prefix}), *RBAC).values()]
    assert control_plane.apply(*rendered).returncode == 0
    watched = values.get("namespaces", ())
    secrets = values.get("secretNamespaces", watched)
    yield Mode(
        control_plane,
        prefix,
        rendered,
        everywhere=lambda namespace: not watched or namespace in watched,
        secrets=lambda namespace: not secrets or namespace in (*secrets, NAMESPACE),
        tokens="rbac" not in values,
        cluster="settings" not in values,
    )
    for kind in RBAC:
        control_plane.kubectl("delete", kind, "-A", "-l", f"app.kubernetes.io/name={prefix}")


def test_accounts_have_exactly_the_modes_rights(mode: Mode) -> None:
    pairs = [
        (right, namespace)
        for right in rights()
        for namespace in (("",) if right.resource == TOKENS else (LISTED, OTHER, NAMESPACE))
    ]
    expected = {one: mode.should(*one) for one in pairs}
    assert {right for right, _ in pairs} == set(rights())

    wait_until(lambda: all(mode.may(*one) for one in pairs if expected[one]), seconds=20, what="every right")
    assert [one for one in pairs if not expected[one] and mode.may(*one)] == []


@pytest.mark.parametrize("account", ["agentmemory-operator", "agentmemory-api"])
def test_accounts_read_cluster_id_unless_configured(mode: Mode, account: str) -> None:
    reads = Right(account, "get", "namespaces", "")

    # The API server reviews a Namespace like an object in it.
    wait_until(lambda: mode.may(reads, LISTED, LISTED), seconds=20, what="the rights")
    wait_until(lambda: mode.may(reads, "kube-system", "kube-system") is mode.cluster, seconds=20, what="the right")
    assert mode.may(reads, OTHER, OTHER) is mode.everywhere(OTHER)


def test_api_cannot_write_custom_resources(mode: Mode) -> None:
    checked = [
        Right("agentmemory-api", verb, f"{plural}{part}", "")
        for verb in ("create", "update", "patch", "delete", "deletecollection")
        for plural in PLURALS.values()
        for part in ("", "/status")
    ]
    reads = Right("agentmemory-api", "list", "agentmemories", "")
    wait_until(lambda: mode.may(reads, LISTED), seconds=20, what="the rights")

    assert [(one, where) for one in checked for where in (LISTED, OTHER, NAMESPACE, "") if mode.may(one, where)] == []


def test_api_reads_token_key_but_writes_no_secret(mode: Mode) -> None:
    reads = Right("agentmemory-api", "get", "secrets", "")
    wait_until(lambda: mode.may(reads, NAMESPACE, KEY_SECRET), seconds=20, what="the right")
    makes = Right("agentmemory-operator", "create", "secrets", "")
    wait_until(lambda: mode.may(makes, NAMESPACE), seconds=20, what="the right")

    checked = [
        Right("agentmemory-api", verb, "secrets", "") for verb in ("create", "update", "patch", "delete", "list")
    ]
    assert [one for one in checked if mode.may(one, NAMESPACE) or mode.may(one, NAMESPACE, KEY_SECRET)] == []


@dataclass(frozen=True, slots=True)
class GrantedRight:
    """One verb on one resource, granted to an account by a role of the mode."""

    role: Document
    right: Right
    names: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and, if the rule is limited to names, object for which the right holds."""
        name = self.names[0] if self.names else ""
        if self.right.resource == "namespaces" and name:
            return name, name
        anywhere = "" if self.right.resource == TOKENS else OTHER
        return self.role["metadata"].get("namespace", anywhere), name

    def write(self, control_plane: ControlPlane, rules: list[Document]) -> None:
        """Replace the role's rules."""
        plural, metadata = self.role["kind"].lower() + "s", self.role["metadata"]
        inside = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
        path = f"{RBAC_PATH}/{inside}{plural}/{metadata['name']}"
        check_success(control_plane.http.patch(path, json={"rules": rules}, headers=MERGE))

    def others(self) -> list[Document]:
        """Return the role's rules without this right."""
        return [
            {**rule, "verbs": [verb], "resources": [resource]}
            for rule in self.role["rules"]
            for verb in rule["verbs"]
            for resource in rule["resources"]
            if (verb, resource) != (self.right.verb, self.right.resource)
        ]


def granted(mode: Mode) -> Iterator[GrantedRight]:
    """Yield every right that the mode's roles grant."""
    roles = {key_of(found): found for found in mode.rendered}
    for (_, namespace, _), binding in of_kind(mode.rendered, "RoleBinding", "ClusterRoleBinding").items():
        (subject,) = binding["subjects"]
        account, reference = subject["name"].replace(mode.prefix, "agentmemory"), binding["roleRef"]
        role = roles[reference["kind"], namespace, reference["name"]]
        for rule in role["rules"]:
            for verb, resource in itertools.product(rule["verbs"], rule["resources"]):
                right = Right(account, verb, resource, role["metadata"]["name"])
                yield GrantedRight(role, right, tuple(rule.get("resourceNames", ())))


def test_each_rule_is_needed_and_granted_once(mode: Mode) -> None:
    """The table of tests/operator/test_install.py lists every right of the manifests, and the effect of its absence."""
    given = [*granted(mode)]
    needed = {str(right) for right in rights()}
    assert [str(one.right) for one in given if str(one.right) not in needed] == []

    for one in given:
        asks = functools.partial(mode.may, one.right, *one.place)
        wait_until(asks, seconds=20, what=str(one.right))
        one.write(mode.control_plane, one.others())
        wait_until(lambda asks=asks: not asks(), seconds=20, what=f"the end of {one.right}: is it given twice?")
        one.write(mode.control_plane, one.role["rules"])
