"""examples/install on a real API server: its commands work with the rights it grants, and need each of them."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from kubernetes.aio import client, config

from agentmemory_operator import __version__
from agentmemory_operator.adapters.kubernetes.agent_secret_store import SECRET_PREFIX, KubernetesAgentSecrets
from agentmemory_operator.adapters.kubernetes.claim_config_maps import (
    LABEL,
    PARTS,
    PREFIX,
    KubernetesClaims,
    follow_claims,
)
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.lease import LEASE_NAME, KubernetesLease
from agentmemory_operator.adapters.kubernetes.token_reviews import KubernetesTokenReviews
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.collections.rules.claims import ClaimSet, SlugClaim
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret, Owner
from agentmemory_operator.errors import TransientError
from agentmemory_operator.ports.kubernetes import Event, Lease
from agentmemory_operator.spec.caller_rights import Caller
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, Metadata
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import (
    API_NAMESPACE_FLAGS,
    NAMESPACE,
    OPERATOR_NAMESPACE_FLAGS,
    Container,
    Right,
    container_of,
    documents,
    found_after_storing,
    install,
    kubeconfig_of,
    rights,
    shell,
    stop_cleanly,
    without_right,
)
from tests.support.cluster.operators import LEADING
from tests.support.cluster.tenants import Account as ServiceAccount
from tests.support.cluster.tenants import create_secret
from tests.support.cluster.workspace import AGENT, CONNECTION, MERGE, PLURALS, Workspace
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import running

OPERATOR, API, SECRETS = "agentmemory-operator", "agentmemory-api", "agentmemory-secrets"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
KEY = {"name": "qdrant-key", "key": "api-key"}
HANDED_PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET_PREFIX}{AGENT}"
NOW = "2026-01-01T00:00:00.000000Z"
HELD = Lease(holder="a test", duration_s=1, acquired_at=NOW, renewed_at=NOW)
WATCHED_WITHIN_S, TAKES_EFFECT_WITHIN_S = 0.7, 10.0


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> str:
    """Apply the manifests; return kubectl's output."""
    return install(control_plane)


@dataclass(frozen=True, slots=True)
class Account:
    """Installed ServiceAccount, as used by the adapters."""

    cluster: KubernetesCluster
    lease: KubernetesLease
    reviews: KubernetesTokenReviews
    handover: KubernetesAgentSecrets
    claims: KubernetesClaims
    workspace: Workspace

    def metadata(self, kind: str) -> Metadata:
        """Return the metadata of the workspace's object of a kind."""
        name = NAMES[kind]
        return Metadata.model_validate(self.workspace.must_get(name, kind)["metadata"])


NAMES = {"AgentMemory": AGENT, "QdrantConnection": CONNECTION, "MemorySnapshot": "kept", "MemoryRestore": "undo"}
Probe = Callable[[Account], Awaitable[None]]


def lists(kind: str) -> Probe:
    async def probe(account: Account) -> None:
        await account.cluster.list_objects(kind)

    return probe


def watches(kind: str) -> Probe:
    async def probe(account: Account) -> None:
        metadata = account.metadata(kind)
        async with asyncio.timeout(WATCHED_WITHIN_S), contextlib.aclosing(account.cluster.follow(kind)) as events:
            assert (await anext(events))[0] == "LIST"
            touch(account.workspace, kind, metadata)
            assert (await anext(events))[0] == "MODIFIED"

    return probe


def touch(workspace: Workspace, kind: str, metadata: Metadata) -> None:
    """Change an annotation of an object that the operator ignores."""
    path = f"/apis/{API_VERSION}/namespaces/{metadata.namespace}/{PLURALS[kind]}/{metadata.name}"
    body = {"metadata": {"annotations": {"tests/touched": uuid4().hex}}}
    workspace.control_plane.http.patch(path, json=body, headers=MERGE).raise_for_status()


def writes_status(kind: str) -> Probe:
    async def probe(account: Account) -> None:
        await account.cluster.write_status(kind, account.metadata(kind), {"observedGeneration": 1})

    return probe


async def reads_the_agent(account: Account) -> None:
    metadata = account.metadata("AgentMemory")
    await account.cluster.read_object("AgentMemory", metadata.namespace, metadata.name)


def writes_finalizers(kind: str) -> Probe:
    async def probe(account: Account) -> None:
        metadata = account.metadata(kind)
        await account.cluster.write_finalizers(kind, metadata, [*metadata.finalizers])

    return probe


def snapshot_named(name: str, namespace: str) -> dict[str, Any]:
    """Build a MemorySnapshot like a schedule."""
    metadata = {"name": name, "namespace": namespace}
    spec = {"agentMemoryRef": {"name": AGENT}}
    return {"apiVersion": API_VERSION, "kind": "MemorySnapshot", "metadata": metadata, "spec": spec}


async def creates_snapshots(account: Account) -> None:
    document = snapshot_named(f"s{uuid4().hex}", account.workspace.namespace)
    assert await account.cluster.create_object(document)
    assert not await account.cluster.create_object(document)


async def creates_restores(account: Account) -> None:
    spec = {"target": {"name": NAMES["AgentMemory"]}, "source": {"snapshotRef": {"name": NAMES["MemorySnapshot"]}}}
    metadata = {"name": f"r{uuid4().hex}", "namespace": account.workspace.namespace}
    document = {"apiVersion": API_VERSION, "kind": "MemoryRestore", "metadata": metadata, "spec": spec}
    assert await account.cluster.create_object(document)
    assert not await account.cluster.create_object(document)


async def deletes_snapshots(account: Account) -> None:
    document = snapshot_named(f"s{uuid4().hex}", account.workspace.namespace)
    path = f"/apis/{API_VERSION}/namespaces/{account.workspace.namespace}/memorysnapshots"
    created = account.workspace.control_plane.http.post(path, json=document).json()
    metadata = Metadata.model_validate(created["metadata"])
    await account.cluster.delete_object("MemorySnapshot", metadata.model_copy(update={"uid": "another"}))
    await account.cluster.delete_object("MemorySnapshot", metadata)
    await account.cluster.delete_object("MemorySnapshot", metadata)
    assert account.workspace.get(metadata.name, "MemorySnapshot") is None


def posts_events(*, times: int, is_restarted: bool = False) -> Probe:
    async def probe(account: Account) -> None:
        # Use another uid each time: the events of an object are limited.
        metadata = account.metadata("AgentMemory").model_copy(update={"uid": uuid4().hex})
        for _ in range(times):
            if is_restarted:
                account.cluster._events._counts.clear()
            await account.cluster.post_event("AgentMemory", metadata, Event("Warning", "Tested", metadata.uid))
        answer = account.workspace.control_plane.http.get(f"/api/v1/namespaces/{metadata.namespace}/events").json()
        counts = [item["count"] for item in answer["items"] if item["message"] == metadata.uid]
        assert counts == [times], "an event was dropped"

    return probe


async def reads_secrets(account: Account) -> None:
    found = await account.cluster.read_secret(account.workspace.namespace, KEY["name"])
    assert found is not None
    assert found.values == {KEY["key"]: "secret"}


async def names_the_cluster(account: Account) -> None:
    # The id is cached after the first read.
    account.cluster._cluster_id = None
    await account.cluster.cluster_id()


async def reads_labels(account: Account) -> None:
    assert await account.cluster.labels(account.workspace.namespace)


HANDED = AgentSecret(slug=AGENT, owner=Owner("n", "a", "u"), values={"slot": "secret"})


async def finds_what_was_handed_over(account: Account) -> None:
    admit_secret(account.workspace.control_plane)
    found = await account.handover.read(AGENT)
    assert found is not None
    assert found.values == HANDED.values


async def hands_over(account: Account) -> None:
    account.workspace.control_plane.http.delete(HANDED_PATH)
    await account.handover.write(HANDED)


async def renews_what_was_handed_over(account: Account) -> None:
    found = admit_secret(account.workspace.control_plane)
    await account.handover.write(replace(HANDED, version=found["metadata"]["resourceVersion"]))


async def takes_back_what_was_handed_over(account: Account) -> None:
    found = admit_secret(account.workspace.control_plane)
    await account.handover.delete(replace(HANDED, version=found["metadata"]["resourceVersion"]))
    assert account.workspace.control_plane.http.get(HANDED_PATH).status_code == 404


async def lists_what_was_handed_over(account: Account) -> None:
    await account.handover.list_all()


def admit_secret(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the Secret of an agent, created by the admin if it is missing."""
    body = {"metadata": {"name": SECRET_PREFIX + AGENT}, "stringData": dict(HANDED.values)}
    control_plane.http.post(f"/api/v1/namespaces/{NAMESPACE}/secrets", json=body)
    return dict(control_plane.http.get(HANDED_PATH).json())


async def reviews_tokens(account: Account) -> None:
    bot = ServiceAccount.create(account.workspace.control_plane, account.workspace.namespace, "bot")
    reviewed = await account.reviews.review(bot.token())
    assert reviewed.caller == Caller(bot.namespace, bot.name)


async def reads_the_lease(account: Account) -> None:
    await account.lease.read()


async def creates_the_lease(account: Account) -> None:
    account.workspace.control_plane.http.delete(f"{LEASES}/{LEASE_NAME}")
    await account.lease.write(HELD)


async def renews_the_lease(account: Account) -> None:
    account.workspace.control_plane.http.post(LEASES, json={"metadata": {"name": LEASE_NAME}})
    found = await account.lease.read()
    assert found is not None
    await account.lease.write(replace(HELD, version=found.version))


async def reads_claims(account: Account) -> None:
    await account.claims.load()


async def creates_claims(account: Account) -> None:
    for part in PARTS:
        account.workspace.control_plane.http.delete(f"{CONFIG_MAPS}/{PREFIX}{part}")
    await account.claims.load()
    await account.claims.save(claim_set())


async def changes_claims(account: Account) -> None:
    for part in PARTS:
        body = {"metadata": {"name": f"{PREFIX}{part}", "labels": {LABEL: "true"}}}
        account.workspace.control_plane.http.post(CONFIG_MAPS, json=body)
    # Read as the admin: without `get` the operator could read nothing.
    found = [account.workspace.control_plane.http.get(f"{CONFIG_MAPS}/{PREFIX}{part}").json() for part in PARTS]
    account.claims._stored = dict(zip(PARTS, found, strict=True))
    await account.claims.save(claim_set())


def claim_set() -> ClaimSet:
    claim = SlugClaim(namespace="agents", uid=uuid4().hex)
    return ClaimSet(claims={AGENT: claim}, is_complete=True)


async def follows_claims(account: Account) -> None:
    async with (
        asyncio.timeout(WATCHED_WITHIN_S),
        contextlib.aclosing(follow_claims(account.cluster, NAMESPACE, lambda: None)) as claims,
    ):
        await anext(claims)


async def watches_claims(account: Account) -> None:
    async with (
        asyncio.timeout(WATCHED_WITHIN_S),
        contextlib.aclosing(follow_claims(account.cluster, NAMESPACE, lambda: None)) as claims,
    ):
        await anext(claims)
        body = {"metadata": {"generateName": "touched-", "labels": {LABEL: "true"}}}
        account.workspace.control_plane.http.post(CONFIG_MAPS, json=body).raise_for_status()
        await anext(claims)


# By account, verb and resource: effect of the missing right, and the probe for it.
PROBES: dict[tuple[str, str, str], tuple[str, Probe]] = {
    (OPERATOR, "list", "agentmemories"): ("no object is found at the start", lists("AgentMemory")),
    (OPERATOR, "watch", "agentmemories"): ("no change of an object is seen", watches("AgentMemory")),
    (OPERATOR, "get", "agentmemories"): ("no restore goes on", reads_the_agent),
    (OPERATOR, "patch", "agentmemories"): (
        "no collection is ever deleted: finalizers",
        writes_finalizers("AgentMemory"),
    ),
    (OPERATOR, "patch", "agentmemories/status"): ("nobody learns what a pass did", writes_status("AgentMemory")),
    (OPERATOR, "list", "qdrantconnections"): ("no connection is found at the start", lists("QdrantConnection")),
    (OPERATOR, "watch", "qdrantconnections"): ("no change of a connection is seen", watches("QdrantConnection")),
    (OPERATOR, "patch", "qdrantconnections/status"): (
        "nobody learns what a connection reaches",
        writes_status("QdrantConnection"),
    ),
    (OPERATOR, "list", "memorysnapshots"): ("no snapshot is made", lists("MemorySnapshot")),
    (OPERATOR, "watch", "memorysnapshots"): ("no new snapshot is seen", watches("MemorySnapshot")),
    (OPERATOR, "patch", "memorysnapshots"): ("no bytes go with their object", writes_finalizers("MemorySnapshot")),
    (OPERATOR, "create", "memorysnapshots"): ("no schedule is followed", creates_snapshots),
    (OPERATOR, "delete", "memorysnapshots"): ("no retention removes anything", deletes_snapshots),
    (OPERATOR, "patch", "memorysnapshots/status"): (
        "nobody learns what a snapshot came to",
        writes_status("MemorySnapshot"),
    ),
    (OPERATOR, "list", "memoryrestores"): ("no restore is made", lists("MemoryRestore")),
    (OPERATOR, "watch", "memoryrestores"): ("no new restore is seen", watches("MemoryRestore")),
    (OPERATOR, "patch", "memoryrestores"): ("a restore leaves what it began", writes_finalizers("MemoryRestore")),
    (OPERATOR, "create", "memoryrestores"): ("no agent begins with a snapshot", creates_restores),
    (OPERATOR, "patch", "memoryrestores/status"): (
        "nobody learns what a restore came to",
        writes_status("MemoryRestore"),
    ),
    (OPERATOR, "create", "events"): ("events are dropped", posts_events(times=1)),
    (OPERATOR, "patch", "events"): ("what is told again is not counted", posts_events(times=2)),
    (OPERATOR, "get", "events"): (
        "a restarted operator does not go on counting",
        posts_events(times=2, is_restarted=True),
    ),
    (OPERATOR, "get", "secrets"): ("no Qdrant that asks for a key is reached", reads_secrets),
    (OPERATOR, "create", "secrets"): ("the API gets no key of a new agent", hands_over),
    (OPERATOR, "update", "secrets"): ("the API's tokens end", renews_what_was_handed_over),
    (OPERATOR, "list", "secrets"): ("keys of agents that are gone stay", lists_what_was_handed_over),
    (OPERATOR, "delete", "secrets"): ("keys of agents that are gone stay", takes_back_what_was_handed_over),
    (OPERATOR, "get", "namespaces"): ("collections cannot be marked as this cluster's", names_the_cluster),
    (OPERATOR, "get", "leases"): ("no operator ever leads", reads_the_lease),
    (OPERATOR, "create", "leases"): ("the first operator never leads", creates_the_lease),
    (OPERATOR, "update", "leases"): ("the leader ends when its lease does", renews_the_lease),
    (OPERATOR, "get", "configmaps"): ("nobody knows whose a slug is", reads_claims),
    (OPERATOR, "create", "configmaps"): ("no slug is claimed", creates_claims),
    (OPERATOR, "update", "configmaps"): ("no new slug is claimed", changes_claims),
    (API, "list", "configmaps"): ("the API is never ready", follows_claims),
    (API, "watch", "configmaps"): ("the API serves a slug for whom it was before", watches_claims),
    (API, "list", "agentmemories"): ("the API knows no agent", lists("AgentMemory")),
    (API, "watch", "agentmemories"): ("new weights do not act", watches("AgentMemory")),
    (API, "list", "qdrantconnections"): ("the API reaches no Qdrant", lists("QdrantConnection")),
    (API, "watch", "qdrantconnections"): ("the API keeps to the old Qdrant", watches("QdrantConnection")),
    (API, "list", "memorysnapshots"): ("no page shows a snapshot", lists("MemorySnapshot")),
    (API, "watch", "memorysnapshots"): ("a new snapshot is not shown", watches("MemorySnapshot")),
    (API, "list", "memoryrestores"): ("no page shows a restore", lists("MemoryRestore")),
    (API, "watch", "memoryrestores"): ("a new restore is not shown", watches("MemoryRestore")),
    (API, "get", "namespaces"): ("the API is not ready, and connections open to labels are closed", reads_labels),
    (API, "get", "secrets"): ("no Qdrant that asks for a key is reached", finds_what_was_handed_over),
    (API, "create", "tokenreviews"): ("nobody is let in", reviews_tokens),
}


@pytest.fixture(scope="module")
def used(installed: str, control_plane: ControlPlane, qdrant_url: str) -> Iterator[Workspace]:
    """Objects to use the rights on. No operator handles them."""
    workspace = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    workspace.create_secret(KEY["name"], **{KEY["key"]: "secret"})
    workspace.connect()
    workspace.create()
    workspace.create_snapshot(NAMES["MemorySnapshot"])
    workspace.create_restore(NAMES["MemoryRestore"], {"snapshotRef": {"name": NAMES["MemorySnapshot"]}})
    yield workspace
    workspace.clean()


@pytest.fixture
async def account(
    request: pytest.FixtureRequest, control_plane: ControlPlane, used: Workspace, tmp_path: pathlib.Path
) -> AsyncIterator[Account]:
    """ServiceAccount of the tested right, and the objects to use it on."""
    configuration = client.Configuration()
    file = kubeconfig_of(control_plane, request.param, tmp_path)
    await config.load_kube_config(config_file=str(file), client_configuration=configuration)
    transport = KubernetesTransport(configuration)
    created = Account(
        KubernetesCluster(configuration),
        KubernetesLease(configuration, NAMESPACE),
        KubernetesTokenReviews(configuration),
        KubernetesAgentSecrets(transport, NAMESPACE),
        KubernetesClaims(transport, NAMESPACE),
        used,
    )
    yield created
    await created.reviews.close()
    await transport.close()
    await created.cluster.close()
    await created.lease.close()


async def wait_for(probe: Probe, account: Account, *, works: bool) -> None:
    """Repeat the probe until it succeeds, or fails: rights take effect with a delay."""
    trouble: Exception | None = None
    async with asyncio.timeout(TAKES_EFFECT_WITHIN_S):
        while True:
            trouble = None
            try:
                await probe(account)
            except (TransientError, TimeoutError, AssertionError) as exc:
                trouble = exc
            if (trouble is None) == works:
                return
            await asyncio.sleep(0.05)


def test_each_granted_right_has_a_probe() -> None:
    assert {(right.account, right.verb, right.resource) for right in rights()} == set(PROBES)


@pytest.mark.parametrize(
    ("account", "right"),
    [(right.account, right) for right in rights()],
    indirect=["account"],
    ids=[*map(str, rights())],
)
async def test_each_right_is_needed(control_plane: ControlPlane, account: Account, right: Right) -> None:
    """The probe of `PROBES` fails without the right, and succeeds before and after."""
    _, probe = PROBES[right.account, right.verb, right.resource]
    await wait_for(probe, account, works=True)

    with without_right(control_plane, right):
        await wait_for(probe, account, works=False)

    await wait_for(probe, account, works=True)


@pytest.mark.parametrize("account", [API], indirect=True)
async def test_api_reads_cluster_id_with_namespace_right(control_plane: ControlPlane, account: Account) -> None:
    (right,) = [found for found in rights() if (found.account, found.resource) == (API, "namespaces")]
    await wait_for(names_the_cluster, account, works=True)

    with without_right(control_plane, right):
        await wait_for(names_the_cluster, account, works=False)


@pytest.mark.parametrize("account", [API], indirect=True)
async def test_api_cannot_read_secrets_elsewhere(account: Account) -> None:
    with pytest.raises(TransientError, match="forbidden"):
        await reads_secrets(account)


@pytest.mark.parametrize("account", [OPERATOR], indirect=True)
async def test_secrets_can_be_limited_to_namespaces(control_plane: ControlPlane, account: Account) -> None:
    """Runs the commands of docs/install.md, "Rights"."""
    (binding,) = [found for found in documents("ClusterRoleBinding") if found["metadata"]["name"] == SECRETS]
    other = Workspace(control_plane, control_plane.create_namespace(), account.workspace.qdrant_url)
    other.create_secret(KEY["name"], **{KEY["key"]: "secret"})

    for command in read_commands("install.md", "Rights"):
        shell(control_plane, command.replace("-n agents", f"-n {account.workspace.namespace}"))
    await wait_for(reads_secrets, replace(account, workspace=other), works=False)
    await wait_for(reads_secrets, account, works=True)

    assert control_plane.apply(binding).returncode == 0
    await wait_for(reads_secrets, replace(account, workspace=other), works=True)
    other.qdrant.close()


def test_manifests_apply_strictly_without_warnings(installed: str) -> None:
    assert "Warning" not in installed
    assert installed.count("serverside-applied") == len(documents())


@pytest.mark.parametrize("name", [OPERATOR, API])
def test_pods_pass_restricted_security_standard(control_plane: ControlPlane, installed: str, name: str) -> None:
    template = container_of(name).deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": template["spec"]}

    answer = control_plane.http.post(f"/api/v1/namespaces/{NAMESPACE}/pods", params={"dryRun": "All"}, json=pod)

    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("name", [OPERATOR, API])
def test_manifests_use_image_of_this_version(name: str) -> None:
    assert container_of(name).spec["image"] == f"agentmemory-operator:{__version__}"


def test_installation_serves_memories_with_own_rights(
    control_plane: ControlPlane, installed: str, workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    """The agent of a connection with a key becomes Ready; a memory is found; status, event and lease are written."""
    operator, api = container_of(OPERATOR), container_of(API)
    ports = api.free_ports() | operator.free_ports()
    create_secret(workspace, KEY["name"], **{KEY["key"]: "secret"})
    workspace.connect(apiKeySecretRef=KEY)
    bot = ServiceAccount.create(control_plane, workspace.namespace, "bot")
    access = {"subjects": [bot.subject("read", "write")]}
    workspace.create(embedding={"provider": "wordllama", "dimensions": 256}, access=access)
    with (
        running(operator.start(control_plane, tmp_path, *OPERATOR_NAMESPACE_FLAGS, ports=ports)) as operating,
        running(api.start(control_plane, tmp_path, *API_NAMESPACE_FLAGS, ports=ports)) as serving,
    ):
        operating.wait_for(LEADING)
        workspace.wait_ready(seconds=30)
        wait_probed(operator, ports)
        wait_probed(api, ports)
        agent_url = f"http://127.0.0.1:{ports[8080]}/v1/agents/{workspace.slug}"
        assert httpx.get(agent_url).status_code == 401
        assert found_after_storing(agent_url, bot.token()) == ["the printer is broken"]
        workspace.patch(index={"hnsw": {"m": 24}})
        wait_until(lambda: workspace.events(kind="Normal"), seconds=10, what="an event")
        holder = control_plane.http.get(f"{LEASES}/{LEASE_NAME}").json()["spec"]["holderIdentity"]
        workspace.delete()
        workspace.wait_deleted()
        stop_cleanly(operating, serving)

    assert holder
    assert workspace.get() is None


def wait_probed(container: Container, ports: dict[int, int]) -> None:
    """Poll the probes of the kubelet until all succeed."""
    urls = container.probe_urls(ports)
    assert set(urls) == {"startupProbe", "livenessProbe", "readinessProbe"}
    for name, url in urls.items():
        wait_until(lambda url=url: httpx.get(url).status_code == 200, seconds=20, what=name)
