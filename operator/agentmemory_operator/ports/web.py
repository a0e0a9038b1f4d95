"""Files on web servers."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class WebFiles(Protocol):
    """Files that anybody can fetch who knows their address."""

    def open(self, url: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the bytes at an https address.

        Raises:
            StorageUnavailable: the server cannot be reached or trusted, answers 5xx or 429, or broke off.
            StorageRejected: there is no such file, or it may not be fetched, or it is elsewhere.
        """
        ...
