"""The official Qdrant client, imported without fastembed.

Where fastembed is installed the client loads it, when it is imported and when it is made, for inference that no call
of ours uses: a second and 50 MiB of each process.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(package: str) -> Iterator[None]:
    """Let imports find no such package, unless something has imported it already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # how Python marks what must not be imported
    try:
        yield
    finally:
        del sys.modules[package]


with without("fastembed"):
    from qdrant_client import AsyncQdrantClient, models
    from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
    from qdrant_client.http.api_client import SendAsync
    from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

__all__ = [
    "ApiException",
    "AsyncQdrantClient",
    "QdrantException",
    "ResourceExhaustedResponse",
    "ResponseHandlingException",
    "SendAsync",
    "UnexpectedResponse",
    "models",
    "without",
]
