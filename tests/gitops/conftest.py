"""A control plane, a development Qdrant and an operator, as in tests/operator; most tests here need none of them."""

from tests.support.cluster.fixtures import control_plane, namespace, nursery, qdrant_url, quick_operator, workspace

__all__ = ["control_plane", "namespace", "nursery", "qdrant_url", "quick_operator", "workspace"]
