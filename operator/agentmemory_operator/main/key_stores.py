"""Open the store of the data keys of privacy zones, and give the agents of the API access to their keys."""

from collections.abc import Callable

from agentmemory_operator.adapters.kubernetes.key_shard_secrets import KubernetesKeyShards
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.agents.directory import HasSealed, ZoneKeysFactory
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.sealed_store import ZoneKeys
from agentmemory_operator.zones.wrapping_keys import WrappingKeys, read_wrapping_keys


def open_key_shards(transport: KubernetesTransport, settings: Settings) -> KeyShards | None:
    """Open the store of the data keys of a cluster; None if the settings name no namespace for it."""
    namespace = settings.zone_keys_namespace
    return KubernetesKeyShards(transport, namespace) if namespace else None


def build_zone_keys(shards: KeyShards | None, clock: Clock, secrets_of: Callable[[str], Secrets]) -> ZoneKeysFactory:
    """Return a function that builds an agent's access to the keys of its privacy zones.

    Args:
        shards: Store of the data keys. If None, the function returns None for every agent.
        secrets_of: Returns the Secrets of the agent with a slug, which contain its wrapping key.
    """
    if shards is None:
        return lambda *_: None
    keyring = Keyring(shards, clock)

    def keys_of(settings: AgentSettings, scope: str, has_sealed: HasSealed) -> ZoneKeys:
        async def wrapping() -> WrappingKeys:
            if settings.zones is None:
                raise SpecInvalid("WrappingKeyMissing", "spec.zones was removed: sealed memories stay locked")
            secrets = secrets_of(settings.slug)
            return await read_wrapping_keys(secrets, settings.namespace, settings.zones, are_shared=True)

        rotate_before_ms = settings.zones.rotate_before_ms if settings.zones else 0
        ring = Ring(settings.namespace, settings.slug)
        keys = AgentKeys(ring, wrapping, has_sealed, rotate_before_ms=rotate_before_ms)
        return ZoneKeys(keyring, keys, scope, (settings.zones and settings.zones.organisation) or "")

    return keys_of
