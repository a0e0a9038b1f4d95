"""Proves a snapshot: by its bytes, or by restoring it beside the agent and comparing."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.collections.rules.collection import marker_from_json
from agentmemory_operator.collections.scratch import Scratch
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.streams import digest_of
from agentmemory_operator.errors import NotFound, RecoveryUnended, StoreRejected, StoreUnavailable
from agentmemory_operator.memories.rules.findings import Check, CheckFinding, VerificationVerdict
from agentmemory_operator.ports.base import Json
from agentmemory_operator.snapshots.compare import ComparedSnapshot, compare
from agentmemory_operator.snapshots.rules.steps import QDRANT, S3, location_of
from agentmemory_operator.snapshots.rules.verdict import UNVERIFIED, Recorded, compare_checksum
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState
from agentmemory_operator.spec.times import parse_time

ATTEMPTS = 3
"""Restores that a server which answers may fail before the snapshot is called unfit."""

log = logging.getLogger(__name__)


OpenElsewhere = Callable[[Json, str], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Opens the bytes at a place off the server, as a status names it, with the credentials of a namespace."""


@dataclass(slots=True)
class Verification:
    """Proves snapshots; of one server's one is restored at a time.

    Attributes:
        max_scratch_bytes: larger snapshots are verified by their bytes alone; None restores any.
        open_elsewhere: opens bytes that Qdrant does not have; None where nothing can.
    """

    scratch: Scratch
    max_scratch_bytes: int | None = None
    open_elsewhere: OpenElsewhere | None = None
    _failures: Counter[str] = field(default_factory=Counter)
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def prove(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        """The condition Verified of a MemorySnapshot whose bytes are there, as its `status.verify` asks for.

        Raises:
            TransientError: it is to be tried again.
        """
        how = status.get("verify") or "Full"
        if how == "None":
            return UNVERIFIED
        return (await self.verify(self._subject(metadata, status), how, server)).state

    def _subject(self, metadata: Metadata, status: Json) -> ComparedSnapshot:
        here, elsewhere, opens = location_of(status, QDRANT), location_of(status, S3), self.open_elsewhere
        points, owner = status.get("points") or {}, status.get("owner")
        began = status.get("startTime")
        return ComparedSnapshot(
            uid=metadata.uid,
            physical=(here or status).get("physical") or "",
            name=(here or status).get("name") or "",
            size=status.get("sizeBytes") or 0,
            sha256=status.get("sha256"),
            recorded=Recorded(
                begun_ms=parse_time(began) if began else None,
                before=points.get("before"),
                after=points.get("after"),
                deleted=status.get("deletedMeanwhile"),
                config_hash=status.get("configHash"),
            ),
            live=status.get("physical"),
            owner=marker_from_json(owner) if owner else None,
            open_copy=partial(opens, elsewhere, metadata.namespace) if opens and elsewhere and not here else None,
        )

    async def verify(self, subject: ComparedSnapshot, how: str, server: Server) -> VerificationVerdict:
        """What a snapshot came to.

        Args:
            how: Full or Checksum.

        Raises:
            TransientError: it is to be tried again.
        """
        if how == "Checksum":
            return await _checksum(subject, server)
        most = self.max_scratch_bytes
        if most is not None and (size := await _size_of(subject, server)) > most:
            note = f"not restored: its {size} bytes exceed the limit of {most} for a scratch collection"
            return replace(await _checksum(subject, server), without_live=note)
        async with self._turns[server.endpoint.url], self.scratch.hold(server, subject.uid) as name:
            refused = await self._restore(subject, name, server)
            return await _refused(refused, subject, server) if refused else await compare(name, subject, server)

    async def _restore(self, subject: ComparedSnapshot, name: str, server: Server) -> str:
        """Restore into the scratch collection; return why that was not possible, empty where it was."""
        try:
            await restore_into(name, subject, server)
        except (NotFound, StoreRejected) as exc:
            message = f"the server cannot restore it: {exc}"
        except StoreUnavailable as exc:
            # One that is away raises here too, and then nothing was found out.
            await server.snapshots.collections()
            self._failures[subject.uid] += 1
            if self._failures[subject.uid] < ATTEMPTS:
                raise
            message = f"the server failed {ATTEMPTS} times to restore it: {exc}"
        else:
            message = ""
        self._failures.pop(subject.uid, None)
        return message


async def restore_into(target: str, subject: ComparedSnapshot, server: Server) -> None:
    """Have the server make a collection of a snapshot: by its own address of the file, else of the bytes sent to it.

    Args:
        target: does not exist.

    Raises:
        NotFound: the bytes are nowhere.
        StoreRejected: it takes neither; the bytes, or the collection, are unfit.
        StoreUnavailable: it is away, or did not finish.
    """
    if subject.open_copy is None:
        location = await server.snapshots.own_location(subject.physical, subject.name)
        try:
            await server.snapshots.recover(target, location, sha256=subject.sha256)
            return
        except RecoveryUnended:
            # Whatever is sent there now, it may replace later.
            raise
        except (StoreRejected, StoreUnavailable) as exc:
            # It may take no addresses, or not reach itself by ours.
            log.info("uploading %s, because the server does not download it: %s", subject.name, exc)
            await server.collections.delete(target)
    async with opened(subject, server) as content:
        await server.snapshots.upload(target, content, sha256=subject.sha256)


def opened(subject: ComparedSnapshot, server: Server) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    """Open a snapshot's bytes, wherever they are."""
    if subject.open_copy is not None:
        return subject.open_copy()
    return server.snapshots.download(subject.physical, subject.name)


async def _refused(why: str, subject: ComparedSnapshot, server: Server) -> VerificationVerdict:
    """What a snapshot comes to that the server does not restore.

    Where its bytes are those recorded, the fault may be the server's (a full disk, a deadline): nothing is proven.
    """
    read = (await _checksum(subject, server)).findings[0]
    is_good = None if read.is_good else False
    return VerificationVerdict((read, CheckFinding(Check.RESTORE, is_good, why)))


async def _checksum(subject: ComparedSnapshot, server: Server) -> VerificationVerdict:
    files = await server.snapshots.files(subject.physical)
    told = next((file.sha256 for file in files if file.name == subject.name), None)
    try:
        async with opened(subject, server) as content:
            sha256, size = await digest_of(content)
    except (NotFound, StoreRejected) as exc:
        return VerificationVerdict((CheckFinding(Check.CHECKSUM, False, f"it cannot be read: {exc}"),))
    return VerificationVerdict((compare_checksum(sha256, recorded=subject.sha256, told=told, size=size),))


async def _size_of(subject: ComparedSnapshot, server: Server) -> int:
    """How large a snapshot is: what is on record may be anybody's word, what the server lists is not."""
    listed = (file.size for file in await server.snapshots.files(subject.physical) if file.name == subject.name)
    return max(subject.size, *listed, 0)
