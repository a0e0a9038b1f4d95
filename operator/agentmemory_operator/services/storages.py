"""Object storages by what specs and statuses say of them; what opens them is read from Secrets each time."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.snapshot_spec import Encryption, S3Bucket, S3Object
from agentmemory_operator.domain.storage_places import is_path_style, object_at, place_of
from agentmemory_operator.errors import SecretMissing, SpecInvalid
from agentmemory_operator.ports import Secrets
from agentmemory_operator.ports.objects import AccessKey, Bucket, ObjectStore

DEFAULT_REGION = "us-east-1"
# Keys of the Secret.
ACCESS_KEY_ID, SECRET_ACCESS_KEY = "access-key-id", "secret-access-key"
SESSION_TOKEN, AUTHORITY = "session-token", "ca.crt"


class Storages:
    """Opens buckets for as long as something is done with them: a Secret that is rotated is read with the next.

    Args:
        secrets: where keys are read.
        open_objects: opens a bucket.
        shared: buckets that this process's own identity opens for whoever names no Secret, as `place_of` names them;
            None is all. Whoever may name a bucket gets at what lies there, with or without rights of their own.
    """

    def __init__(
        self,
        secrets: Secrets,
        open_objects: Callable[[Bucket], ObjectStore],
        *,
        shared: frozenset[str] | None = None,
    ) -> None:
        self._secrets = secrets
        self._open_objects = open_objects
        self._shared = shared

    @asynccontextmanager
    async def open_bucket(
        self, bucket: S3Bucket, namespace: str, *, encryption: Encryption | None = None
    ) -> AsyncIterator[ObjectStore]:
        """Open a bucket; keys are whole.

        Args:
            namespace: of the Secret.
            encryption: of what is stored.

        Raises:
            SecretMissing: there is no such Secret, or it lacks a key.
            SpecInvalid: its authority is no certificate, or it is opened with a Secret alone.
        """
        self._check_shared(bucket)
        objects = self._open_objects(await self._opened_by(bucket, namespace, encryption))
        try:
            yield objects
        finally:
            await objects.close()

    @asynccontextmanager
    async def open_object(self, place: S3Object, namespace: str) -> AsyncIterator[tuple[ObjectStore, str]]:
        """Open the bucket of one object; gives its key too. Raises as `open_bucket` does."""
        async with self.open_bucket(place, namespace) as objects:
            yield objects, place.key

    @asynccontextmanager
    async def open_location(
        self, location: Mapping[str, Any], namespace: str, *, encryption: Encryption | None = None
    ) -> AsyncIterator[tuple[ObjectStore, str]]:
        """Open the bucket of a place that a status names; gives its key too. Raises as `open_bucket` does."""
        place = object_at(location)
        async with self.open_bucket(place, namespace, encryption=encryption) as objects:
            yield objects, place.key

    def _check_shared(self, bucket: S3Bucket) -> None:
        place = place_of(bucket)
        if bucket.secret_ref is None and self._shared is not None and place not in self._shared:
            raise SpecInvalid(
                Reason.SOURCE_NOT_ALLOWED,
                f"bucket {place} is opened with a Secret alone: name one in secretRef, or have {place!r} listed in the"
                " operator's AGENTMEMORY_SHARED_BUCKETS",
            )

    async def _opened_by(self, bucket: S3Bucket, namespace: str, encryption: Encryption | None) -> Bucket:
        name = bucket.secret_ref.name if bucket.secret_ref else None
        return Bucket(
            name=bucket.bucket,
            region=bucket.region or DEFAULT_REGION,
            endpoint=bucket.endpoint,
            is_path_style=is_path_style(bucket),
            access_key=await self._access_key(namespace, name) if name else None,
            encryption=encryption.type if encryption else None,
            kms_key_id=encryption.kms_key_id if encryption else None,
            ca_pem=await self._optional(namespace, name, AUTHORITY) if name else None,
        )

    async def _access_key(self, namespace: str, name: str) -> AccessKey:
        return AccessKey(
            await self._secrets.read(namespace, name, ACCESS_KEY_ID),
            await self._secrets.read(namespace, name, SECRET_ACCESS_KEY),
            await self._optional(namespace, name, SESSION_TOKEN),
        )

    async def _optional(self, namespace: str, name: str, key: str) -> str | None:
        try:
            return await self._secrets.read(namespace, name, key)
        except SecretMissing:
            return None
