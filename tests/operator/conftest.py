"""Fixtures: a control plane and a development Qdrant per test process, a namespace per test, an operator per module."""

from tests.support.cluster.fixtures import (
    api,
    api_program,
    cleared,
    control_plane,
    namespace,
    nursery,
    operator,
    proxy,
    qdrant_url,
    quick_operator,
    workspace,
)
from tests.support.web.s3_server import storage

__all__ = [
    "api",
    "api_program",
    "cleared",
    "control_plane",
    "namespace",
    "nursery",
    "operator",
    "proxy",
    "qdrant_url",
    "quick_operator",
    "storage",
    "workspace",
]
