"""Rights of both accounts on the data keys of privacy zones, tried with their tokens: sufficient and minimal."""

import asyncio
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
from kubernetes.aio import client, config

from agentmemory_operator.adapters.kubernetes.key_shard_secrets import KubernetesKeyShards
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.errors import TransientError
from tests.chart.rendering import COMBINATIONS, of_kind, render
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, RBAC, kubeconfig_of
from tests.support.cluster.workspace import MERGE
from tests.support.key_shards import new_ring, new_shard
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success

API, OPERATOR = "agentmemory-api", "agentmemory-operator"
KINDS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
TAKES_EFFECT_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class OpenedShards:
    """Key shards of a namespace, opened as an account and as an admin."""

    shards: KubernetesKeyShards
    admin: KubernetesKeyShards


async def creates(at: OpenedShards) -> None:
    await at.shards.write(new_shard(new_ring()))


async def reads(at: OpenedShards) -> None:
    shard = new_shard(new_ring())
    await at.admin.write(shard)
    assert await at.shards.version(shard.ring, "0")
    assert (await at.shards.read(shard.ring, "0")).entries == shard.entries


async def updates(at: OpenedShards) -> None:
    shard = new_shard(new_ring())
    await at.shards.write(replace(shard, version=await at.admin.write(shard), entries={}))


async def lists(at: OpenedShards) -> None:
    shard = new_shard(new_ring())
    await at.admin.write(shard)
    assert await at.shards.list_names(shard.ring) == ["0"]


async def deletes(at: OpenedShards) -> None:
    shard = new_shard(new_ring())
    await at.admin.write(shard)
    await at.shards._call("DELETE", at.shards._path(shard.ring, "0"))


Attempt = Callable[[OpenedShards], Awaitable[None]]
NEEDED: dict[tuple[str, str], Attempt] = {
    (API, "get"): reads,
    (API, "create"): creates,
    (API, "update"): updates,
    (OPERATOR, "get"): reads,
    (OPERATOR, "update"): updates,
    (OPERATOR, "list"): lists,
    (OPERATOR, "delete"): deletes,
}
NOT_GIVEN: list[tuple[str, Attempt]] = [(API, lists), (API, deletes), (OPERATOR, creates)]


@dataclass(frozen=True, slots=True)
class Installed:
    """The rights of a combination of values, applied."""

    control_plane: ControlPlane
    rendered: list[Document]
    keys: str

    async def transport(self, kubeconfig: pathlib.Path) -> KubernetesTransport:
        configuration = client.Configuration()
        await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
        return KubernetesTransport(configuration)

    def paths(self, account: str, verb: str) -> dict[str, list[Document]]:
        """Return the roles that grant an account a verb on the Secrets of the keys, with their rules."""
        found = {}
        for (kind, place, name), role in of_kind(self.rendered, "Role", "ClusterRole").items():
            is_bound = any(
                binding["roleRef"]["name"] == name and binding["subjects"][0]["name"] == account
                for binding in of_kind(self.rendered, f"{kind}Binding").values()
            )
            gives = any("secrets" in rule["resources"] and verb in rule["verbs"] for rule in role["rules"])
            if is_bound and gives and place in ("", self.keys):
                inside = f"namespaces/{place}/" if place else ""
                found[f"{RBAC}/{inside}{kind.lower()}s/{name}"] = role["rules"]
        return found


@pytest.fixture(scope="module", params=[name for name in COMBINATIONS if "zones" in COMBINATIONS[name]])
def installed(control_plane: ControlPlane, namespaces: None, request: pytest.FixtureRequest) -> Installed:
    values = COMBINATIONS[request.param]
    for kind in KINDS[:-1]:
        control_plane.kubectl("delete", kind, "-A", "-l", "app.kubernetes.io/name=agentmemory")
    rendered = [*of_kind(render(values), *KINDS).values()]
    assert control_plane.apply(*rendered).returncode == 0
    return Installed(control_plane, rendered, values["zones"].get("namespace", "agentmemory-zone-keys"))


@pytest.fixture
async def open_shards_as(
    installed: Installed, tmp_path: pathlib.Path
) -> AsyncIterator[Callable[[str, str], Awaitable[OpenedShards]]]:
    """Function that opens the shards of a namespace as an account."""
    transports: list[KubernetesTransport] = []

    async def connect(kubeconfig: pathlib.Path, namespace: str) -> KubernetesKeyShards:
        transports.append(await installed.transport(kubeconfig))
        return KubernetesKeyShards(transports[-1], namespace)

    async def open_shards(account: str, namespace: str) -> OpenedShards:
        kubeconfig = kubeconfig_of(installed.control_plane, account, tmp_path)
        admin = installed.control_plane.kubeconfig
        return OpenedShards(await connect(kubeconfig, namespace), await connect(admin, namespace))

    yield open_shards
    for transport in transports:
        await transport.close()


async def wait_until_attempt(attempt: Attempt, at: OpenedShards, *, works: bool) -> None:
    """Repeat until the attempt succeeds, or fails: rights take effect with a delay."""
    async with asyncio.timeout(TAKES_EFFECT_WITHIN_S):
        while True:
            try:
                await attempt(at)
            except TransientError:
                if not works:
                    return
            else:
                if works:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("account", "verb"), NEEDED)
async def test_each_right_is_needed_and_granted_once(
    installed: Installed, open_shards_as: Callable[[str, str], Awaitable[OpenedShards]], account: str, verb: str
) -> None:
    at, attempt = await open_shards_as(account, installed.keys), NEEDED[account, verb]
    await wait_until_attempt(attempt, at, works=True)
    ((path, rules),) = installed.paths(account, verb).items()

    verbs = ({**rule, "verbs": [one for one in rule["verbs"] if one != verb]} for rule in rules)
    less = [rule for rule in verbs if rule["verbs"]]
    check_success(installed.control_plane.http.patch(path, json={"rules": less}, headers=MERGE))
    try:
        await wait_until_attempt(attempt, at, works=False)
    finally:
        check_success(installed.control_plane.http.patch(path, json={"rules": rules}, headers=MERGE))


async def test_accounts_lack_unused_rights(
    installed: Installed, open_shards_as: Callable[[str, str], Awaitable[OpenedShards]]
) -> None:
    for account, works in ((API, reads), (OPERATOR, updates)):
        await wait_until_attempt(works, await open_shards_as(account, installed.keys), works=True)

    for account, attempt in NOT_GIVEN:
        with pytest.raises(TransientError, match="403"):
            await attempt(await open_shards_as(account, installed.keys))


@pytest.mark.parametrize("namespace", [NAMESPACE, "agents", "infra"])
async def test_api_cannot_write_other_secrets(
    installed: Installed, open_shards_as: Callable[[str, str], Awaitable[OpenedShards]], namespace: str
) -> None:
    await wait_until_attempt(creates, await open_shards_as(API, installed.keys), works=True)

    at = await open_shards_as(API, namespace)
    for attempt in (creates, updates, deletes, lists):
        with pytest.raises(TransientError, match="403"):
            await attempt(at)
