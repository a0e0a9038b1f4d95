"""Restrict a shared bucket to the objects of one namespace. Other keys are refused before any call."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from agentmemory_operator.connections.rules.object_keys import BucketArea
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.objects import ObjectStore, StoredObject, accept_any_key
from agentmemory_operator.spec.kinds.conditions import Reason


class ConfinedObjects:
    """Implements ports.objects.ObjectStore for the objects of one namespace in a shared bucket.

    Args:
        area: Decides which keys belong to the namespace.
        bucket_name: Name of the bucket, for messages.

    Raises:
        SpecInvalid: `SourceNotAllowed`, for each key or folder outside the area. The error reveals neither whether an
            object exists nor its owner.
    """

    def __init__(self, objects: ObjectStore, area: BucketArea, *, bucket_name: str) -> None:
        self._objects = objects
        self._area = area
        self._place = bucket_name

    async def close(self) -> None:
        """Close the connections of the bucket."""
        await self._objects.close()

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> StoredObject:
        """Store a stream as one object with bounded memory. The object becomes visible only when it is complete."""
        return await self._objects.put(self._own(key), content, metadata=metadata)

    async def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""
        return await self._objects.head(self._own(key))

    def get(self, key: str, *, offset: int = 0) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the content of an object, from a byte offset. Raises NotFound if the object does not exist."""
        return self._objects.get(self._own(key), offset=offset)

    async def delete(self, key: str) -> None:
        """Delete an object; a missing object is no error."""
        await self._objects.delete(self._own(key))

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield those objects of a folder that belong to the namespace, without their `sha256`."""
        async for stored in self._objects.list(self._own_folder(prefix)):
            if self._area.contains(stored.key):
                yield stored

    async def abort_uploads(
        self, prefix: str, *, older_than_ms: int, matches: Callable[[str], bool] = accept_any_key
    ) -> int:
        """Abort unfinished uploads of a minimum age to keys of the namespace below a prefix; return their number."""
        own_prefix = prefix if self._area.contains(prefix) else self._own_folder(prefix)
        return await self._objects.abort_uploads(
            own_prefix, older_than_ms=older_than_ms, matches=lambda key: self._area.contains(key) and matches(key)
        )

    def _own(self, key: str) -> str:
        if not self._area.contains(key):
            raise self._refusal(key)
        return key

    def _own_folder(self, folder: str) -> str:
        if not self._area.contains_folder(folder):
            raise self._refusal(folder)
        return folder

    def _refusal(self, key: str) -> SpecInvalid:
        return SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"{key!r} is outside the part of the shared bucket {self._place} that namespace {self._area.namespace} "
            f"may access: the copies of its own agents, [PREFIX/]{self._area.namespace}/AGENT/NAME_UID8/FILE, with the "
            f"MemorySnapshot's name and the first 8 characters of its UID. For anything else, name a Secret that opens "
            f"the bucket in secretRef",
        )
