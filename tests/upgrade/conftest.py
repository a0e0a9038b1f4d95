"""Fixtures of `tests/operator`."""

from tests.support.cluster.fixtures import cleared, control_plane, namespace, qdrant_url, workspace

__all__ = ["cleared", "control_plane", "namespace", "qdrant_url", "workspace"]
