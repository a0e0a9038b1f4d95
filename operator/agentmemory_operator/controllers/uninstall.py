"""An uninstall: every object goes, with or without an operator, then the definitions.

Every step may have been done before, by whoever: what is gone already is done.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentmemory_operator.controllers.rules.uninstall import ORDER, Json, catalogued, held_by_us, named, takes_bytes
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.spec.kinds.agent_memory import Metadata

POLL_S = 0.2
# An operator renews its lease every 2 s.
RENEWED_WITHIN_S = 6.0
# Without any object gone: a server that is away holds one up for 300 s.
GONE_WITHIN_S = 330.0
# The API server is away, or says no each time.
FAILS_WITHIN_S = 30.0
SHOWN = 5


class Installed(Protocol):
    """What is installed in a cluster.

    Raises:
        TransientError: it cannot be read or changed now, or not by whoever asks.
    """

    async def has_definition(self, kind: str) -> bool:
        """Whether a kind is defined, be it on its way out."""
        ...

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """The objects of a kind in one namespace, or in all where that is empty."""
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object of that uid; one that is gone is no error."""
        ...

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace an object's finalizers, if it has not changed since; one that is gone is no error."""
        ...

    async def delete_definition(self, kind: str) -> None:
        """Delete a kind with its objects; one that is gone is no error."""
        ...

    async def renewals(self) -> dict[str, str]:
        """Namespace: when the lease of the operator there was renewed last."""
        ...


@dataclass(frozen=True, slots=True)
class Installation:
    """What there is.

    Attributes:
        definitions: the kinds that are defined.
        operators: namespaces in which an operator works.
    """

    definitions: tuple[str, ...]
    objects: tuple[Json, ...]
    operators: tuple[str, ...]

    @property
    def held(self) -> list[Json]:
        """The objects that wait for an operator before they go."""
        return [document for document in self.objects if held_by_us(document)]


async def look(installed: Installed) -> Installation:
    """What there is; takes some seconds where no operator works."""
    operators = await _operators(installed)
    definitions = tuple([kind for kind in ORDER if await installed.has_definition(kind)])
    objects = [document for kind in definitions for document in await _objects(installed, kind)]
    return Installation(definitions, tuple(objects), operators)


async def _operators(installed: Installed) -> tuple[str, ...]:
    # By what changes, and by no clock.
    before, until = await installed.renewals(), time.monotonic() + RENEWED_WITHIN_S
    while time.monotonic() < until:
        await asyncio.sleep(POLL_S)
        now = await installed.renewals()
        if renewed := tuple(namespace for namespace, at in now.items() if before.get(namespace) != at):
            return renewed
    return ()


async def _objects(installed: Installed, kind: str) -> list[Json]:
    """The objects of a kind, none where its definition is gone."""
    try:
        return await installed.list_in(kind, "")
    except TransientError:
        if await installed.has_definition(kind):
            raise
        return []


@dataclass(slots=True)
class Uninstall:
    """Carries an uninstall out.

    Attributes:
        is_released: our finalizers are taken off, because no operator works.
        keep: keeps the catalogue, in the place of what it kept before.
        tell: told what is done.
    """

    installed: Installed
    is_released: bool
    keep: Callable[[Sequence[Json]], None]
    tell: Callable[[str], None]
    _known: dict[tuple[str, str, str], Json] = field(default_factory=dict)

    async def run(self, found: Installation) -> None:
        """Have every object and definition go; killed anywhere, another run goes on.

        Raises:
            AgentMemoryError: something holds it up; says what.
        """
        check_way(found, is_released=self.is_released)
        self._note(found.objects)
        for kind in ORDER:
            await self._end_objects(kind)
            # Deletions of agents have made last snapshots; bytes that went need no record.
            self._note(await _objects(self.installed, "MemorySnapshot"))
        for kind in ORDER:
            await self.installed.delete_definition(kind)
        await self._until(self._defined, "definitions")
        self.tell("the definitions are deleted")

    def _note(self, objects: Sequence[Json]) -> None:
        self._known |= {named(document): document for document in objects}
        self.keep([catalogued(document) for document in self._known.values()])

    async def _end_objects(self, kind: str) -> None:
        async def left() -> list[str]:
            objects = await _objects(self.installed, kind)
            self._known |= {named(document): document for document in objects}
            for document in objects:
                await self._end(document)
            return ["{} {}/{}".format(*named(document)) for document in objects]

        await self._until(left, "objects")
        gone = [key for key, document in self._known.items() if key[0] == kind and takes_bytes(document)]
        if not self.is_released:
            for key in gone:
                del self._known[key]

    async def _end(self, document: Json) -> None:
        kind, metadata = document["kind"], Metadata.model_validate(document["metadata"])
        if metadata.deletion_timestamp is None:
            await self.installed.delete_object(kind, metadata)
        elif self.is_released and (ours := held_by_us(document)):
            others = [name for name in metadata.finalizers if name not in ours]
            await self.installed.write_finalizers(kind, metadata, others)

    async def _defined(self) -> list[str]:
        return [kind for kind in ORDER if await self.installed.has_definition(kind)]

    async def _until(self, left: Callable[[], Awaitable[list[str]]], what: str) -> None:
        """Wait until nothing is left, as long as something goes.

        Raises:
            AgentMemoryError: nothing has gone for too long.
        """
        least, since, answered = None, time.monotonic(), time.monotonic()
        while True:
            try:
                names = await left()
            except TransientError:
                # Changed by another hand, or the API server is away for a moment.
                if time.monotonic() > answered + FAILS_WITHIN_S:
                    raise
                await asyncio.sleep(POLL_S)
                continue
            if not names:
                return
            answered = time.monotonic()
            if least is None or len(names) < least:
                least, since = len(names), answered
            if answered > since + GONE_WITHIN_S:
                raise _stuck(names, what)
            await asyncio.sleep(POLL_S)


def _stuck(names: Sequence[str], what: str) -> AgentMemoryError:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return AgentMemoryError(
        f"{what} are still there: {', '.join(names[:SHOWN])}{more}. See their events and finalizers;"
        " run the command again to continue"
    )


def check_way(found: Installation, *, is_released: bool) -> None:
    """Pass where the objects can go the way that is asked for.

    Raises:
        AgentMemoryError: they would wait for ever, or an operator would do what is not to be done.
    """
    if is_released and found.operators:
        raise AgentMemoryError(
            f"--release removes finalizers, but the operator in namespace {found.operators[0]} adds them again, or"
            " deletes what the objects say: stop it first (`kubectl delete -f examples/install/`)"
        )
    if found.held and not found.operators and not is_released:
        raise AgentMemoryError(
            f"{len(found.held)} objects wait for an operator, but none is running: start one, which applies their"
            " deletionPolicy, or add --release, which leaves their collections and files in Qdrant and S3"
        )
