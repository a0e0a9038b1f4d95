"""Object storages by what specs and statuses say of them; what opens them is read from Secrets each time."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentmemory_operator.connections.confined_objects import ConfinedObjects
from agentmemory_operator.connections.rules.bucket_places import (
    Area,
    NamespaceOf,
    is_path_style,
    object_at,
    place_of,
    storage_url,
)
from agentmemory_operator.connections.rules.secret_hosts import NOWHERE, Destination, goes_to
from agentmemory_operator.errors import SecretMissing, SpecInvalid
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.objects import AccessKey, Bucket, ObjectStore
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import Encryption, S3Bucket, S3Object

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
            each namespace gets at its own keys there alone. None is all, and every key: whoever names a bucket has the
            process's rights already.
        namespace_of: tells which namespace has the agent's name that a key contains.
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
        """Open a bucket; keys are whole.

        Args:
            namespace: of whoever asks, and of the Secret.
            encryption: of what is stored.

        Raises:
            SecretMissing: there is no such Secret, or it lacks a key.
            SecretNotUsable: it does not list the storage.
            SpecInvalid: its authority is no certificate, or it is opened with a Secret alone; in a shared bucket, with
                each key that is not the namespace's.
        """
        area = self._area_of(bucket, namespace)
        objects = self._open_objects(await self._opened_by(bucket, namespace, encryption))
        if area is not None:
            objects = ConfinedObjects(objects, area, place=place_of(bucket))
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

    def _area_of(self, bucket: S3Bucket, namespace: str) -> Area | None:
        """What a namespace may reach of a bucket, None where it opens it with a Secret of its own.

        Raises:
            SpecInvalid: it is opened with a Secret alone.
        """
        if bucket.secret_ref is not None or self._shared is None:
            return None
        if (place := place_of(bucket)) not in self._shared:
            raise SpecInvalid(
                Reason.SOURCE_NOT_ALLOWED,
                f"bucket {place} needs a Secret: set secretRef, or ask for {place!r} to be listed in the"
                " operator's AGENTMEMORY_SHARED_BUCKETS",
            )
        return Area(namespace, self._namespace_of)

    async def _opened_by(self, bucket: S3Bucket, namespace: str, encryption: Encryption | None) -> Bucket:
        name, region = bucket.secret_ref.name if bucket.secret_ref else None, bucket.region or DEFAULT_REGION
        # The storage is what has to be listed, wherever in a URL the bucket stands.
        to = goes_to(storage_url(bucket.endpoint, region))
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
