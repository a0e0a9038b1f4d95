"""The shipped roles for tenants: the API server reviews each verb on each resource."""

from collections.abc import Iterator, Mapping

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, RBAC, documents, shell
from tests.support.cluster.tenants import KEY_REF, Platform, Tenant, bind
from tests.support.cluster.workspace import AGENT, CONNECTION, PLURALS, Workspace
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.spec.documents import Document

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
READS = ("get", "list", "watch")
RESOURCES = tuple(plural + part for plural in PLURALS.values() for part in ("", "/status"))
TEAMS = ("agentmemories", "memorysnapshots", "memoryrestores")
# Granted verbs by role and resource; anything else is refused.
GIVEN = {
    "agentmemory-view": dict.fromkeys(TEAMS, READS),
    "agentmemory-edit": dict.fromkeys(TEAMS, VERBS),
    "agentmemory-connections": {"qdrantconnections": VERBS},
}
# Resources by API group that no role grants.
FOREIGN = {
    "": ("secrets", "configmaps", "events", "serviceaccounts", "serviceaccounts/token"),
    "coordination.k8s.io": ("leases",),
    "rbac.authorization.k8s.io": ("roles", "rolebindings"),
}
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


@pytest.fixture(scope="module")
def members(platform: Platform) -> Iterator[dict[str, Tenant]]:
    """For each role a tenant without other rights."""
    made = {role: Tenant.create(platform, "member", None) for role in GIVEN}
    for role, tenant in made.items():
        bind(tenant.account, role)
        (resource, *_) = GIVEN[role]
        wait_until(lambda: tenant.may("get", resource), seconds=5, what=role)  # noqa: B023
    yield made
    for tenant in made.values():
        tenant.close()


@pytest.mark.parametrize("role", GIVEN)
def test_each_verb_is_granted_as_listed(members: dict[str, Tenant], role: str) -> None:
    reviewed = {(resource, verb): members[role].may(verb, resource) for resource in RESOURCES for verb in VERBS}

    assert {key for key, is_given in reviewed.items() if is_given} == {
        (resource, verb) for resource, verbs in GIVEN[role].items() for verb in verbs
    }


@pytest.mark.parametrize("role", GIVEN)
def test_role_is_limited_to_its_namespace(members: dict[str, Tenant], role: str) -> None:
    others = [tenant.namespace for name, tenant in members.items() if name != role] + [NAMESPACE, ""]

    assert not [
        (namespace, resource, verb)
        for namespace in others
        for resource in RESOURCES
        for verb in VERBS
        if members[role].may(verb, resource, namespace=namespace)
    ]


@pytest.mark.parametrize("role", GIVEN)
def test_role_grants_no_other_api_group(members: dict[str, Tenant], role: str) -> None:
    """This includes Secrets, both of the tenant's namespace and those that operator and API share."""
    member = members[role]

    assert not [
        (namespace, group, resource, verb)
        for namespace in (member.namespace, NAMESPACE)
        for group, resources in FOREIGN.items()
        for resource in resources
        for verb in VERBS
        if member.may(verb, resource, group=group, namespace=namespace)
    ]


def test_requests_are_refused_as_reviewed(infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
    """Sends one real request for each kind of refusal in the table."""
    alpha.claim(infra, slug)

    assert "403" in alpha.try_patch_status("AgentMemory", AGENT, {"observedGeneration": 9})
    assert "403" in alpha.try_apply("QdrantConnection", CONNECTION, {"url": "http://qdrant:6333"})
    assert alpha.http.get(f"/api/v1/namespaces/{infra.namespace}/secrets/{KEY_REF['name']}").status_code == 403
    assert alpha.http.get(infra.path("QdrantConnection", CONNECTION)).status_code == 403
    assert beta.http.get(alpha.admin_workspace.path("AgentMemory", AGENT)).status_code == 403
    assert beta.http.delete(alpha.admin_workspace.path("AgentMemory", AGENT)).status_code == 403


@pytest.mark.parametrize("rights", ["everything"])
def test_hostile_rights_are_limited_to_namespace(alpha: Tenant, beta: Tenant) -> None:
    """Shows that the hostile tenant of other tests has the rights that they rely on."""
    assert all(alpha.may(verb, resource) for resource in RESOURCES for verb in VERBS)
    assert not any(alpha.may(verb, resource, namespace=beta.namespace) for resource in RESOURCES for verb in VERBS)
    assert not alpha.may("get", "secrets", group="")


def test_builtin_roles_aggregate_team_roles(control_plane: ControlPlane, platform: Platform) -> None:
    """Checks the labels only: the aggregating controller does not run here, so other tests bind roles directly."""
    shipped = {role["metadata"]["name"]: role["metadata"].get("labels", {}) for role in documents("ClusterRole")}

    assert {name: labels_by(AGGREGATE, labels) for name, labels in shipped.items()} == {
        "agentmemory-view": {"view"},
        "agentmemory-edit": {"edit"},
        "agentmemory-connections": set(),
        "agentmemory-operator": set(),
        "agentmemory-api": set(),
        "agentmemory-secrets": set(),
    }
    # Each built-in role is aggregated into the next.
    for name, into in (("view", "edit"), ("edit", "admin")):
        role = control_plane.http.get(f"{RBAC}/clusterroles/{name}").raise_for_status().json()
        assert {f"{AGGREGATE}{name}": "true"} in selectors_of(role)
        assert labels_by(AGGREGATE, role["metadata"]["labels"]) == {into}


def test_documented_command_binds_connections_role(
    control_plane: ControlPlane, infra: Workspace, alpha: Tenant
) -> None:
    """Runs the command of docs/install.md, "Roles for teams", for a ServiceAccount instead of the group."""
    (command,) = read_commands("install.md", "Roles for teams")
    person = f"--serviceaccount={alpha.namespace}:{alpha.account.name}"

    shell(control_plane, command.replace("-n infra", f"-n {infra.namespace}").replace("--group=platform", person))

    wait_until(
        lambda: alpha.may("patch", "qdrantconnections", namespace=infra.namespace), seconds=5, what="the role's effect"
    )
    assert not alpha.may("patch", "qdrantconnections/status", namespace=infra.namespace)


def labels_by(prefix: str, labels: Mapping[str, str]) -> set[str]:
    return {name.removeprefix(prefix) for name, value in labels.items() if name.startswith(prefix) and value == "true"}


def selectors_of(role: Document) -> list[dict[str, str]]:
    return [selector["matchLabels"] for selector in role["aggregationRule"]["clusterRoleSelectors"]]


def test_tenant_with_shipped_role_can_work(infra: Workspace, alpha: Tenant, slug: str) -> None:
    """The tenant creates an agent, stores a memory, takes and restores a snapshot, and deletes the agent."""
    alpha.create_served(infra, slug, "the printer is broken")
    alpha.apply("MemorySnapshot", "monday", {"agentMemoryRef": {"name": AGENT}})
    alpha.wait_condition("Verified", "True/Verified", name="monday", of="MemorySnapshot")
    alpha.bot.store(slug, "it works again")

    alpha.apply("MemoryRestore", "back", {"target": {"name": AGENT}, "source": {"snapshotRef": {"name": "monday"}}})

    wait_until(
        lambda: alpha.bot.search_contents(slug) == {"the printer is broken"}, seconds=20, what="the restored memories"
    )
    assert alpha.read("AgentMemory", AGENT)["status"]["access"]["qdrant"] == "Token"
    alpha.delete()
    alpha.admin_workspace.wait_deleted()


def test_bot_reaches_only_agents_that_list_it(infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
    alpha.create_served(infra, slug, "the printer is broken")

    assert alpha.bot.search_contents(slug) == {"the printer is broken"}
    assert beta.bot.get_status(slug) == 404
    assert beta.bot.search(slug).status_code == 404
    assert beta.bot.store(slug, "an advertisement").status_code == 404
