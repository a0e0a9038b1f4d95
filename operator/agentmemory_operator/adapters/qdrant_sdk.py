"""The official Qdrant client, imported without fastembed.

Where fastembed is installed the client loads it, for inference that no call of ours uses: a second and 30 MiB of each
process.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Let the imports within find no such package, unless something has imported it already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # how Python marks what must not be imported
    try:
        yield
    finally:
        del sys.modules[package]


with _hidden("fastembed"):
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
]
