"""The keys of one agent: its ring, and its wrapping key as a Secret holds it, or as it was handed over."""

from contextlib import suppress

from agentmemory_operator.connections.rules.secret_hosts import NOWHERE
from agentmemory_operator.errors import SecretMissing, SpecInvalid, TransientError
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.zones.keyring import AgentKeys
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.wrapping import PREVIOUS, WrappingKeys, wrapping_keys


def agent_keys(secrets: Secrets, ring: Ring, *, name: str, key: str) -> AgentKeys:
    """The keys of an agent whose object names a Secret of its namespace.

    Args:
        name: of the Secret.
        key: the entry of the current wrapping key.
    """

    async def wrapping() -> WrappingKeys:
        return await read_wrapping_keys(secrets, ring.namespace, name=name, key=key)

    return AgentKeys(ring, wrapping)


async def read_wrapping_keys(secrets: Secrets, namespace: str, *, name: str, key: str) -> WrappingKeys:
    """The wrapping keys that a Secret holds.

    Raises:
        SpecInvalid: WrappingKeyMissing or WrappingKeyInvalid; says what to do.
        TransientError: the current one cannot be read for now, or was not handed over.
    """
    current = previous = None
    with suppress(SecretMissing):
        current = await secrets.read(namespace, name, key, to=NOWHERE)
    # There is one while a key is rotated alone; who needs it and has it not reads it again.
    with suppress(SpecInvalid, TransientError):
        previous = await secrets.read(namespace, name, key + PREVIOUS, to=NOWHERE)
    return wrapping_keys(current, previous, secret=f"{namespace}/{name}", key=key)
