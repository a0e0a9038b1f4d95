"""Who may refer to a connection: its own namespace, and those that it allows."""

from collections.abc import Mapping

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.connection import NamespaceSelector, QdrantConnection


def asks_labels(connection: QdrantConnection, namespace: str) -> bool:
    """Whether the answer for a namespace depends on its labels."""
    is_other = namespace != connection.metadata.namespace
    return is_other and isinstance(connection.spec.allowed_namespaces, NamespaceSelector)


def check_allowed(connection: QdrantConnection, namespace: str, labels: Mapping[str, str]) -> None:
    """Pass where objects of a namespace may refer to the connection.

    Args:
        labels: the namespace's.

    Raises:
        SpecInvalid: they may not; says who can change that.
    """
    metadata, allowed = connection.metadata, connection.spec.allowed_namespaces
    if namespace == metadata.namespace or allowed == "All":
        return
    if isinstance(allowed, NamespaceSelector) and allowed.match_labels.items() <= labels.items():
        return
    if isinstance(allowed, NamespaceSelector):
        wanted = ", ".join(f"{name}={value}" for name, value in sorted(allowed.match_labels.items()))
        way_out = f"label the namespace {wanted}"
    else:
        way_out = "have its owner set spec.allowedNamespaces to All or to matchLabels of this namespace"
    raise SpecInvalid(
        "ConnectionNotAllowed",
        f"spec.connectionRef.namespace: QdrantConnection {metadata.namespace}/{metadata.name} may not be used from "
        f"namespace {namespace}: {way_out}, or name a connection of this namespace",
    )
