"""Remote files: object storage (one bucket and prefix, with credentials), and files on web servers."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Credentials of an object storage. They are never logged.

    Attributes:
        session_token: Token of temporary credentials; None for permanent ones.
    """

    id: str = field(repr=False)
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Address of a bucket, and the credentials for it.

    Attributes:
        endpoint: URL of the storage. None is Amazon's endpoint of the region.
        prefix: Prefix of every key, without a trailing slash.
        is_path_style: True if the bucket is part of the URL's path, False if it is part of the host name.
        access_key: None uses the identity of the process, from its environment.
        encryption: Server-side encryption, AES256 or KMS. None uses the bucket's default.
        kms_key_id: Key for KMS encryption. None uses the account's default.
        ca_pem: Trusted CA certificates in PEM. None trusts the system's.
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
    """Metadata of one object.

    Attributes:
        key: Relative to the prefix.
        size: Size in bytes.
        sha256: Hex digest from the object's metadata. None if it was stored without one, or comes from a list.
        modified_ms: Time of the last change in Unix milliseconds. 0 if unknown; far in the future if a list states an
            unreadable time.
    """

    key: str
    size: int
    sha256: str | None
    modified_ms: int = 0


def accept_any_key(key: str) -> bool:
    """Return True for any key: the default filter of `abort_uploads`."""
    return True


class ObjectStore(Protocol):
    """Objects below one prefix of a bucket; keys are relative to the prefix.

    Every method except `close` raises:
        StorageUnavailable: If another attempt may succeed. A change may have been made: its response may be lost.
        StorageRejected: If the storage rejects the call. The message names the remedy, but none of the credentials.
        SpecInvalid: If the egress policy forbids the host of the storage. Also if the bucket is shared and the key does
            not belong to the namespace (`connections/confined_objects.py`).
    """

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        ...

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> StoredObject:
        """Store a stream in bounded memory. The object becomes visible as a whole, or not at all.

        Errors of `content` pass through, and nothing is stored then.

        Args:
            key: Key relative to the prefix.
            content: Content of the object.
            metadata: Stored with the object. `sha256` and `size`, if given, are compared with the content. Without
                `sha256` the content can have 8 MiB at most, and its digest is computed and stored.

        Raises:
            ChecksumMismatch: If the content differs from `sha256` or `size`; nothing was stored.
            ValueError: If the content is larger than 8 MiB and `metadata` has no `sha256`.
        """
        ...

    async def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""
        ...

    def get(self, key: str, *, offset: int = 0) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the content of an object, from a byte offset.

        Raises:
            NotFound: If the object does not exist.
            StorageUnavailable: Also while the content is read, if the connection breaks.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; an absent object is no error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield the objects whose keys start with a prefix, without their `sha256`."""
        ...

    async def abort_uploads(
        self, prefix: str, *, older_than_ms: int, matches: Callable[[str], bool] = accept_any_key
    ) -> int:
        """Abort the incomplete multipart uploads of a minimum age; return their number.

        The result is 0 if the storage responds that it does not implement the list of uploads.

        Args:
            prefix: Prefix of the keys.
            older_than_ms: Minimum age of an upload in milliseconds; 0 aborts uploads of any age.
            matches: Returns whether to abort the upload of a key.
        """
        ...


class WebFiles(Protocol):
    """Files of web servers that anyone with the URL can fetch."""

    def open(self, url: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the content at an https URL.

        Raises:
            StorageUnavailable: If the server is unreachable or untrusted, responds with 5xx or 429, or the connection
                breaks.
            StorageRejected: If the server redirects, or responds with another status that is not 200.
            SpecInvalid: If the egress policy forbids the host.
        """
        ...
