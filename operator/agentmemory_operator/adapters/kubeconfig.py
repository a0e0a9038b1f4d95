"""Which cluster and namespace a person means: the kubeconfig's context, as for kubectl; in a pod its own."""

from pathlib import Path

from kubernetes.aio import client, config

from agentmemory_operator.adapters.kubernetes_transport import Configuration
from agentmemory_operator.errors import AgentMemoryError

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE = "default"


async def load_context(name: str | None) -> tuple[Configuration, str]:
    """Return how to reach a context's API server, and its namespace.

    Args:
        name: of the kubeconfig; None is the current one, and without a kubeconfig the pod's.

    Raises:
        AgentMemoryError: there is none; says what to set.
    """
    configuration = client.Configuration()
    try:
        await config.load_kube_config(context=name, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts()
    except config.ConfigException as exc:
        if name is None and POD_NAMESPACE.is_file():
            config.load_incluster_config(client_configuration=configuration)
            return configuration, POD_NAMESPACE.read_text(encoding="utf-8").strip()
        said = f"there is no context {name!r} in the kubeconfig" if name else "no Kubernetes to talk to"
        raise AgentMemoryError(f"{said}: set KUBECONFIG, or name another --context ({exc})") from exc
    chosen = next((item for item in contexts if item["name"] == name), current)
    return configuration, str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)
