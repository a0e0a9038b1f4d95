"""Proves a snapshot: by its bytes, or by restoring it beside the agent and comparing."""

import asyncio
import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentmemory_operator.domain.snapshot_spec import Verify
from agentmemory_operator.domain.verification import Check, Finding, Verdict, compare_checksum
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.services.comparison import Subject, compare
from agentmemory_operator.services.scratch import Scratch
from agentmemory_operator.services.servers import Server

ATTEMPTS = 3
"""Restores that a server which answers may fail before the snapshot is called unfit."""

log = logging.getLogger(__name__)


class Verifier(Protocol):
    """Proves snapshots."""

    async def verify(self, subject: Subject, how: Verify, server: Server) -> Verdict | None:
        """Return what a snapshot came to; None where nothing is asked of it.

        Raises:
            TransientError: it is to be tried again.
        """
        ...


@dataclass(slots=True)
class Verification:
    """Implements Verifier; one snapshot of a server is restored at a time.

    Attributes:
        max_scratch_bytes: larger snapshots are verified by their bytes alone; None restores any.
    """

    scratch: Scratch
    max_scratch_bytes: int | None = None
    _failures: Counter[str] = field(default_factory=Counter)
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def verify(self, subject: Subject, how: Verify, server: Server) -> Verdict | None:
        """Return what a snapshot came to; None where nothing is asked of it."""
        if how == "None":
            return None
        if how == "Checksum":
            return await _checksum(subject, server)
        most = self.max_scratch_bytes
        if most is not None and subject.size > most:
            return _with_note(await _checksum(subject, server), subject.size, most)
        async with self._turns[server.endpoint.url], self.scratch.hold(server, subject.uid) as name:
            refused = await self._restore(subject, name, server)
            return Verdict((refused,)) if refused else await compare(name, subject, server)

    async def _restore(self, subject: Subject, name: str, server: Server) -> Finding | None:
        """Restore into the scratch collection; return what speaks against the snapshot."""
        try:
            await restore_into(name, subject, server)
        except (NotFound, StoreRejected) as exc:
            message = f"the server does not restore it: {exc}"
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
        return Finding(check=Check.RESTORE, is_good=False, message=message) if message else None


async def restore_into(target: str, subject: Subject, server: Server) -> None:
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
        except (StoreRejected, StoreUnavailable) as exc:
            # It may take no addresses, or not reach itself by ours.
            log.info("%s is sent to the server, which does not fetch it: %s", subject.name, exc)
            await server.collections.delete(target)
    async with opened(subject, server) as content:
        await server.snapshots.upload(target, content, sha256=subject.sha256)


def opened(subject: Subject, server: Server) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    """Open a snapshot's bytes, wherever they are."""
    if subject.open_copy is not None:
        return subject.open_copy()
    return server.snapshots.download(subject.physical, subject.name)


async def _checksum(subject: Subject, server: Server) -> Verdict:
    files = await server.snapshots.files(subject.physical)
    told = next((file.sha256 for file in files if file.name == subject.name), None)
    digest, size = hashlib.sha256(), 0
    try:
        async with opened(subject, server) as content:
            async for chunk in content:
                digest.update(chunk)
                size += len(chunk)
    except (NotFound, StoreRejected) as exc:
        return Verdict((Finding(check=Check.CHECKSUM, is_good=False, message=f"it cannot be read: {exc}"),))
    return Verdict((compare_checksum(digest.hexdigest(), recorded=subject.sha256, told=told, size=size),))


def _with_note(verdict: Verdict, size: int, most: int) -> Verdict:
    note = f"not restored: its {size} bytes are more than the {most} that a scratch collection may have"
    return replace(verdict, without_live=note)
