"""Object storage: one bucket and prefix, with what opens it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stored:
    """One object.

    Attributes:
        key: below the prefix.
        size: bytes.
        sha256: hex, of what was sent; None where whoever stored it did not say.
        modified_ms: Unix milliseconds.
    """

    key: str
    size: int
    sha256: str | None
    modified_ms: int = 0


class ObjectStore(Protocol):
    """Objects below one prefix of a bucket; keys are relative to it.

    Raises:
        TransientError: another attempt may help.
        StoreRejected: the storage refuses; says what to mend. No message holds a secret.
    """

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> Stored:
        """Store a stream in constant memory; the object is there whole or not at all."""
        ...

    async def head(self, key: str) -> Stored | None:
        """Return what is known of an object, None where there is none."""
        ...

    def get(self, key: str, *, offset: int = 0) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open an object's bytes.

        Raises:
            NotFound: there is no such object.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; one that is gone is no error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Stored]:
        """Yield the objects whose keys begin so; `sha256` is not told."""
        ...

    async def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Drop what uploads begun so long ago have left unfinished; return how many there were."""
        ...
