"""Fixtures: clusters and servers with faults."""

from tests.support.cluster.fixtures import (
    api_program,
    control_plane,
    namespace,
    nursery,
    operator,
    proxy,
    qdrant_url,
    quick_operator,
    workspace,
)

__all__ = [
    "api_program",
    "control_plane",
    "namespace",
    "nursery",
    "operator",
    "proxy",
    "qdrant_url",
    "quick_operator",
    "workspace",
]
