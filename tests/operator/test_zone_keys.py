"""The data keys of privacy zones on a real API server: a Secret for each shard."""

import base64
import pathlib
import random
from collections.abc import AsyncIterator

import pytest
from kubernetes.aio import client, config

from agentmemory_operator.adapters.kubernetes.key_shard_secrets import KEY, PREFIX, KubernetesKeyShards
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.errors import KeysUnavailable, TransientError
from agentmemory_operator.zones.keyring import FRESH_MS, AgentKeys, Keyring
from agentmemory_operator.zones.rules.entries import LEVELS, MAX_SHARD_KEYS, Ring, new_key_id, scope_hash, shard_at
from agentmemory_operator.zones.rules.shards import Shard, render_shard
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import shell
from tests.support.cluster.workspace import MERGE
from tests.support.engine.fakes import FakeClock
from tests.support.key_shards import BEHAVIOURS, Behaviour, new_ring, new_shard
from tests.support.pages import read_commands
from tests.support.web.http_server import check_success
from tests.support.zones import FakeWrapping

# The namespace in docs/zones.md.
KEYS = "agentmemory-zone-keys"
FOLDER = f"/api/v1/namespaces/{KEYS}/secrets"
ZONES = "SENSITIVE", "PERSONAL"


@pytest.fixture(scope="module")
def key_namespace(control_plane: ControlPlane) -> str:
    answer = control_plane.http.post("/api/v1/namespaces", json={"metadata": {"name": KEYS}})
    assert answer.status_code in (201, 409)
    return KEYS


@pytest.fixture
async def transport(control_plane: ControlPlane) -> AsyncIterator[KubernetesTransport]:
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(control_plane.kubeconfig), client_configuration=configuration)
    made = KubernetesTransport(configuration)
    yield made
    await made.close()


@pytest.fixture
def shards(transport: KubernetesTransport, key_namespace: str) -> KubernetesKeyShards:
    return KubernetesKeyShards(transport, key_namespace)


def secret_of(ring: Ring, name: str = "0") -> str:
    return f"{FOLDER}/{PREFIX}{ring.namespace}.{ring.agent}-{name}"


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda found: found.__name__)
async def test_it_is_a_store_of_shards(shards: KubernetesKeyShards, behaviour: Behaviour) -> None:
    await behaviour(shards, new_ring())


@pytest.mark.parametrize("data", [{}, {KEY: base64.b64encode(b"{}").decode()}, {"other": "eA=="}])
async def test_secret_without_keys_is_reported_not_replaced(
    control_plane: ControlPlane, shards: KubernetesKeyShards, data: dict[str, str]
) -> None:
    ring = new_ring()
    await shards.write(new_shard(ring))
    body = [{"op": "replace", "path": "/data", "value": data}]
    patch = {"Content-Type": "application/json-patch+json"}
    check_success(control_plane.http.patch(secret_of(ring), json=body, headers=patch))
    keys = AgentKeys(ring, FakeWrapping())

    with pytest.raises(TransientError, match="restore it from a backup"):
        await shards.read(ring, "0")
    with pytest.raises(KeysUnavailable):
        await Keyring(shards, FakeClock()).get_or_create_key(keys, "PERSONAL", "ada")
    assert check_success(control_plane.http.get(secret_of(ring))).json().get("data", {}) == data


async def test_missing_namespace_makes_keys_unavailable(transport: KubernetesTransport) -> None:
    shards = KubernetesKeyShards(transport, "no-such-namespace")
    ring = new_ring()

    assert await shards.version(ring, "0") == ""
    with pytest.raises(TransientError, match="does the namespace no-such-namespace exist"):
        await shards.write(new_shard(ring))
    with pytest.raises(KeysUnavailable):
        await Keyring(shards, FakeClock()).get_or_create_key(AgentKeys(ring, FakeWrapping()), "PERSONAL", "ada")


async def test_keys_are_unavailable_without_api_server(
    control_plane: ControlPlane, shards: KubernetesKeyShards
) -> None:
    keys, clock = AgentKeys(new_ring(), FakeWrapping()), FakeClock()
    key = await Keyring(shards, clock).get_or_create_key(keys, "PERSONAL", "ada")
    other = Keyring(shards, clock)

    control_plane.kill_apiserver()
    try:
        with pytest.raises(KeysUnavailable):
            await other.read_keys(keys, [key.id])
        with pytest.raises(KeysUnavailable):
            await other.get_or_create_key(keys, "PERSONAL", "bob")
    finally:
        control_plane.start_apiserver()

    assert await other.read_keys(keys, [key.id]) == {key.id: key}


async def test_lost_keys_are_restored_by_page_commands(
    control_plane: ControlPlane, shards: KubernetesKeyShards, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    ring, clock, owners = new_ring(), FakeClock(), [f"user-{number}" for number in range(MAX_SHARD_KEYS + 20)]
    sealed = True

    async def has_sealed() -> bool:
        return sealed

    keyring, keys = Keyring(shards, clock), AgentKeys(ring, FakeWrapping(), has_sealed)
    sealed = False
    made = {key.id: key for key in [await keyring.get_or_create_key(keys, "PERSONAL", owner) for owner in owners]}
    sealed = True
    monkeypatch.setattr("tests.support.cluster.installation.ROOT", tmp_path)
    (backup,) = read_commands("zones.md", "Back up the keys")
    (restore,) = read_commands("zones.md", "Restore the keys")
    shell(control_plane, backup)
    check_success(control_plane.http.delete(FOLDER))
    clock.move(ms=FRESH_MS)

    with pytest.raises(KeysUnavailable, match="backup"):
        await keyring.read_keys(keys, list(made))
    with pytest.raises(KeysUnavailable, match="backup"):
        await keyring.get_or_create_key(keys, "PERSONAL", "new")
    shell(control_plane, restore)

    assert await keyring.read_keys(keys, list(made)) == made
    assert (await keyring.get_or_create_key(keys, "PERSONAL", owners[0])).id in made


async def test_documented_command_gives_up_lost_keys(control_plane: ControlPlane, shards: KubernetesKeyShards) -> None:
    async def has_sealed() -> bool:
        return True

    keys = AgentKeys(new_ring(), FakeWrapping(), has_sealed)
    commands = read_commands("zones.md", "Go on without lost keys")
    for command in commands:
        shell(
            control_plane,
            command.replace("agents.support-bot", f"agents.{keys.ring.agent}").replace(
                "agent=support-bot", f"agent={keys.ring.agent}"
            ),
        )
    keyring = Keyring(shards, FakeClock())

    key = await keyring.get_or_create_key(keys, "PERSONAL", "ada")

    assert await keyring.read_keys(keys, [key.id, new_key_id("1a")]) == {key.id: key}
    assert "0" in await shards.list_names(keys.ring)


async def test_secrets_of_other_names_are_no_shards(control_plane: ControlPlane, shards: KubernetesKeyShards) -> None:
    ring = new_ring()
    await shards.write(new_shard(ring))
    labels = {"agentmemory.dev/zone-keys": "0", "agentmemory.dev/agent": ring.agent}
    labels["agentmemory.dev/owner-namespace"] = ring.namespace
    names = ("another", f"{PREFIX}{ring.namespace}.{ring.agent}-4", f"{PREFIX}{ring.agent}-0")
    for name in names:
        check_success(control_plane.http.post(FOLDER, json={"metadata": {"name": name, "labels": labels}}))
    # The name decides whether a Secret is a shard, whatever its labels.
    check_success(control_plane.http.patch(secret_of(ring), json={"metadata": {"labels": labels}}, headers=MERGE))

    assert await shards.list_names(ring) == ["0"]
    await shards.delete(ring)
    assert [control_plane.http.get(f"{FOLDER}/{name}").status_code for name in names] == [200] * len(names)
    for name in names:
        control_plane.http.delete(f"{FOLDER}/{name}")


@pytest.mark.faults
async def test_100_000_users_have_keys_in_two_zones(shards: KubernetesKeyShards) -> None:
    """Shards are written as 200,000 first keys would leave them; then they are read, listed and added to as usual."""
    ring, wrapping, clock = new_ring(), FakeWrapping(), FakeClock()
    made: dict[str, Shard] = {}
    for user in range(100_000):
        for zone in ZONES:
            scope = scope_hash(zone, f"user-{user}")
            names = (shard_at(scope, level) for level in range(LEVELS))
            name = next(name for name in names if name not in made or not made[name].is_closed)
            key_id, shard = new_key_id(name), made.get(name) or Shard(ring=ring, name=name)
            entry = wrapping.keys.wrap(key_id, bytes(64), zone=zone, scope=scope, at=1)
            made[name] = shard.with_key(key_id, entry)
    for shard in made.values():
        await shards.write(shard)
    keyring, keys = Keyring(shards, clock), AgentKeys(ring, wrapping)

    assert len(await shards.list_names(ring)) == len(made) == 1 + 16 + 256 + 4096
    assert max(len(render_shard(shard)) for shard in made.values()) < 20 * 1024
    known = {key_id: entry for shard in made.values() for key_id, entry in shard.entries.items()}
    for user in random.Random(7).sample(range(100_000), 300):
        key = await keyring.get_or_create_key(keys, "PERSONAL", f"user-{user}")
        assert known[key.id].scope == scope_hash("PERSONAL", f"user-{user}")
    new = await keyring.get_or_create_key(keys, "PERSONAL", "a new user")
    assert new.id not in known
    assert await keyring.destroy(keys, owner="a new user", zones=ZONES) == [new.id]
    await shards.delete(ring)
    assert await shards.list_names(ring) == []
