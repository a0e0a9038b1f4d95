"""The wrapping keys of an agent, as the Secret of its object holds them, or as they were handed over."""

from contextlib import suppress

from agentmemory_operator.connections.rules.secret_hosts import NOWHERE
from agentmemory_operator.errors import LeadershipLost, SecretMissing, TransientError
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.spec.zones import ZoneSettings
from agentmemory_operator.zones.wrapping import WrappingKeys, wrapping_keys


async def read_wrapping_keys(
    secrets: Secrets, namespace: str, zones: ZoneSettings, *, are_handed_over: bool = False
) -> WrappingKeys:
    """The wrapping key in force, and the one of before where there is one.

    Args:
        namespace: the object's.
        are_handed_over: of what the operator hands over nobody can tell what is missing and what is late, so that the
            one of before counts as missing; who needs it reads it again.

    Raises:
        SpecInvalid: WrappingKeyMissing or WrappingKeyInvalid; says what to do.
        TransientError: they cannot be read for now, or were not handed over.
    """
    current = previous = None
    with suppress(SecretMissing):
        current = await secrets.read(namespace, zones.secret_name, zones.secret_key, to=NOWHERE)
    try:
        # It is there only while the key is rotated.
        with suppress(SecretMissing):
            previous = await secrets.read(namespace, zones.secret_name, zones.previous_key, to=NOWHERE)
    except TransientError as exc:
        if isinstance(exc, LeadershipLost) or not are_handed_over:
            raise
    return wrapping_keys(current, previous, secret=f"{namespace}/{zones.secret_name}", key=zones.secret_key)
