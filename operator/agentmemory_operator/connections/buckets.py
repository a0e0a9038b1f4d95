"""Access to the buckets that specs and statuses name, with keys from their Secrets or the process's own identity."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentmemory_operator.connections.confined_objects import ConfinedObjects
from agentmemory_operator.connections.rules.host_lists import NOWHERE, Destination, destinations_of
from agentmemory_operator.connections.rules.object_keys import (
    BucketArea,
    NamespaceOf,
    bucket_name,
    is_path_style,
    parse_location,
    storage_url,
)
from agentmemory_operator.errors import SecretMissing, SpecInvalid
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.objects import AccessKey, Bucket, ObjectStore
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import Encryption, S3Bucket, S3Object

DEFAULT_REGION = "us-east-1"
# Keys in the Secret of a bucket.
ACCESS_KEY_ID, SECRET_ACCESS_KEY = "access-key-id", "secret-access-key"
SESSION_TOKEN, AUTHORITY = "session-token", "ca.crt"


class Storages:
    """Opens buckets for one use each, so that the next use reads a rotated Secret.

    Args:
        secrets: Reads keys.
        open_objects: Opens a bucket.
        shared: Names (`bucket_name`) of the buckets that may be opened without a Secret, by the process's own identity.
            A namespace may use only its own keys in them. None permits every bucket and key, for processes that run
            with their user's rights.
        namespace_of: Returns the namespace that owns a slug, or None.
    """

    def __init__(
        self,
        secrets: Secrets,
        open_objects: Callable[[Bucket], ObjectStore],
        *,
        shared: frozenset[str] | None = None,
        namespace_of: NamespaceOf = lambda slug: None,
    ) -> None:
        self._secrets = secrets
        self._open_objects = open_objects
        self._shared = shared
        self._namespace_of = namespace_of

    @asynccontextmanager
    async def open_bucket(
        self, bucket: S3Bucket, namespace: str, *, encryption: Encryption | None = None
    ) -> AsyncIterator[ObjectStore]:
        """Open a bucket. Keys include the prefix.

        Args:
            namespace: Namespace of the object and of the Secret.
            encryption: Server-side encryption of new objects. None leaves it to the bucket's default.

        Raises:
            SecretMissing: If the Secret does not exist, or lacks a key.
            SecretNotUsable: If the Secret does not list the host of the storage, or a key cannot be part of a header.
            SpecInvalid: If the endpoint or the Secret's CA certificate is invalid, or the bucket needs a Secret. In a
                shared bucket also by each call with a key that does not belong to the namespace.
            TransientError: If the Secret cannot be read now.
        """
        area = self._area_of(bucket, namespace)
        objects = self._open_objects(await self._opened_by(bucket, namespace, encryption))
        if area is not None:
            objects = ConfinedObjects(objects, area, bucket_name=bucket_name(bucket))
        try:
            yield objects
        finally:
            await objects.close()

    @asynccontextmanager
    async def open_object(self, location: S3Object, namespace: str) -> AsyncIterator[tuple[ObjectStore, str]]:
        """Open the bucket of one object; yield the store and the object's key. Errors are those of `open_bucket`."""
        async with self.open_bucket(location, namespace) as objects:
            yield objects, location.key

    @asynccontextmanager
    async def open_location(
        self, location: Mapping[str, Any], namespace: str, *, encryption: Encryption | None = None
    ) -> AsyncIterator[tuple[ObjectStore, str]]:
        """Open the bucket of a snapshot's copy; yield the store and the key of the copy.

        Args:
            location: Entry of `status.locations`.
            encryption: Server-side encryption of new objects. None leaves it to the bucket's default.

        Raises:
            SpecInvalid: If the location is invalid. Other errors are those of `open_bucket`.
        """
        parsed = parse_location(location)
        async with self.open_bucket(parsed, namespace, encryption=encryption) as objects:
            yield objects, parsed.key

    def _area_of(self, bucket: S3Bucket, namespace: str) -> BucketArea | None:
        """Return the part of a shared bucket that a namespace may use. None if every key of the bucket is permitted.

        Raises:
            SpecInvalid: If the bucket needs a Secret.
        """
        if bucket.secret_ref is not None or self._shared is None:
            return None
        if (name := bucket_name(bucket)) not in self._shared:
            raise SpecInvalid(
                Reason.SOURCE_NOT_ALLOWED,
                f"bucket {name} needs a Secret: set secretRef, or ask for {name!r} to be listed in the"
                " operator's AGENTMEMORY_SHARED_BUCKETS",
            )
        return BucketArea(namespace, self._namespace_of)

    async def _opened_by(self, bucket: S3Bucket, namespace: str, encryption: Encryption | None) -> Bucket:
        name, region = bucket.secret_ref.name if bucket.secret_ref else None, bucket.region or DEFAULT_REGION
        # Require the storage's host in the Secret, even if the bucket is part of the request's host name.
        to = destinations_of(storage_url(bucket.endpoint, region))
        return Bucket(
            name=bucket.bucket,
            region=region,
            endpoint=bucket.endpoint,
            is_path_style=is_path_style(bucket),
            access_key=await self._access_key(namespace, name, to) if name else None,
            encryption=encryption.type if encryption else None,
            kms_key_id=encryption.kms_key_id if encryption else None,
            ca_pem=await self._optional(namespace, name, AUTHORITY, to=NOWHERE) if name else None,
        )

    async def _access_key(self, namespace: str, name: str, to: Destination) -> AccessKey:
        return AccessKey(
            await self._secrets.read(namespace, name, ACCESS_KEY_ID, to=to),
            await self._secrets.read(namespace, name, SECRET_ACCESS_KEY, to=to),
            await self._optional(namespace, name, SESSION_TOKEN, to=to),
        )

    async def _optional(self, namespace: str, name: str, key: str, *, to: Destination) -> str | None:
        try:
            return await self._secrets.read(namespace, name, key, to=to)
        except SecretMissing:
            return None
