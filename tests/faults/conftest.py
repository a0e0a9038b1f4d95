"""The clusters and servers that faults are tried on."""

from tests.support.cluster_fixtures import control_plane, namespace, proxy, qdrant_url, workspace

__all__ = ["control_plane", "namespace", "proxy", "qdrant_url", "workspace"]
