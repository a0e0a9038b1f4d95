"""Fixtures: clusters and servers with faults."""

from tests.support.cluster.fixtures import (
    control_plane,
    namespace,
    nursery,
    proxy,
    qdrant_url,
    quick_operator,
    workspace,
)

__all__ = ["control_plane", "namespace", "nursery", "proxy", "qdrant_url", "quick_operator", "workspace"]
