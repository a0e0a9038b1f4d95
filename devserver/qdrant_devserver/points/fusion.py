"""Fuse the results of prefetches by rank (RRF) or by the distribution of their scores (DBSF)."""

from typing import TypeAlias

import qdrant_edge as edge

from qdrant_devserver.fields import (
    Choice,
    Document,
    Number,
    read_list,
    read_object,
    read_unsigned,
)

Fusion: TypeAlias = edge.Fusion.Rrf | edge.Fusion.Dbsf
# Qdrant's default: rank 1 scores 1/2, rank 2 scores 1/3.
DEFAULT_K = 2


def read_fusion(query: Document) -> Fusion:
    """Build the engine's form of `{"fusion": "rrf" | "dbsf"}` or `{"rrf": {"k"?, "weights"?}}`.

    Raises:
        ErrorAnswer: 400 for an unknown method or wrong types; 422 for a `k` below 1.
    """
    if "fusion" in query:
        method = Choice(("rrf", "dbsf")).read(query["fusion"], "fusion")
        return edge.Fusion.Rrf(DEFAULT_K) if method == "rrf" else edge.Fusion.Dbsf()
    document = read_object(query["rrf"], "rrf")
    k, weights = read_unsigned(document, "k", path="rrf.", minimum=1), document.get("weights")
    if weights is not None:
        weights = [float(Number().read(weight, "rrf.weights")) for weight in read_list(weights, "rrf.weights")]
    return edge.Fusion.Rrf(k or DEFAULT_K, weights)
