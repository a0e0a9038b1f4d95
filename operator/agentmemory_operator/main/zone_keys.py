"""Where operator and API find the data keys of privacy zones."""

from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.adapters.kubernetes.zone_keys import KubernetesKeyShards
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.settings import Settings


def open_key_shards(transport: KubernetesTransport, settings: Settings) -> KeyShards | None:
    """The shards in a cluster; None where no namespace is named for them."""
    namespace = settings.zone_keys_namespace
    return KubernetesKeyShards(transport, namespace) if namespace else None
