"""Files elsewhere: object storage, one bucket and prefix with what opens it, and web servers."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Credentials of an object storage; neither is ever logged."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket, and what opens it.

    Attributes:
        endpoint: URL of the storage; None is Amazon's of the region.
        prefix: what every key begins with, without a slash at its end.
        is_path_style: the bucket stands in the path, not in the host's name.
        access_key: None is the process's own identity.
        encryption: AES256 or KMS; None is the bucket's own.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
    """

    name: str
    region: str
    endpoint: str | None = None
    prefix: str = ""
    is_path_style: bool = True
    access_key: AccessKey | None = None
    encryption: str | None = None
    kms_key_id: str | None = None
    ca_pem: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StoredObject:
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


def every_key(key: str) -> bool:
    """Tell that a key is meant."""
    return True


class ObjectStore(Protocol):
    """Objects below one prefix of a bucket; keys are relative to it.

    Raises:
        TransientError: another attempt may help.
        StoreRejected: the storage refuses; says what to mend. No message holds a secret.
    """

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> StoredObject:
        """Store a stream in constant memory; the object is there whole or not at all.

        Args:
            metadata: kept beside it. `sha256` and `size` are what the content has to have, and let it be of any size;
                without `sha256` it is at most a few MiB, and its own is kept.

        Raises:
            BytesDiffer: the content is other than `metadata` says; nothing was stored.
        """
        ...

    async def head(self, key: str) -> StoredObject | None:
        """What is known of an object, None where there is none."""
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

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield the objects whose keys begin so; `sha256` is not told."""
        ...

    async def abort_uploads(
        self, prefix: str, *, older_than_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        """Drop what uploads begun so long ago have left unfinished; return how many there were.

        Args:
            prefix: what their keys begin with.
            is_meant: told a whole key, tells whether it is one of them.
        """
        ...


class WebFiles(Protocol):
    """Files that anybody can fetch who knows their address."""

    def open(self, url: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the bytes at an https address.

        Raises:
            StorageUnavailable: the server cannot be reached or trusted, answers 5xx or 429, or broke off.
            StorageRejected: there is no such file, or it may not be fetched, or it is elsewhere.
        """
        ...
