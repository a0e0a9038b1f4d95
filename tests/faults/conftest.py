"""The clusters and servers that faults are tried on."""

from tests.support.cluster_fixtures import control_plane, qdrant_url

__all__ = ["control_plane", "qdrant_url"]
