"""Fixtures: a control plane, a development Qdrant and an operator, as in tests/operator; few tests need them."""

from tests.support.cluster.fixtures import control_plane, namespace, nursery, qdrant_url, quick_operator, workspace

__all__ = ["control_plane", "namespace", "nursery", "qdrant_url", "quick_operator", "workspace"]
