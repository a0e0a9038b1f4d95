"""Verify a snapshot by its checksum, or by restoring it into a scratch collection and comparing that collection."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.collections.rules.collection import marker_from_json
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.streams import hash_stream
from agentmemory_operator.errors import (
    ChecksumMismatch,
    NotFound,
    RecoveryOutcomeUnknown,
    StorageRejected,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.memories.rules.findings import Check, CheckFinding, VerificationVerdict
from agentmemory_operator.ports.base import Json
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot, compare
from agentmemory_operator.snapshots.rules.copy_verdict import UNVERIFIED, SnapshotRecord, compare_checksum
from agentmemory_operator.snapshots.rules.steps import QDRANT, S3, location_of, recorded_hashes
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState
from agentmemory_operator.spec.times import parse_time

MAX_RESTORE_ATTEMPTS = 3
"""Failed restores of a snapshot, by a server that still responds, after which the failure counts as the result."""

log = logging.getLogger(__name__)


OpenStoredCopy = Callable[[Json, str], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Opens the file at a location in object storage, from a status, with the credentials of a namespace."""


@dataclass(slots=True)
class Verification:
    """Verifies snapshots, one restore at a time on each server.

    Attributes:
        scratch: Scratch collections to restore into.
        max_scratch_bytes: Size in bytes above which a snapshot is verified by checksum only; None for no limit.
        open_elsewhere: Opens a file in object storage; None if no object storage can be read.
    """

    scratch: ScratchCollections
    max_scratch_bytes: int | None = None
    open_elsewhere: OpenStoredCopy | None = None
    _failures: Counter[str] = field(default_factory=Counter)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def verify_status(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        """Verify an existing MemorySnapshot as its `status.verify` requires; return the condition Verified.

        With the string None nothing is verified, and the condition is Unknown. A missing value means Full.

        Raises:
            TransientError: If the verification must be repeated.
            StoreRejected: If Qdrant rejects a call that reads the live or the restored collection.
            StorageRejected, SpecInvalid: If a user must fix the storage of the copy, or its Secret.
            SpecInvalid: Also if the connection does not list the nodes of the server's cluster.
        """
        mode = status.get("verify") or "Full"
        if mode == "None":
            return UNVERIFIED
        return (await self.verify(self._subject(metadata, status), mode, server)).state

    def _subject(self, metadata: Metadata, status: Json) -> ComparedSnapshot:
        local, remote, open_ = location_of(status, QDRANT), location_of(status, S3), self.open_elsewhere
        points, owner = status.get("points") or {}, status.get("owner")
        start_time = status.get("startTime")
        return ComparedSnapshot(
            uid=metadata.uid,
            physical=(local or status).get("physical") or "",
            name=(local or status).get("name") or "",
            size=status.get("sizeBytes") or 0,
            sha256=status.get("sha256"),
            recorded=SnapshotRecord(
                started_ms=parse_time(start_time) if start_time else None,
                before=points.get("before"),
                after=points.get("after"),
                deleted=status.get("deletedMeanwhile"),
                config_hashes=recorded_hashes(status),
            ),
            live=status.get("physical"),
            owner=marker_from_json(owner) if owner else None,
            open_copy=partial(open_, remote, metadata.namespace) if open_ and remote and not local else None,
        )

    async def verify(self, subject: ComparedSnapshot, mode: str, server: Server) -> VerificationVerdict:
        """Verify a snapshot; return the findings of all checks.

        Args:
            mode: Full or Checksum. Full restores the snapshot, unless it exceeds `max_scratch_bytes`.

        Raises:
            StoreRejected: If Qdrant rejects a call that reads the live or the restored collection.
            StorageRejected, SpecInvalid: If a user must fix the storage of the copy, or its Secret.
            SpecInvalid: Also if the connection does not list the nodes of the server's cluster.
            TransientError: If the verification must be repeated.
        """
        if mode == "Checksum":
            return await _verify_checksum(subject, server)
        limit = self.max_scratch_bytes
        if limit is not None and (size := await _size_of(subject, server)) > limit:
            note = f"not restored: its {size} bytes exceed the limit of {limit} for a scratch collection"
            return replace(await _verify_checksum(subject, server), without_live=note)
        async with self._locks[server.endpoint.url], self.scratch.reserve(server, subject.uid) as name:
            error = await self._restore(subject, name, server)
            return await _judge_rejected(error, subject, server) if error else await compare(name, subject, server)

    async def _restore(self, subject: ComparedSnapshot, name: str, server: Server) -> str:
        """Restore into the scratch collection; return the error message, or "" on success."""
        try:
            await restore_into(name, subject, server)
        except StorageRejected:
            # Pass the error through: a wrong bucket or access key shows nothing about the snapshot.
            raise
        except (NotFound, StoreRejected, ChecksumMismatch) as exc:
            message = f"the server cannot restore it: {exc}"
        except StoreUnavailable as exc:
            # Raise if the server is unavailable: then the failure shows nothing about the snapshot.
            await server.snapshots.collections()
            self._failures[subject.uid] += 1
            if self._failures[subject.uid] < MAX_RESTORE_ATTEMPTS:
                raise
            message = f"the server failed {MAX_RESTORE_ATTEMPTS} times to restore it: {exc}"
        else:
            message = ""
        self._failures.pop(subject.uid, None)
        return message


async def restore_into(target: str, subject: ComparedSnapshot, server: Server) -> None:
    """Have the server restore a collection from a snapshot.

    The server downloads the file from its own URL. If that fails, or `open_copy` is set, the file is uploaded to it.

    Args:
        target: Name of a collection that does not exist.

    Raises:
        NotFound: If the file does not exist.
        StoreRejected: If the server rejects the uploaded file, because the file or the collection is invalid.
        ChecksumMismatch: If the content from `open_copy` differs from its checksum.
        StorageRejected, SpecInvalid, TransientError: If `open_copy` cannot read the object storage.
        SpecInvalid: Also if the connection does not list the nodes of the server's cluster.
        StoreUnavailable: If the server is unavailable or did not complete the restore.
        RecoveryOutcomeUnknown: If the response was lost. The server may still complete the restore.
    """
    if subject.open_copy is None:
        location = await server.snapshots.own_location(subject.physical, subject.name)
        try:
            await server.snapshots.recover(target, location, sha256=subject.sha256)
            return
        except RecoveryOutcomeUnknown:
            # Do not upload: the server may still complete this recovery, and would then replace the uploaded data.
            raise
        except (StoreRejected, StoreUnavailable) as exc:
            # Upload the file instead: the server may not accept URLs, or may not reach itself by this URL.
            log.info("uploading %s, because the server does not download it: %s", subject.name, exc)
            await server.collections.delete(target)
    async with open_bytes(subject, server) as content:
        await server.snapshots.upload(target, content, sha256=subject.sha256)


def open_bytes(subject: ComparedSnapshot, server: Server) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    """Return a context with a snapshot's content: from `open_copy` if set, else downloaded from the server."""
    if subject.open_copy is not None:
        return subject.open_copy()
    return server.snapshots.download(subject.physical, subject.name)


async def _judge_rejected(error_message: str, subject: ComparedSnapshot, server: Server) -> VerificationVerdict:
    """Return the findings of the checks Checksum and Restore for a snapshot that the server cannot restore.

    If the file matches its checksum, the cause may be the server (a full disk, a deadline), so the result is unknown.
    """
    checksum = (await _verify_checksum(subject, server)).findings[0]
    is_good = None if checksum.is_good else False
    return VerificationVerdict((checksum, CheckFinding(Check.RESTORE, is_good, error_message)))


async def _verify_checksum(subject: ComparedSnapshot, server: Server) -> VerificationVerdict:
    files = await server.snapshots.files(subject.physical)
    listed_sha256 = next((file.sha256 for file in files if file.name == subject.name), None)
    try:
        async with open_bytes(subject, server) as content:
            sha256, size = await hash_stream(content)
    except StorageRejected:
        raise
    except (NotFound, StoreRejected, ChecksumMismatch) as exc:
        return VerificationVerdict((CheckFinding(Check.CHECKSUM, False, f"it cannot be read: {exc}"),))
    return VerificationVerdict((compare_checksum(sha256, recorded=subject.sha256, listed=listed_sha256, size=size),))


async def _size_of(subject: ComparedSnapshot, server: Server) -> int:
    """Return the larger of the recorded size and the size that Qdrant lists, in bytes.

    The recorded size alone proves nothing, because tenants can write the status.
    """
    sizes = (file.size for file in await server.snapshots.files(subject.physical) if file.name == subject.name)
    return max(subject.size, *sizes, 0)
